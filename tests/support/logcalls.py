"""Every log line that the source can write, read off the source itself.

Must not: import what it looks at. Upstream: tests. A line is a call of a logger's method or of Note with the event's
name as a literal; its fields are the keywords, or the keys of the dict that is given, also by a name in that function.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# Called with the event and with the fields as keywords; structlog takes exc_info for itself.
METHODS = {"log.debug", "log.info", "log.warning", "log.error", "write"}
NO_FIELDS = {"exc_info"}
# Called with a severity, the event, and the fields as a dict.
MAKERS = {"Note", "self._emit"}

Fields = frozenset[str]


def lines(package: Path, *, but_not: str) -> Iterator[tuple[str, Fields]]:
    """Event and fields of each place that writes a line, below `package`, except in the sub-package `but_not`."""
    for path in sorted(package.rglob("*.py")):
        if but_not not in path.relative_to(package).parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _lines_of(node)


def _lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, Fields]]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called, args = ast.unparse(node.func), node.args
        if called in METHODS and args and (event := _literal(args[0])):
            yield event, frozenset(_keywords(node))
        elif called in MAKERS and len(args) == 3 and (event := _literal(args[1])):
            yield event, frozenset(_keys(args[2], function, node.lineno))


def _keywords(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        name = keyword.arg or f"**{ast.unparse(keyword.value)}"
        if name not in NO_FIELDS:
            yield name


def _keys(node: ast.expr, function: ast.AST, before: int) -> Iterator[str]:
    """The keys of a dict: written here, or assigned to this name by the line before."""
    if isinstance(node, ast.Name):
        yield from _keys(_assigned(node.id, function, before), function, before)
        return
    assert isinstance(node, ast.Dict), f"line {before}: write the fields as a dict: {ast.unparse(node)}"
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            yield from _keys(value, function, before)
        else:
            name = _literal(key)
            assert name, f"line {before}: write the names of fields out: {ast.unparse(key)}"
            yield name


def _assigned(name: str, function: ast.AST, before: int) -> ast.expr:
    found: ast.expr | None = None
    at = 0
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and at < node.lineno <= before:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == name:
                found, at = node.value, node.lineno
    assert found is not None, f"line {before}: {name} is assigned nowhere in the function"
    return found


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
