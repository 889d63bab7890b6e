"""The reference pages and the example configuration are what the program says of itself, and complete."""

import contextlib
import inspect
import re
import shutil
import socket
import subprocess
import threading
import typing
from pathlib import Path

import msgspec
import pytest

from edgeguardd import client
from edgeguardd.cli import (
    clientpage,
    edgeguardctl,
    httppage,
    logpage,
    manpages,
    metricspage,
    policytext,
    protocoltext,
    reference,
)
from edgeguardd.cli.protocolpage import page, type_words
from edgeguardd.client import asgi, onnx
from edgeguardd.client.guard import Guard
from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.peer import Peer
from edgeguardd.conformance.script import How, bytes_of, lines_of
from edgeguardd.core import configpolicy, configtable, wire
from edgeguardd.core.commands import VERIFY_S
from edgeguardd.core.config import Config
from edgeguardd.core.configparse import read
from edgeguardd.core.model import Action, Outcome, Parameters
from tests.support import logcalls
from tests.support.fakedaemon import FakeDaemon
from tests.support.wait import soon

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "packaging/config/edgeguardd.toml"
MESSAGES = {*typing.get_args(wire.ClientMessage), *typing.get_args(wire.ServerMessage)}


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_pages_are_up_to_date(name: str) -> None:
    """Whoever changes a table runs `make docs`."""
    committed = (ROOT / "docs/reference" / name).read_text()
    assert committed == reference.pages()[name], f"docs/reference/{name} is out of date: run `make docs`"


@pytest.mark.parametrize("name", sorted(manpages.pages()))
def test_the_man_pages_are_up_to_date_and_read_well(name: str) -> None:
    """man shows them without a warning, with every key and option in them."""
    committed = (ROOT / "docs/man" / name).read_text()
    assert committed == manpages.pages()[name], f"docs/man/{name} is out of date: run `make docs`"
    if shutil.which("groff") is not None:
        argv = ["groff", "-ww", "-man", "-Tutf8", "-K", "utf8", str(ROOT / "docs/man" / name)]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        assert shown.stderr == ""
    if shutil.which("mandoc") is not None:
        argv = ["mandoc", "-T", "lint", "-W", "warning", str(ROOT / "docs/man" / name)]
        linted = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        # That a page of another package is not installed here is no fault of this one.
        assert [line for line in linted.stdout.splitlines() if "bad reference" not in line] == []


def test_the_example_is_up_to_date_and_means_the_defaults(tmp_path: Path) -> None:
    """The example that is installed changes nothing until it is edited."""
    assert reference.main([str(tmp_path), "--example", str(tmp_path / "example.toml")]) == 0
    assert EXAMPLE.read_text() == (tmp_path / "example.toml").read_text()
    assert read(EXAMPLE.read_bytes(), "example") == Config()


def test_the_policy_page_is_up_to_date() -> None:
    """Its tables and diagrams are those of the code, and every block is there."""
    page = (ROOT / "docs/explanation/policy.md").read_text()
    assert policytext.fill(page) == page, "docs/explanation/policy.md is out of date: run `make docs`"
    assert set(re.findall(r"<!-- generated: (\w+) -->", page)) == set(policytext.BLOCKS)


def test_the_alert_on_trims_says_how_long_their_bytes_have() -> None:
    """The same figure as on the policy page."""
    page = (ROOT / "docs/how-to/alert.md").read_text()
    assert f"has left its needed bytes within {VERIFY_S:g} s." in page


def test_every_key_and_every_command_is_on_its_page() -> None:
    """Nothing is left out."""
    config, cli = reference.config_page(), reference.cli_page()
    for section in (*configtable.SECTIONS, configpolicy.STEP, configpolicy.RESORT_STEP):
        for row in section.rows:
            assert f"| `{row.key}` |" in config
    for command in edgeguardctl.names():
        assert f"### `edgeguardctl {command}`" in cli
    assert "### `edgeguardd run`" in cli
    assert str(edgeguardctl.parser().description) in cli


def test_every_metric_is_on_its_page() -> None:
    """A family that the page's daemon has no sample of would have neither labels nor, perhaps, a row."""
    page = metricspage.page()
    for family in metricspage.families():
        assert family.samples, f"{family.name}: let metricspage.families() make it happen"
        assert f"| `{family.name}" in page
    for module in (ROOT / "edgeguardd").glob("*.py"):
        for name in re.findall(r'"(edgeguardd_[a-z_]+)"', module.read_text()):
            assert f"| `{name}" in page, f"{name}: let metricspage.families() make it happen"


def test_every_line_of_the_log_is_on_its_page_with_its_fields() -> None:
    """A line that is added anywhere in the daemon is documented, or fails here; none is documented that is gone."""
    rows = logpage.rows_by_event()
    written = dict(logcalls.lines(ROOT / "edgeguardd", but_not="client"))
    assert set(written) == set(rows)
    parameters = {"**to_builtins(command.parameters)": Parameters.__struct_fields__}
    for event, fields in written.items():
        spread = {name for field in fields for name in parameters.get(field, (field,))}
        assert spread == set(rows[event].fields), event
    assert set(logpage.FIELDS) == {field for row in rows.values() for field in row.fields}


def test_every_public_name_of_the_client_is_on_its_page() -> None:
    """With each parameter that it takes and each method that it has."""
    text = clientpage.page()
    assert [name for name in client.__all__ if f"{name}" not in text] == []
    assert set(clientpage.parameters_explained(Guard)) == set(inspect.signature(client.Subscriber).parameters)
    for integration in (asgi.MemoryGuard, onnx.ArenaShrinker):
        explained = clientpage.parameters_explained(integration)
        assert set(explained) == set(inspect.signature(integration).parameters)
        assert [name for name in explained if f"| `{name}` |" not in text] == []
    for kind in (client.Subscriber, client.AsyncSubscriber):
        for name, method in clientpage.methods(kind):
            assert f"{name}(" in text
            assert inspect.getdoc(method), name
            assert all(parameter in text for parameter in inspect.signature(method).parameters if parameter != "self")
    public = {name for name in dir(client.Subscriber) if not name.startswith("_")}
    told = {name for name, _ in clientpage.methods(client.Subscriber)}
    assert public == told | {name for name in public if isinstance(getattr(client.Subscriber, name), property)}


def test_the_example_of_the_asyncio_client_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands on the page, with a cache and a server of the reader's."""
    (program,) = re.findall(r"```python\n(.*?)```", clientpage.page(), re.DOTALL)

    class Cache:
        async def drop(self, release_bytes: int) -> int:
            return release_bytes

    async def serve(guard: client.AsyncSubscriber) -> None:
        await soon(lambda: guard.connected and len(daemon.heard) == 3)

    with FakeDaemon(tmp_path) as daemon:
        monkeypatch.setenv("EDGEGUARDD_SOCKET", daemon.socket_path)
        exec(program, {"cache": Cache(), "serve": serve})  # noqa: S102 - the reader's own code
    hello, accepted, done = daemon.heard
    assert (hello["name"], hello["supports"], accepted["status"]) == ("my-server", ["trim_kv_cache"], "accepted")
    assert (done["status"], done["effect"], done["released_bytes"]) == ("done", "released", 5)


def test_every_field_of_status_is_on_its_page() -> None:
    """And nothing that is gone."""
    assert httppage.names() == set(httppage.MEANINGS)


def test_every_field_action_outcome_and_code_is_explained() -> None:
    """A field that is added to the protocol without a meaning fails here."""
    text = page()
    for message in (*MESSAGES, Parameters):
        tag = message.__struct_config__.tag or "parameters"
        for field in msgspec.structs.fields(message):
            assert protocoltext.MEANINGS.get(f"{tag}.{field.name}") or field.name in protocoltext.MEANINGS, field.name
    assert set(protocoltext.ACTIONS) == set(Action)
    assert set(protocoltext.OUTCOMES) == set(Outcome)
    assert all(f"| `{code}` |" in text for code in wire.ERROR_CODES)


def test_no_meaning_is_left_of_a_field_that_is_gone() -> None:
    """The page does not describe what no message has."""
    known = {
        f"{message.__struct_config__.tag or 'parameters'}.{field.name}"
        for message in (*MESSAGES, Parameters)
        for field in msgspec.structs.fields(message)
    }
    assert {key for key in protocoltext.MEANINGS if "." in key} <= known


def test_the_example_session_is_spoken_protocol() -> None:
    """Each line of the session can be read back by the side that gets it."""
    session = page().partition("## A session")[2].partition("## Rules")[0]
    lines = re.findall(r"^([<>]) (\{.*\})$", session, re.MULTILINE)
    assert len(lines) > 10
    for side, line in lines:
        (wire.decode_client if side == ">" else wire.decode_server)(line.encode())


def test_the_transcripts_on_the_page_are_those_that_are_played() -> None:
    """Case by case, step by step, and the bytes that a program under test gets are the page's."""
    text = (ROOT / "docs/reference/protocol.md").read_text().partition("## Conformance")[2]
    printed = dict(re.findall(r"^### `([\w-]+)`\n\n[^\n]*\n\n```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL))
    assert {name: transcript.split("\n") for name, transcript in printed.items()} == {
        case.name: lines_of(case) for case in CASES
    }
    for transcript in printed.values():
        for mark, line in re.findall(r"^(<[.&~]?) ?(.*)$", transcript, re.MULTILINE):
            ours, theirs = socket.socketpair()
            with contextlib.closing(Peer(ours)) as peer, theirs, theirs.makefile("rb") as reader:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
                sender = threading.Thread(target=give, args=(peer, line, How(mark)))
                sender.start()
                got = reader.read()
                sender.join()
            end = b"" if mark == How.UNFINISHED.value else b"\n"
            follow = b"\n" if mark == How.WITH_THE_NEXT.value else b""
            assert got == bytes_of(line) + end + follow


def give(peer: Peer, line: str, how: How) -> None:
    """Say a line, and the next one where that is what makes it leave; then end the connection."""
    peer.give(line, how)
    if how is How.WITH_THE_NEXT:
        peer.give("", How.ALONE)
    peer.close()


def test_a_kind_of_type_that_cannot_be_described_is_not_left_blank() -> None:
    """A new kind of field stops the generator instead of making an empty cell."""
    with pytest.raises(TypeError, match="cannot describe"):
        type_words(msgspec.inspect.type_info(dict[str, int]))
