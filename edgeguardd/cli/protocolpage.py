"""docs/reference/protocol.md, made from the message types of core.wire, so that it cannot say anything else.

Must not: hold a fact that wire or model holds already, or prose (protocoltext does). Upstream: core.wire,
protocoltext, conformance.cases. Downstream: cli.reference.
"""

import json
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, inspect

from edgeguardd.cli.protocoltext import ACTIONS, CONFORMANCE_TEXT, MEANINGS, OUTCOMES, SESSION, TEXT
from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.script import LOST_AFTER_S, Case, lines_of
from edgeguardd.core import wire
from edgeguardd.core.model import Action, InForce, Level, Outcome, Parameters


def page() -> str:
    """The whole page."""
    session = "\n".join(f"{side} {_spelled(message)}".rstrip() for side, message in SESSION)
    parts = [TEXT.replace("@SESSION@", session)]
    for program in ("guarded", "server"):
        parts[0] = parts[0].replace(f"@{program.upper()}@", _program(program))
    both, client = _split(typing.get_args(wire.ClientMessage), typing.get_args(wire.ServerMessage))
    _, server = _split(typing.get_args(wire.ServerMessage), typing.get_args(wire.ClientMessage))
    for title, messages, required in (
        ("Client to server", client, "required"),
        ("Server to client", server, "always there"),
        ("Both ways", both, "required"),
    ):
        parts.append(f"\n## {title}\n")
        parts += [_message(message, required) for message in messages]
    parts.append(
        "\n## Commands\n\n" + _rows("Action", "What to do", {action.value: ACTIONS[action] for action in Action})
    )
    parts.append(
        "\nParameters, each present only where it applies:\n\n" + _fields(Parameters, "parameters", "always there")
    )
    parts.append("\nHow a command can end, as `edgeguardctl status`, log and metrics call it:\n\n")
    parts.append(_rows("Outcome", "When", {outcome.value: OUTCOMES[outcome] for outcome in Outcome}))
    levels = ", ".join(f"`{level.word}`" for level in Level)
    parts.append(f"\nLevels, from best to worst: {levels}. Without restrictions `welcome` says {_in_force()}.\n")
    parts.append("\n## Errors\n\n| Code | Meaning | Connection |\n|---|---|---|\n")
    parts += [
        f"| `{code}` | {row.meaning} | {'ends' if row.closes else 'stays'} |\n"
        for code, row in wire.ERROR_CODES.items()
    ]
    parts.append(CONFORMANCE_TEXT)
    parts += [_case(case) for case in CASES]
    return "".join(parts)


def _program(name: str) -> str:
    """One of the smallest client's files; the page is made in a checkout."""
    return (Path(__file__).parents[2] / "packaging/examples/smallest-client" / f"{name}.py").read_text()


def _case(case: Case) -> str:
    rule, transcript = case.rule, "\n".join(lines_of(case))
    if case.lost_after_s != LOST_AFTER_S:
        rule += f" Here it counts as lost after {case.lost_after_s:g} s."
    return f"\n### `{case.name}`\n\n{rule}\n\n```text\n{transcript}\n```\n"


def _split(
    own: tuple[type[Struct], ...], other: tuple[type[Struct], ...]
) -> tuple[list[type[Struct]], list[type[Struct]]]:
    """The message types that both directions have, and those of one alone."""
    return [message for message in own if message in other], [message for message in own if message not in other]


def _spelled(message: wire.ClientMessage | wire.ServerMessage | str) -> str:
    return message if isinstance(message, str) else wire.encode(message).decode().rstrip("\n")


def _in_force() -> str:
    return ", ".join(f"`{name}` {json.dumps(value)}" for name, value in msgspec.structs.asdict(InForce()).items())


def _message(message: type[Struct], required: str) -> str:
    tag = str(message.__struct_config__.tag)
    sentence = " ".join((message.__doc__ or "").split())
    return f"\n### `{tag}`\n\n{sentence}\n\n{_fields(message, tag, required)}"


def _fields(struct: type[Struct], owner: str, required: str) -> str:
    lines = ["| Field | Type | When left out | Meaning |", "|---|---|---|---|"]
    for field, kind in _typed_fields(struct):
        default = required if field.required else _default(field)
        meaning = MEANINGS.get(f"{owner}.{field.encode_name}", MEANINGS.get(field.encode_name, ""))
        lines.append(f"| `{field.encode_name}` | {kind} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _typed_fields(struct: type[Struct]) -> Iterator[tuple[inspect.Field, str]]:
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)  # noqa: S101 - every message is one
    for field in described.fields:
        yield field, type_words(field.type)


def _default(field: inspect.Field) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
    if value is None:
        return "null"
    return f"`{json.dumps(msgspec.to_builtins(value))}`"


def type_words(kind: inspect.Type) -> str:
    """A field's type as a JSON speaker reads it. Raises TypeError for a kind that no field has had so far."""
    if plain := _PLAIN_TYPES.get(type(kind)):
        return plain
    match kind:
        case inspect.UnionType():
            return " or ".join(type_words(part) for part in kind.types)
        case inspect.IntType():
            return "whole number" + (f" from {kind.ge}" if kind.ge is not None else "")
        case inspect.StrType():
            plainly = ", no control characters" if kind.pattern else ""
            return "text" + _bounds(kind.min_length, kind.max_length, f" characters{plainly}")
        case inspect.EnumType():
            return " or ".join(f"`{json.dumps(member.value)}`" for member in kind.cls)
        case inspect.VarTupleType() | inspect.ListType():
            return f"array{_bounds(kind.min_length, kind.max_length, '')} of {type_words(kind.item_type)}"
        case _:
            raise TypeError(f"cannot describe {kind}: teach type_words() its words")


_PLAIN_TYPES: dict[type[inspect.Type], str] = {
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.FloatType: "number",
    inspect.StructType: "object",
}


def _bounds(low: int | None, high: int | None, what: str) -> str:
    if high is None:
        return ""
    return f" ({low} to {high}{what})" if low else f" (at most {high}{what})"


def _rows(left: str, right: str, rows: dict[str, str]) -> str:
    return f"| {left} | {right} |\n|---|---|\n" + "".join(f"| `{key}` | {text} |\n" for key, text in rows.items())
