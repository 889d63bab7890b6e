"""Keeps out of the daemon what its libraries import and it never uses: 7 MiB of a budget of 32.

asyncio and prometheus_client import `ssl` for TLS connections; hashlib takes OpenSSL's digests where it finds them, and
Python's own where not. prometheus_client imports parts of an HTTP server and of a client for ways to serve and to push
that are not taken here; structlog and msgspec take what somebody may have installed beside them; asyncinotify asks
ctypes.util where libc is, which runs ldconfig, though the process has it loaded. While the daemon's modules are
imported, and only then, a module that has every name and can do nothing stands in the place of each, or the name is
said to be missing. Whoever imports one afterwards gets the real one (docs/adr/0011-no-openssl-in-the-daemon.md).

Must not: stay in sys.modules. Upstream: cli.edgeguardd. Downstream: nothing.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Imported for names and classes.
UNUSED = ("ssl", "http.server", "urllib.error", "urllib.request", "wsgiref.simple_server")
# Imported where they are, done without where not.
OPTIONAL = ("better_exceptions", "typing_extensions")
# Where Python keeps its own SHA-256: up to 3.11, and from 3.12 on.
_OWN_DIGESTS = ("_sha256", "_sha2")


class _Unable(ModuleType):
    """Every public name is an exception class of its own: fit for annotations, bases, defaults and `except`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class _NoSearch(ModuleType):
    """In the place of ctypes.util: no library is found, so that asyncinotify takes what the process has loaded."""

    @staticmethod
    def find_library(_: str) -> None:
        """Nothing."""


@contextmanager
def without_unused() -> Iterator[None]:
    """Import what is imported inside without all that, as far as it is not there already."""
    stand_ins: dict[str, Any] = {name: _Unable(name) for name in UNUSED} | dict.fromkeys(OPTIONAL)
    stand_ins["ctypes.util"] = _NoSearch("ctypes.util")
    if any(importlib.util.find_spec(name) for name in _OWN_DIGESTS):
        stand_ins["_hashlib"] = None
    placed = [name for name in stand_ins if name not in sys.modules]
    sys.modules.update({name: stand_ins[name] for name in placed})
    searched = "ctypes.util" in placed
    if searched:
        # "import ctypes.util" binds the package only, and takes for granted that the module is in it.
        vars(ctypes)["util"] = stand_ins["ctypes.util"]
    try:
        yield
    finally:
        for name in placed:
            del sys.modules[name]
        if searched:
            del vars(ctypes)["util"]
