"""The work of a language model in small: weights, a KV entry per token, passages from disk, a device's time.

Real are the pages, their contents and the files. Stood in for is the arithmetic: an accelerator that takes a fixed time
a token and one job at a time. It is the same for all runs, and it does not go faster or slower with what else a test
machine is doing, as a loop of arithmetic would.

Must not: cache anything itself (kvcache does), know sockets. Upstream: server. Downstream: hashlib, mmap, the disk.
A token's entry depends on conversation and position alone, so an answer's checksum shows whether a trimmed and
recomputed cache holds the same as one that was never touched.
"""

import asyncio
import hashlib
import mmap
import os
import zlib

from tests.demo.kvcache import BYTES_PER_TOKEN, Conversation

WEIGHTS_BYTES = 24 * 1024 * 1024
# The part of the weights that one token's computation reads; the whole file is read over and over.
WEIGHTS_SLICE = 64 * 1024
# Retrieval: a large index, of which each request reads a passage through the page cache.
INDEX_BYTES = 160 * 1024 * 1024
PASSAGE_BYTES = 1024 * 1024
PIECE = 1024 * 1024
# What a small model takes on a small board's NPU: reading a prompt is bound by arithmetic and done in chunks,
# answering by memory, token by token.
PREFILL_S_PER_TOKEN = 0.0013
DECODE_S_PER_TOKEN = 0.0025
PREFILL_CHUNK_TOKENS = 16
# New tokens look at the last block only (sliding-window attention); once per request all is looked at.
WINDOW_BLOCKS = 1


class Accelerator:
    """One job at a time, first come, first served."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def prefill(self, tokens: int) -> None:
        """The time of reading so many tokens of a prompt."""
        async with self._busy:
            await asyncio.sleep(tokens * PREFILL_S_PER_TOKEN)

    async def decode(self) -> None:
        """The time of writing one token of an answer."""
        async with self._busy:
            await asyncio.sleep(DECODE_S_PER_TOKEN)


class Model:
    """Weights and index of one server process."""

    def __init__(self, weights_path: str, index_path: str) -> None:
        """Load the weights: into memory of its own, as servers for accelerators do, not mapped from the file."""
        self.accelerator = Accelerator()
        self._weights = mmap.mmap(-1, WEIGHTS_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with open(weights_path, "rb", buffering=0) as file:
            file.readinto(self._weights)
        self._index = os.open(index_path, os.O_RDONLY)
        self._position = 0

    def retrieve(self, seed: int) -> int:
        """Read a passage of the index, as retrieval before an answer does; a checksum of it."""
        passages = INDEX_BYTES // PASSAGE_BYTES
        return zlib.crc32(os.pread(self._index, PASSAGE_BYTES, (seed * 7919 % passages) * PASSAGE_BYTES))

    def compute(self, conversation_number: int, position: int) -> bytes:
        """Keys and values of one token."""
        self._read_weights()
        return entry(conversation_number, position)

    def attend_all(self, conversation: Conversation, tokens: int) -> int:
        """Read the keys and values of the first `tokens` tokens; a checksum over them."""
        total, left = 1, tokens * BYTES_PER_TOKEN
        for block in conversation.blocks:
            with memoryview(block) as entries:
                total = zlib.adler32(entries[:left], total)
            left = max(0, left - len(block))
        return total

    def attend_window(self, conversation: Conversation) -> None:
        """Read the keys and values of the last blocks."""
        for block in conversation.blocks[-WINDOW_BLOCKS:]:
            zlib.adler32(block)

    def _read_weights(self) -> None:
        zlib.adler32(memoryview(self._weights)[self._position : self._position + WEIGHTS_SLICE])
        self._position = (self._position + WEIGHTS_SLICE) % WEIGHTS_BYTES


def entry(conversation: int, position: int) -> bytes:
    """BYTES_PER_TOKEN bytes that depend on the token's place alone."""
    return hashlib.shake_128(b"%d/%d" % (conversation, position)).digest(BYTES_PER_TOKEN)


def write_file(path: str, size: int) -> None:
    """A file of so many bytes of which nothing is in the page cache: who reads it first is charged for it."""
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, PIECE):
            file.write(hashlib.shake_128(b"%d" % start).digest(min(PIECE, size - start)))
        os.fsync(file.fileno())
    forget(path)


def forget(path: str) -> None:
    """Drop a file from the page cache, so that a run finds no more of it there than the one before did."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
