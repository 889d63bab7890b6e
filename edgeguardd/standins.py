"""Keeps OpenSSL out of the daemon: 5 MiB of a budget of 32 for something that none of its sockets speaks.

asyncio and prometheus_client import `ssl` for what TLS connections would need, and use it only for those; hashlib
takes OpenSSL's digests where it finds them, and Python's own where not. While the daemon's modules are imported, and
only then, a module that has every name and can do nothing stands in the place of `ssl`, and `_hashlib` is said to be
missing. Whoever imports either afterwards gets the real one (docs/adr/0011-no-openssl-in-the-daemon.md).

Must not: stay in sys.modules. Upstream: cli.edgeguardd. Downstream: nothing.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Where Python keeps its own SHA-256: up to 3.11, and from 3.12 on.
_OWN_DIGESTS = ("_sha256", "_sha2")


class _NoTls(ModuleType):
    """Every public name is an exception class of its own: fit for annotations, defaults and `except`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


@contextmanager
def without_openssl() -> Iterator[None]:
    """Import what is imported inside without OpenSSL, as far as it is not there already."""
    stand_ins: dict[str, Any] = {"ssl": _NoTls("ssl")}
    if any(importlib.util.find_spec(name) for name in _OWN_DIGESTS):
        stand_ins["_hashlib"] = None
    placed = [name for name in stand_ins if name not in sys.modules]
    sys.modules.update({name: stand_ins[name] for name in placed})
    try:
        yield
    finally:
        for name in placed:
            del sys.modules[name]
