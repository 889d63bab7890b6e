"""Lines out of a stream of bytes, for both ends of the socket.

Must not: know messages or sockets. Upstream: wire (the longest line). Downstream: serve.connection, client.
"""

from edgeguardd.core.wire import MAX_LINE_BYTES, too_long


class LineBuffer:
    """Bytes in as they arrive, whole lines out. Holds at most one long line and the last chunk fed.

    A line over MAX_LINE_BYTES raises ProtocolError("line_too_long") once; what follows it is read as usual.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._start = 0
        self._scanned = 0
        self._skipping = False

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take in what was read."""
        self._bytes += chunk

    def end(self) -> None:
        """The input is over: what is left counts as a line."""
        if len(self._bytes) > self._start:
            self._bytes += b"\n"

    def next_line(self) -> bytes | None:
        """The next whole line without its newline; None when more bytes are needed. Raises ProtocolError."""
        while True:
            at = self._bytes.find(b"\n", self._scanned)
            if at < 0:
                self._keep_rest()
                return None
            start, self._start, self._scanned = self._start, at + 1, at + 1
            if self._skipping:
                self._skipping = False
                continue
            if at - start > MAX_LINE_BYTES:
                raise too_long()
            return bytes(self._bytes[start:at])

    def _keep_rest(self) -> None:
        del self._bytes[: self._start]
        self._start = 0
        over = len(self._bytes) > MAX_LINE_BYTES
        if over or self._skipping:
            self._bytes.clear()
        self._scanned = len(self._bytes)
        if over and not self._skipping:
            self._skipping = True
            raise too_long()
