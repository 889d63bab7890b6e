"""Where the daemon calls the kernel: every such call in its source, found by reading the source.

Must not: know which calls there are. A call that is new in the daemon is a new site, and is failed like the others.
Upstream: the source of edgeguardd. Downstream: afflicted (fails them), the unit test of what is found.
"""

import ast
import functools
import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

# Where calls into the kernel are made by the daemon's own code.
PACKAGES = ("edgeguardd", "edgeguardd.kernel", "edgeguardd.serve")
# What is started as a program, or runs before the daemon does.
NOT_THE_DAEMON = ("edgeguardd.__main__", "edgeguardd.standins")

# Modules whose functions are calls into the kernel, as the daemon's modules name them.
GATES = ("os", "open", "select", "socket", "fcntl", "resource")

# No call into the kernel, or one that has no way to fail.
HARMLESS = frozenset(
    {
        *("os.strerror", "os.sysconf", "os.fsencode", "os.fsdecode", "os.major", "os.minor", "os.getpid", "os.geteuid"),
        *("os.uname", "os.umask", "os.getuid", "os.getgid", "os.set_inheritable", "os.environ.get", "os.environ.pop"),
        *("socket.ntohl", "socket.htons", "socket.inet_pton", "resource.getrlimit", "select.poll"),
    }
)


@dataclass(frozen=True)
class Site:
    """One call in the source: `os.pread` of line 221 of edgeguardd.kernel.cgroupfs, in the function `_read`."""

    module: str
    line: int
    call: str
    function: str = ""

    @property
    def key(self) -> str:
        """As plans and tables name it."""
        return f"{self.module}:{self.line}:{self.call}"


def modules() -> list[str]:
    """The names of all modules in question, in order."""
    found = set()
    for package in PACKAGES:
        inside = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
        found |= {name for _, name, is_package in inside if not is_package}
    return sorted(found - set(NOT_THE_DAEMON))


@functools.cache
def sites() -> tuple[Site, ...]:
    """Every call, by module and line."""
    return tuple(site for module in modules() for site in sites_of(module, _source(module)))


def sites_of(module: str, source: str) -> list[Site]:
    """The calls in one module's source. A call over several lines has the line it begins on, as frames tell it."""
    return sorted(set(_found(module, ast.parse(source), "")), key=lambda site: (site.line, site.call))


def _found(module: str, node: ast.AST, function: str) -> Iterator[Site]:
    for inner in ast.iter_child_nodes(node):
        named = inner.name if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _called(module, inner, function)
        yield from _found(module, inner, named)


def _called(module: str, node: ast.AST, function: str) -> Iterator[Site]:
    if not isinstance(node, ast.Call):
        return
    name = _dotted(node.func)
    # What os.path asks and cannot learn, it answers with False: no error comes out of it.
    if name is None or name in HARMLESS or name.startswith("os.path."):
        return
    if name.split(".")[0] in GATES:
        yield Site(module, node.lineno, name, function)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(os.fspath(spec.origin), encoding="utf-8") as file:
        return file.read()
