"""What of a message's head goes on to the other side of the gate, and how a request's target is read.

Must not: do I/O, decide who may in. Upstream: h11, endpoint. Downstream: gate.
"""

import posixpath
import re
import urllib.parse

import h11

from edgeguardd.bridges.endpoint import Endpoint

# RFC 9110 7.6.1: these are about one connection. Expect is answered here.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"proxy-authorization")
)
# Without them the message would be another one: a Connection field that names them is not obeyed.
_OF_THE_MESSAGE = frozenset((b"host", b"content-length", b"transfer-encoding"))
# RFC 9112 3.2.2: how a request is written to a proxy, and every server has to take it.
_ABSOLUTE = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)


def from_path_on(request: h11.Request) -> h11.Request | None:
    """The request with its target as a path, or "*"; None where it is neither, as in CONNECT.

    Of an absolute target the host counts, not the Host field (RFC 9112 3.2.2). So what is looked at here is what the
    server gets, however the client has written it.
    """
    if request.method == b"CONNECT":
        return None
    if request.target.startswith(b"/") or (request.method, request.target) == (b"OPTIONS", b"*"):
        return request
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        return None
    host, target = absolute.groups()
    headers = [(b"host", host), *((name, value) for name, value in request.headers if name != b"host")]
    target = target if target.startswith(b"/") else b"/" + target
    return h11.Request(method=request.method, target=target, headers=headers, http_version=request.http_version)


def path_of(target: bytes) -> str:
    """The path of a target as the most lenient of servers would read it: decoded, without empty steps, "." and ".."."""
    path = urllib.parse.unquote(re.split(b"[?#]", target, maxsplit=1)[0].decode("latin-1"))
    return "/" + posixpath.normpath(path).lstrip("/")


def target_of(request: h11.Request, at: Endpoint) -> bytes:
    """The target as the server gets it."""
    return at.prefix.encode() + request.target if request.target.startswith(b"/") else request.target


def request_of(request: h11.Request, at: Endpoint) -> h11.Request:
    """The request as the server gets it: on a connection of its own, with one length and one host."""
    headers = [(name, value) for name, value in kept(request.headers) if name != b"expect"]
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names:
        # RFC 9112 6.3: of both, the length does not count, and a server that took it would find a second request.
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    if b"host" not in names:
        headers.insert(0, (b"host", at.authority.encode()))  # HTTP/1.0 needs none: health checks of HAProxy's
    fields = [*headers, (b"connection", b"close")]
    return h11.Request(method=request.method, target=target_of(request, at), headers=fields)


def kept(headers: "h11._headers.Headers") -> list[tuple[bytes, bytes]]:
    """The fields that go on to the other side: none that are about one connection, nor those it names."""
    named = b",".join(value for name, value in headers if name == b"connection")
    dropped = _HOP_BY_HOP | ({word.strip().lower() for word in named.split(b",")} - _OF_THE_MESSAGE)
    return [(name, value) for name, value in headers if name not in dropped]
