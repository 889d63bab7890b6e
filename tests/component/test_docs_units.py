"""What the pages print for a server's unit, and the template that they name, pass the project's own audit."""

import json
import shlex
from pathlib import Path

import pytest

from edgeguardd.cli import edgeguardctl
from tests.support.documents.pages import blocks, commands
from tests.support.running import REPOSITORY
from tests.support.unittree import RUN, write

FRONT = "README.md"
TEMPLATE = "systemd/drop-ins/inference.conf"
SERVICE = "docs/how-to/run-as-a-service.md"
# What is the vendor's to say of a unit, and no matter of memory.
VENDOR = f"[Service]\n{RUN}NoNewPrivileges=yes\nProtectSystem=strict\nCapabilityBoundingSet=\n"


def drop_in(origin: str) -> str:
    """A file, or the first unit that a page prints."""
    if origin.endswith(".md"):
        return blocks(origin, "ini")[0].text
    return Path(REPOSITORY, origin).read_text()


def settings(text: str) -> list[str]:
    """Without comments and empty lines."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("origin", "left"), [(FRONT, {"restart_is_bounded"}), (SERVICE, set()), (TEMPLATE, set())], ids=str
)
def test_a_unit_with_the_drop_in_passes_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], origin: str, left: set[str]
) -> None:
    """On a machine of 16 GB nothing is broken, and at most left to decide: the front page has no room for all."""
    slice_file = Path(REPOSITORY, "systemd/inference.slice").read_text()
    write(
        tmp_path,
        {"NAME.service": VENDOR, "NAME.service.d/edgeguardd.conf": drop_in(origin), "inference.slice": slice_file},
    )
    (command,) = (one.text for one in commands(SERVICE) if one.text.startswith("edgeguardctl audit "))
    options = ["--search-path", str(tmp_path), "--memtotal-kb", "16000000", "--fail-on", "warning", "--json"]
    status = edgeguardctl.main([*shlex.split(command)[1:], *options])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert status == 0
    assert {one["rule"] for one in found} <= left


def test_the_page_prints_the_template() -> None:
    """All of it but the comments."""
    assert settings(drop_in(SERVICE)) == settings(drop_in(TEMPLATE))
