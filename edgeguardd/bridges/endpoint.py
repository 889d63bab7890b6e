"""Where a server or a gate listens, as it is written: http://HOST:PORT/PREFIX, https://…, unix:/PATH.

Must not: connect. Upstream: nothing. Downstream: cli.bridge, calls, gate.
"""

import urllib.parse

from msgspec import Struct

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Endpoint(Struct, frozen=True):
    """Where a server listens: a Unix socket's path, or host and port. `prefix` goes before each path."""

    host: str
    port: int = 0
    path: str | None = None
    tls: bool = False
    prefix: str = ""

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.prefix}"

    @property
    def authority(self) -> str:
        """The Host field."""
        return "localhost" if self.path is not None else str(self).partition("//")[2].partition("/")[0]


def endpoint(word: str) -> Endpoint:
    """From http://HOST[:PORT][/PREFIX], https://… or unix:/PATH. Raises ValueError("what is wrong; remedy")."""
    if word.startswith("unix:"):
        path = word.removeprefix("unix:")
        if not path.startswith("/") or not path.isprintable():
            raise ValueError("the socket's path is not absolute; write unix:/run/llama.sock")
        return Endpoint("localhost", path=path)
    try:
        parts = urllib.parse.urlsplit(word)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as the resolver will
    except ValueError:
        raise ValueError("it is no URL; write http://127.0.0.1:8080") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("it is no plain URL; write http://127.0.0.1:8080, https://HOST:PORT or unix:/PATH")
    if not (word.isascii() and word.isprintable()) or " " in word:
        raise ValueError("it holds a character that no URL has; write it in ASCII, escaped with %")
    prefix = parts.path.rstrip("/")
    return Endpoint(parts.hostname, port or _DEFAULT_PORTS[parts.scheme], None, parts.scheme == "https", prefix)
