"""Config -> TOML text that reads back as the same Config: the commented example, and what check-config shows.

Must not: write files. Upstream: configtable, configpolicy. Downstream: cli.check_config, cli.reference.
"""

import textwrap
from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.core import configpolicy, configprovision, configscores
from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config, Policy, TargetSpec
from edgeguardd.core.configrows import Row, Section

_WIDTH = 100


def render(config: Config) -> str:
    """The configuration in force, every key written out; what is not set stands there as a comment."""
    lines: list[str] = []
    for section, values in _parts(config):
        lines += _block(section, values)
        if section is table.MACHINE:
            for device in config.machine.devices:
                lines += _block(table.DEVICE, device)
        if section is configprovision.PROVISION:
            for one in config.provision.slices:
                lines += _block(configprovision.SLICE, one)
            for service in config.provision.services:
                lines += _block(configprovision.SERVICE, service)
        if section is table.SOCKET:
            for watch in config.pressure_watches:
                lines += _block(table.WATCH, watch)
    for rule in config.oom_scores:
        lines += _block(configscores.OOM_SCORE, rule)
    for spec in config.targets:
        lines += _target(spec)
    return "\n".join(lines).strip() + "\n"


def example() -> str:
    """Every key at its default with its sentence; keys without a default, and arrays of tables, as comments."""
    lines = [
        "# edgeguardd.toml: every key at its default. An empty file, or none, means the same.",
        '# Sizes are bytes or "512M" (base 1024), durations are seconds or "500ms", shares are 0.6 or "60%".',
        "# Check a change with `edgeguardctl check-config FILE`; put it in force by sending edgeguardd SIGHUP",
        "# (`systemctl reload edgeguardd` where it runs as a service).",
    ]
    for section, values in _parts(Config()):
        keys = []
        for row in section.rows:
            value = getattr(values, row.field)
            keys += [*_comment(row.doc), _sample(section, row) if value is None else _pair(row, value)]
        lines += ["", *_comment(section.doc), *([section.title] if section.header else []), *keys]
        if section is table.MACHINE:
            lines += _commented(table.DEVICE)
        if section is configprovision.PROVISION:
            lines += [*_commented(configprovision.SLICE), *_commented(configprovision.SERVICE)]
        if section is table.SOCKET:
            lines += _commented(table.WATCH)
    lines += _commented(configscores.OOM_SCORE)
    lines += _commented(table.TARGET)
    return "\n".join(lines) + "\n"


# Values that show the form of keys which have no default.
_SAMPLES = {
    ".cgroup_root": '"/sys/fs/cgroup"',
    "socket.group": '"edgeguardd"',
    "pressure_watch.path": '"/run/edgeguardd/pressure.sock"',
    "pressure_watch.target": '"llm"',
    "pressure_watch.group": '"edgeguardd"',
    "gate.agent_port": "9465",
    "machine.device.name": '"gpu"',
    "machine.device.kind": '"nvml"',
    "machine.device.path": '"/run/npu/memory"',
    "defaults.static": '"6G"',
    "oom_score.name": '"llm"',
    "oom_score.value": "500",
    "oom_score.unit": '"llama.service"',
    "oom_score.cgroup": '"/kubepods.slice/*/cri-*.scope"',
    "oom_score.exe": '"/usr/local/bin/llama-server"',
    "oom_score.comm": '"llama-server"',
    "target.name": '"llm"',
    "target.path": '"/system.slice/llama.service"',
    "target.unit": '"llama.service"',
    "target.glob": '"/kubepods.slice/*/llm-*.scope"',
    **{f"{header}.{key}": value for header, keys in configprovision.SAMPLES.items() for key, value in keys.items()},
}


def _sample(section: Section, row: Row) -> str:
    return f"#{row.key} = {_SAMPLES[f'{section.header}.{row.key}']}"


def _commented(section: Section) -> list[str]:
    """One table of an array, all of it as comments."""
    lines = ["", *_comment(section.doc), f"#{section.title}"]
    for row in section.rows:
        default = section.default(row)
        lines += [*_comment(row.doc), _sample(section, row) if default is None else f"#{_pair(row, default)}"]
    return lines


def _parts(config: Config) -> Iterator[tuple[Section, Struct]]:
    """The tables that stand once in a file, each with its values."""
    yield table.TOP, config
    for section in table.SECTIONS:
        if not section.many and section.header and "." not in section.header:
            yield section, getattr(config, section.header)
    yield configpolicy.LADDER, config.defaults.ladder
    yield configpolicy.LAST_RESORT, config.defaults.last_resort


def _target(spec: TargetSpec) -> list[str]:
    policy: Policy = spec.policy
    return [
        *_block(table.TARGET, spec),
        *_pairs(configpolicy.DEFAULTS, policy, unset="defaults"),
        *["", "[target.ladder]", *_pairs(configpolicy.LADDER, policy.ladder)],
        *["", "[target.last_resort]", *_pairs(configpolicy.LAST_RESORT, policy.last_resort)],
    ]


def _block(section: Section, values: Struct) -> list[str]:
    # Of a table that may stand many times, a key without a value is one that does not belong to it.
    unset = None if section.many else section.header
    return [*(["", section.title] if section.header else []), *_pairs(section, values, unset=unset)]


def _pairs(section: Section, values: Struct, *, unset: str | None = None) -> list[str]:
    """The keys with their values; those without one as comments, with the sample of the section `unset`."""
    found = []
    for row in section.rows:
        value = getattr(values, row.field)
        if value is not None:
            found.append(_pair(row, value))
        elif unset is not None:
            found.append(f"#{row.key} = {_SAMPLES[f'{unset}.{row.key}']}  # not set")
    return found


def _pair(row: Row, value: object) -> str:
    return f"{row.key} = {row.kind.show(value)}"


def _comment(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent="# ", subsequent_indent="# ")
