"""A KV cache of real pages: blocks of anonymous memory per conversation, returned to the kernel when dropped.

Must not: decide when to trim, or know sockets. Upstream: server. Downstream: mmap.
"""

import mmap
from collections import OrderedDict

# What a small model with grouped attention keeps, quantised: 16 layers x 2 (K, V) x 8 heads x 64 values x 1 byte.
BYTES_PER_TOKEN = 16 * 1024
TOKENS_PER_BLOCK = 16
BLOCK_BYTES = BYTES_PER_TOKEN * TOKENS_PER_BLOCK


class Conversation:
    """The blocks of one conversation; `tokens` of them are filled. In use: a request works on it, so it stays."""

    def __init__(self) -> None:
        self.blocks: list[mmap.mmap] = []
        self.tokens = 0
        self.users = 0

    @property
    def size(self) -> int:
        """Bytes of memory it holds."""
        return len(self.blocks) * BLOCK_BYTES

    def append(self, entry: bytes) -> None:
        """Keep the keys and values of one more token."""
        block, place = divmod(self.tokens, TOKENS_PER_BLOCK)
        if block == len(self.blocks):
            self.blocks.append(mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.blocks[block][place * BYTES_PER_TOKEN : (place + 1) * BYTES_PER_TOKEN] = entry
        self.tokens += 1

    def release(self) -> int:
        """Unmap everything; the bytes that went back to the kernel."""
        freed = self.size
        for block in self.blocks:
            block.close()
        self.blocks.clear()
        self.tokens = 0
        return freed


class KvCache:
    """All conversations, the least recently used first."""

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: the server's own idea of how large its cache may become."""
        self._limit_bytes = limit_bytes
        self._conversations: OrderedDict[int, Conversation] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return sum(each.size for each in self._conversations.values())

    def use(self, number: int) -> Conversation:
        """The conversation, new if it is not known, marked as just used; give it back with done()."""
        if self.size > self._limit_bytes:
            self.trim(self.size - self._limit_bytes)
        conversation = self._conversations.setdefault(number, Conversation())
        self._conversations.move_to_end(number)
        conversation.users += 1
        return conversation

    def done(self, conversation: Conversation) -> None:
        """A request has finished with it."""
        conversation.users -= 1

    def trim(self, size: int) -> int:
        """Drop whole conversations, the least recently used first, until `size` bytes are free; how many it was.

        Conversations that a request is working on stay.
        """
        freed = 0
        for number, conversation in list(self._conversations.items()):
            if freed >= size:
                break
            if conversation.users == 0:
                freed += conversation.release()
                del self._conversations[number]
        return freed
