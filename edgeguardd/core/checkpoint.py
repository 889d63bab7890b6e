"""The engine with all it remembers <-> plain JSON values, so that a recording can begin in the middle of a run.

Must not: know a field of the engine. Whatever is reachable from it is carried over, so that a figure which the engine
learns to remember tomorrow is neither forgotten nor has to be listed here. What cannot be carried over (a function, an
open file, a class from elsewhere) raises TypeError, and a test plays random histories to see that nothing does.
Upstream: engine. Downstream: recording, replay. Why so: docs/adr/0008.

A value is itself when JSON has it, else a list that begins with a tag:
    ["e", class, value]  enum          ["t", …] tuple           ["F", …] frozenset      ["f", text]  inf, nan
    ["l", …] list        ["s", …] set  ["d", key, value, …]     ["q", maxlen, …] deque  ["i", text]  beyond 64 bits
    ["o", class, field, value, …]      an object of a class of edgeguardd.core
    ["r", n]                           the n-th list, set, dict, deque or object that can change: the very same one
Two holders of one object that can change hold one object afterwards as well. Frozen ones are written where they stand.
"""

import enum
import functools
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from edgeguardd.core.config import Policy
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import TargetAdded
from edgeguardd.errors import EdgeguardError

_HOME = "edgeguardd.core."
_CLASS = re.compile(r"[a-z_]+\.[A-Z][A-Za-z]*")
_INT64 = range(-(2**63), 2**63)
_PLAIN = frozenset({bool, str, type(None)})

Json = Any  # None, bool, int, float, str, or a list of these


class CheckpointError(EdgeguardError):
    """A checkpoint does not fit the engine of this version, or is no checkpoint."""


def encode(engine: Engine) -> Json:
    """The engine as JSON values. Raises TypeError where something cannot be carried over: a defect."""
    return _Writer().write(engine)


def decode(value: Json) -> Engine:
    """The engine back, ready for the next event. Raises CheckpointError; runs nothing but constructors of core."""
    try:
        engine = _Reader().read(value)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"cannot read a checkpoint: {str(error)[:200]}") from None
    if not isinstance(engine, Engine):
        raise CheckpointError("cannot read a checkpoint: it holds no engine")
    return engine


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._frozen: dict[int, Json] = {}
        self._unfinished: set[int] = set()

    def write(self, value: object) -> Json:  # noqa: PLR0911  one row a kind, the commonest first
        kind = type(value)
        if kind is int:
            return value if value in _INT64 else ["i", str(value)]
        if kind in _PLAIN:
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else ["f", repr(value)]
        if isinstance(value, enum.Enum):
            return ["e", _name(kind), value.value]
        if kind is tuple:
            return ["t", *self._each(value)]  # type: ignore[arg-type]  # it is a tuple
        if isinstance(value, frozenset):
            return ["F", *_sorted(self._each(value))]
        if isinstance(value, Struct) and value.__struct_config__.frozen:
            return self._write_frozen(value)
        return self._write_changeable(value)

    def _each(self, values: Iterable[object]) -> list[Json]:
        return [self.write(value) for value in values]

    def _write_frozen(self, value: Struct) -> Json:
        # Policies are large, and the same one stands in many places.
        known = self._frozen.get(id(value))
        if known is not None:
            return known
        numbered = len(self._numbers)
        written = self._fields("o", value, value.__struct_fields__)
        if len(self._numbers) == numbered:
            self._frozen[id(value)] = written
        return written

    def _write_changeable(self, value: object) -> Json:  # noqa: PLR0911  one row a kind
        number = self._numbers.get(id(value))
        if number is not None:
            if id(value) in self._unfinished:
                raise TypeError(f"cannot carry over {type(value).__name__}: it holds itself, through others")
            return ["r", number]
        self._numbers[id(value)] = len(self._numbers)
        match value:
            case list():
                return ["l", *self._each(value)]
            case set():
                return ["s", *_sorted(self._each(value))]
            case deque():
                return ["q", value.maxlen, *self._each(value)]
            case dict():
                return ["d", *self._each(part for pair in value.items() for part in pair)]
            case Struct():
                self._unfinished.add(id(value))
                written = self._fields("o", value, value.__struct_fields__)
                self._unfinished.remove(id(value))
                return written
            case _ if hasattr(value, "__dict__") and not callable(value):
                return self._fields("o", value, vars(value))
            case _:
                raise TypeError(f"cannot carry over a {type(value).__name__}")

    def _fields(self, tag: str, value: object, names: Iterable[str]) -> Json:
        written: list[Json] = [tag, _name(type(value))]
        for name in names:
            field = getattr(value, name)
            written += (name, field if type(field) in _PLAIN else self.write(field))
        return written


class _Reader:
    def __init__(self) -> None:
        self._made: list[object] = []

    def read(self, value: Json) -> Any:  # noqa: PLR0911  one row a tag
        if not isinstance(value, list):
            return value
        tag, *rest = value
        match tag:
            case "t":
                return tuple(self._each(rest))
            case "F":
                return frozenset(self._each(rest))
            case "e":
                name, plain = rest
                return _class(name, enum.Enum)(plain)
            case "f":
                return float(rest[0])
            case "i":
                return int(rest[0])
            case "r":
                return self._made[rest[0]]
            case "o":
                return self._read_object(*rest)
            case _:
                return self._read_container(tag, rest)

    def _each(self, values: Iterable[Json]) -> list[Any]:
        return [self.read(value) for value in values]

    def _read_container(self, tag: Json, rest: list[Json]) -> object:
        made: Any
        fill: Callable[[Any], object]
        match tag:
            case "l":
                made = list[Any]()
                fill = made.extend
            case "s":
                made = set[Any]()
                fill = made.update
            case "q":
                made = deque[Any](maxlen=rest.pop(0))
                fill = made.extend
            case "d":
                made = dict[Any, Any]()
                fill = lambda parts: made.update(zip(parts[::2], parts[1::2], strict=True))  # noqa: E731
            case _:
                raise ValueError(f"{tag!r:.20} is no tag")
        self._made.append(made)
        fill(self._each(rest))
        return made

    def _read_object(self, name: str, *parts: Json) -> object:
        fields: dict[str, Json] = dict(zip(parts[::2], parts[1::2], strict=True))
        kind = _class(name, object)
        if issubclass(kind, Struct):
            if list(fields) != list(kind.__struct_fields__):
                raise ValueError(f"{name} has other fields in this version")
            return self._read_struct(kind, fields)
        if set(fields) != _shapes().get(kind, set(fields)):
            raise ValueError(f"{name} has other fields in this version")
        made = kind.__new__(kind)
        self._made.append(made)
        for field, value in fields.items():
            setattr(made, field, self.read(value))
        return made

    def _read_struct(self, kind: type[Struct], fields: dict[str, Json]) -> Struct:
        if kind.__struct_config__.frozen:
            return kind(*self._each(fields.values()))
        # Its number comes before those of what it holds; it can only be made after them.
        number = len(self._made)
        self._made.append(None)
        made = kind(*self._each(fields.values()))
        self._made[number] = made
        return made


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_HOME):
        raise TypeError(f"cannot carry over a {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__.removeprefix(_HOME)}.{kind.__qualname__}"


def _class(name: object, base: type) -> Any:
    """A class of edgeguardd.core by the name that _name gave it. Imports nothing: the engine has imported its own."""
    if not isinstance(name, str) or not _CLASS.fullmatch(name):
        raise ValueError(f"{name!r:.60} names no class")
    module, _, word = name.rpartition(".")
    found = getattr(sys.modules.get(_HOME + module), word, None)
    if not (isinstance(found, type) and issubclass(found, base) and found.__module__ == _HOME + module):
        raise ValueError(f"there is no {name} in this version")
    return found


@functools.cache
def _shapes() -> dict[type, set[str]]:
    """What objects that are no Structs hold in this version, as an engine with one target shows it."""
    engine = Engine()
    engine.handle(TargetAdded("", "/", Policy()), 0.0)
    shapes: dict[type, set[str]] = {}
    seen: list[object] = [engine]
    while seen:
        value = seen.pop()
        if isinstance(value, Struct):
            seen += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            seen += value.values()
        elif type(value).__module__.startswith(_HOME) and not isinstance(value, enum.Enum):
            if type(value) not in shapes:
                seen += vars(value).values()
            shapes[type(value)] = set(vars(value))
    return shapes


def _sorted(values: list[Json]) -> list[Json]:
    """Sets have no order of their own; written, they get one, so that equal engines are written alike."""
    return sorted(values, key=msgspec.json.encode)
