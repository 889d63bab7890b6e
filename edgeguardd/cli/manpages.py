"""docs/man/: edgeguardd(8), edgeguardctl(1) and edgeguardd.toml(5), from the argument parsers and the table of keys.

Must not: say anything that those do not say, beyond what a man page needs around them. Upstream: edgeguardd,
edgeguardctl, core.configtable. Downstream: cli.reference.
"""

import argparse
import re
from collections.abc import Iterator

from edgeguardd.cli import edgeguardctl, edgeguardd
from edgeguardd.core import configpolicy
from edgeguardd.core import configtable as table
from edgeguardd.core.configrows import Section

SEE_ALSO = (
    ("edgeguardd", 8),
    ("edgeguardctl", 1),
    ("edgeguardd.toml", 5),
    ("systemd.resource-control", 5),
    ("cgroups", 7),
)

# Of the last change to what the pages say beside the tables; man wants one.
DATE = "2026-11-30"

DAEMON_TEXT = """\
edgeguardd watches the memory of cgroups in which inference servers run. When one nears its limit it asks the server,
over a Unix socket, to trim its KV cache, to reduce its batch, to reject requests or to unload its model; it measures
what that gave, asks for more when it was not enough, and restores step by step. It lifts memory.high for the length of
a trim, and otherwise changes nothing unless a last resort is configured.

Without a configuration it guards the cgroup of whoever subscribes.
"""

SIGNALS = (
    ("SIGHUP", "Read the configuration again: all of it or, when it has a fault, none."),
    ("SIGTERM, SIGINT", "Put back what was lifted or frozen, say bye to the subscribers, and end with 0."),
)

FILES = (
    ("/etc/edgeguardd/edgeguardd.toml", "The configuration, if it exists. See edgeguardd.toml(5)."),
    ("/run/edgeguardd/edgeguardd.sock", "The subscriber socket."),
    ("/var/lib/edgeguardd", "What has to be put back after a crash, and the flight recorder."),
)

ENVIRONMENT = (
    ("NOTIFY_SOCKET, WATCHDOG_USEC", "Set by systemd: where state is told, and how often that it is alive."),
    (
        "LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES",
        "Set by systemd: sockets that it has opened, taken instead of own ones.",
    ),
)
CLIENT_ENVIRONMENT = (
    ("EDGEGUARDD_SOCKET", "Where clients look for the daemon; conformance sets it for the program that it tests."),
)

EXAMPLES = (
    ("edgeguardctl doctor --strict", "Whether this machine is fit; 1 also for what is only coarser or riskier."),
    ("edgeguardctl check-config /etc/edgeguardd/edgeguardd.toml", "Every fault of the configuration, before a reload."),
    ("edgeguardctl status", "Targets, levels, subscribers, and the last commands with what they gave back."),
    (
        "journalctl -k -b -1 | edgeguardctl oom -",
        "Whose limit was met in the boot before this one, and what to change.",
    ),
)

CONFIG_EXAMPLE = """\
[defaults]
elevated = "50%"

[[target]]
name = "llm"
unit = "llama.service"
critical = {headroom = "256M"}

[target.ladder]
high = ["trim_kv_cache", {action = "reduce_batch", max_batch_ratio = "25%", deadline = "2s"}]

[target.last_resort]
emergency = [{action = "freeze", max_freeze = "5s"}, "restart"]

[[machine.device]]
name = "gpu"
kind = "nvml"

[[oom_score]]
name = "llm"
unit = "llama.service"
value = 500
"""

CONFIG_TEXT = """\
The file is TOML. It may be empty or missing: every key has a default. Sizes are bytes or "512M" (base 1024), durations
are seconds or "500ms", shares are 0.6 or "60%". `edgeguardctl check-config FILE` names every fault with its line and
what to do.
"""


def pages() -> dict[str, str]:
    """File name -> roff (man(7)) of each page."""
    return {"edgeguardd.8": _daemon(), "edgeguardctl.1": _control(), "edgeguardd.toml.5": _config()}


def _daemon() -> str:
    parser = edgeguardd.parser()
    run = dict(_commands(parser))["run"]
    parts = [_head("edgeguardd", 8, "memory guard for inference servers"), _synopsis(parser, run)]
    parts += [".SH DESCRIPTION\n", _paragraphs(DAEMON_TEXT), _paragraphs(str(run.description))]
    parts += [".SH OPTIONS\n", _options(run), ".SH OTHER COMMANDS\n"]
    for name, command in _commands(parser):
        if name != "run":
            parts += [f".SS {_text(name)}\n", _paragraphs(str(command.description)), _options(command)]
    parts += [".SH SIGNALS\n", _tagged(SIGNALS)]
    parts += [".SH EXIT STATUS\n", _paragraphs(str(parser.epilog)), ".SH ENVIRONMENT\n", _tagged(ENVIRONMENT)]
    return "".join([*parts, ".SH FILES\n", _tagged(FILES), _see_also("edgeguardd")])


def _control() -> str:
    parser = edgeguardctl.parser()
    parts = [_head("edgeguardctl", 1, "look at edgeguardd and at what it guards"), ".SH SYNOPSIS\n"]
    parts += [
        f".B edgeguardctl\n{_text('COMMAND [OPTION]...')}\n",
        ".SH DESCRIPTION\n",
        _paragraphs(str(parser.description)),
    ]
    parts.append(".SH COMMANDS\n")
    for name, command in _commands(parser):
        parts += [f".SS {_text(name)}\n", _paragraphs(str(command.description)), _options(command)]
        for inner, below in _commands(command):
            parts += [
                f".TP\n.B {_text(f'{name} {inner}')}\n",
                f"{_text(str(below.description))}\n.RS\n",
                _options(below),
                ".RE\n",
            ]
    parts += [".SH EXIT STATUS\n", _paragraphs(str(parser.epilog)), ".SH ENVIRONMENT\n", _tagged(CLIENT_ENVIRONMENT)]
    return "".join([*parts, ".SH EXAMPLES\n", _tagged(EXAMPLES), _see_also("edgeguardctl")])


def _config() -> str:
    parts = [
        _head("edgeguardd.toml", 5, "configuration of edgeguardd"),
        ".SH SYNOPSIS\n/etc/edgeguardd/edgeguardd.toml\n",
    ]
    parts += [".SH DESCRIPTION\n", _paragraphs(CONFIG_TEXT)]
    for section in table.SECTIONS:
        parts += [
            f".SH {_text(section.title if section.header else 'TOP OF THE FILE')}\n",
            _paragraphs(section.doc),
            _keys(section),
        ]
        step = {configpolicy.LADDER: configpolicy.STEP, configpolicy.LAST_RESORT: configpolicy.RESORT_STEP}.get(section)
        if step is not None:
            parts += [".PP\nA step:\n", _keys(step)]
    return "".join([*parts, ".SH EXAMPLE\n", _literal(CONFIG_EXAMPLE), _see_also("edgeguardd.toml")])


def _keys(section: Section) -> str:
    tagged = []
    for row in section.rows:
        default = section.default(row)
        shown = "" if default is None else f" Default: {row.kind.show(default)}."
        tagged.append((row.key, f"{row.doc} Accepts {row.kind.accepts}.{shown}"))
    return _tagged(tagged)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _synopsis(parser: argparse.ArgumentParser, command: argparse.ArgumentParser) -> str:
    usage = re.sub(r"\s+", " ", command.format_usage().removeprefix("usage: ")).strip()
    return f".SH SYNOPSIS\n{_text(usage)}\n.br\n{_text(parser.prog)} \\-\\-version\n"


def _options(parser: argparse.ArgumentParser) -> str:
    tagged = []
    for action in parser._actions:
        if action.dest == "help" or isinstance(action, argparse._SubParsersAction):
            continue
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        names = ", ".join(action.option_strings)
        spelled = f"{names} {value}" if names and action.nargs != 0 else names or str(value)
        tagged.append((spelled, action.help or ""))
    return _tagged(tagged)


def _head(name: str, number: int, purpose: str) -> str:
    return f'.TH "{name.upper()}" "{number}" "{DATE}" "edgeguardd" ""\n.SH NAME\n{name} \\- {purpose}\n'


def _see_also(name: str) -> str:
    others = [f".BR {other} ({number})" for other, number in SEE_ALSO if other != name]
    return ".SH SEE ALSO\n" + " ,\n".join(others) + "\n"


def _tagged(pairs: "tuple[tuple[str, str], ...] | list[tuple[str, str]]") -> str:
    return "".join(f".TP\n.B {_text(tag)}\n{_text(text) or '.'}\n" for tag, text in pairs)


def _paragraphs(text: str) -> str:
    # Not before the first: a heading begins a paragraph, and mandoc warns of a second beginning.
    return ".PP\n".join(f"{_text(paragraph)}\n" for paragraph in text.strip().split("\n\n"))


def _literal(text: str) -> str:
    """Lines as they are."""
    return ".EX\n" + "".join(f"{_verbatim(line)}\n" for line in text.splitlines()) + ".EE\n"


def _verbatim(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _text(text: str) -> str:
    """One line of roff: Markdown's code marks gone, nothing in it taken for a request or an escape."""
    line = re.sub(r"\s+", " ", text.replace("`", "")).strip()
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
