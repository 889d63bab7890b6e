"""Config -> TOML text that reads back as the same Config: the commented example, and what check-config shows.

Must not: write files. Upstream: configtable. Downstream: cli.check_config, cli.reference.
"""

import textwrap
from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config, Policy, TargetSpec
from edgeguardd.core.configtable import Row, Section

_WIDTH = 100


def render(config: Config) -> str:
    """The configuration in force, every key written out; what has no value is left out."""
    lines: list[str] = []
    for section, values in _parts(config):
        keys = [_pair(row, value) for row in section.rows if (value := getattr(values, row.field)) is not None]
        lines += _block(section.header, keys)
    for spec in config.targets:
        lines += _target(spec)
    return "\n".join(lines).strip() + "\n"


def example() -> str:
    """Every key at its default with its sentence; keys without a default, and a target, as comments."""
    lines = [
        "# edgeguardd.toml: every key at its default. An empty file, or none, means the same.",
        '# Sizes are bytes or "512M" (base 1024), durations are seconds or "500ms", shares are 0.6 or "60%".',
        "# Check a change with `edgeguardctl check-config FILE`; put it in force with `systemctl reload edgeguardd`.",
    ]
    for section, values in _parts(Config()):
        keys = []
        for row in section.rows:
            value = getattr(values, row.field)
            keys += _comment(row.doc)
            keys.append(f"#{row.key} = {_SAMPLES[row.key]}" if value is None else _pair(row, value))
        lines += ["", *_comment(section.doc), *_block(section.header, keys)[1 if section.header else 0 :]]
    lines += ["", *_comment(table.TARGET.doc), "#[[target]]"]
    for row in table.TARGET.rows:
        lines += [*_comment(row.doc), f"#{row.key} = {_SAMPLES[row.key]}"]
    return "\n".join(lines) + "\n"


# Values that show the form of keys which have no default.
_SAMPLES = {
    "cgroup_root": '"/sys/fs/cgroup"',
    "group": '"edgeguard"',
    "static": '"6G"',
    "name": '"llm"',
    "path": '"/system.slice/llama.service"',
    "unit": '"llama.service"',
    "glob": '"/kubepods.slice/*/llm-*.scope"',
}


def _parts(config: Config) -> Iterator[tuple[Section, Struct]]:
    yield table.TOP, config
    for section in (table.SOCKET, table.HTTP, table.SAMPLING, table.LOG, table.DEFAULTS):
        yield section, getattr(config, section.header)
    yield table.LADDER, config.defaults.ladder


def _target(spec: TargetSpec) -> list[str]:
    own = [_pair(row, value) for row in table.TARGET.rows if (value := getattr(spec, row.field)) is not None]
    policy: Policy = spec.policy
    keys = [_pair(row, value) for row in table.POLICY_ROWS if (value := getattr(policy, row.field)) is not None]
    rungs = [_pair(row, getattr(policy.ladder, row.field)) for row in table.LADDER.rows]
    return ["", "[[target]]", *own, *keys, *_block("target.ladder", rungs)]


def _block(header: str, keys: list[str]) -> list[str]:
    return ["", f"[{header}]", *keys] if header else keys


def _pair(row: Row, value: object) -> str:
    return f"{row.key} = {row.kind.show(value)}"


def _comment(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent="# ", subsequent_indent="# ")
