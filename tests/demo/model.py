"""The work of a language model in small: weights mapped from a file, real computation per token, documents from disk.

Must not: cache anything itself (kvcache does), know sockets. Upstream: server. Downstream: hashlib, mmap, the disk.
A token's entry depends on conversation and position alone, so an answer's checksum shows whether a trimmed and
recomputed cache holds the same as one that was never touched.
"""

import hashlib
import mmap
import os
import time
import zlib
from collections.abc import Callable

from tests.demo.kvcache import BYTES_PER_TOKEN, Conversation

WEIGHTS_BYTES = 24 * 1024 * 1024
# The part of the weights that one token's computation reads; the whole file is read over and over.
WEIGHTS_SLICE = 256 * 1024
# Retrieval: a large index, of which each request reads a passage through the page cache.
INDEX_BYTES = 160 * 1024 * 1024
PASSAGE_BYTES = 1280 * 1024
PIECE = 1024 * 1024
# What one new token takes in all, as on a small board; rounds() turns it into an amount of work.
TOKEN_S = 0.0015
ROUND_BYTES = 4096
CALIBRATION_S = 1.0
CALIBRATION_PASSES = 50
CALIBRATION_TOKENS = 1024
# New tokens look at the last blocks only (sliding-window attention); once per request all is looked at.
WINDOW_BLOCKS = 4


class Model:
    """Weights and index of one server process."""

    def __init__(self, weights_path: str, index_path: str, rounds: int) -> None:
        """Map and read the weights. `rounds` says how much work a token is."""
        with open(weights_path, "rb") as file:
            self._weights = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._index = os.open(index_path, os.O_RDONLY)
        self._rounds = rounds
        self._position = 0
        for _ in range(0, WEIGHTS_BYTES, WEIGHTS_SLICE):
            self._read_weights()

    def retrieve(self, seed: int) -> int:
        """Read a passage of the index, as retrieval before an answer does; a checksum of it."""
        passages = INDEX_BYTES // PASSAGE_BYTES
        return zlib.crc32(os.pread(self._index, PASSAGE_BYTES, (seed * 7919 % passages) * PASSAGE_BYTES))

    def compute(self, conversation_number: int, position: int) -> bytes:
        """Keys and values of one token."""
        self._read_weights()
        return entry(conversation_number, position, self._rounds)

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


def entry(conversation: int, position: int, passes: int) -> bytes:
    """BYTES_PER_TOKEN bytes that cost `passes` passes of hashing and depend on the token's place alone."""
    stage = b"%d/%d" % (conversation, position)
    for _ in range(passes):
        stage = hashlib.shake_128(stage).digest(ROUND_BYTES)
    return hashlib.shake_128(stage).digest(BYTES_PER_TOKEN)


def rounds() -> int:
    """How many passes make a token take TOKEN_S on this machine, kernel and page faults included; at least one."""
    weights, conversation = bytes(WEIGHTS_SLICE), Conversation()

    def token() -> None:
        zlib.adler32(weights)
        conversation.append(entry(0, 0, passes=0))
        if conversation.tokens == CALIBRATION_TOKENS:
            conversation.release()

    # The mean, not the least: on a machine that is busy with other things they cost every token its share.
    base_s = mean_s(token)
    pass_s = mean_s(lambda: entry(0, 0, CALIBRATION_PASSES)) / CALIBRATION_PASSES
    conversation.release()
    return max(1, round((TOKEN_S - base_s) / pass_s))


def mean_s(work: Callable[[], object]) -> float:
    """What some work takes, over CALIBRATION_S."""
    times, started = 0, time.perf_counter()
    while (took_s := time.perf_counter() - started) < CALIBRATION_S:
        work()
        times += 1
    return took_s / times


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
