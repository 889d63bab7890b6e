"""What the pages on the gate and on pressure watches print is what is shipped, and what the program takes."""

import os

import pytest

from edgeguardd.core.configparse import read
from edgeguardd.gate import STATUSES, Mode
from tests.support.documents.pages import blocks, text_of
from tests.support.running import REPOSITORY

GATE, WATCH = "docs/how-to/gate.md", "docs/how-to/pressure-watch.md"


def test_the_configurations_on_the_page_are_those_that_are_shipped_and_tested() -> None:
    """Every file of packaging/gate, in full."""
    printed = {block.text for block in blocks(GATE, "nginx", "haproxy", "caddyfile", "yaml")}
    assert printed == {text_of(f"packaging/gate/{name}") for name in os.listdir(f"{REPOSITORY}/packaging/gate")}


def test_the_drop_in_on_the_page_is_the_one_that_is_shipped() -> None:
    """And the unit of the guard holds the connections, as the page says."""
    assert text_of("systemd/drop-ins/pressure-watch.conf") in [block.text for block in blocks(WATCH, "ini")]
    assert "\nFileDescriptorStoreMax=512\n" in text_of("systemd/edgeguardd.service")


@pytest.mark.parametrize("page", [GATE, WATCH])
def test_what_is_to_be_configured_can_be(page: str) -> None:
    """Each block by itself, and the socket at the place that unit and drop-in name."""
    for block in blocks(page, "toml"):
        config = read(block.text, page)
        for watch in config.pressure_watches:
            assert f"ListenStream={watch.path}\n" in text_of("systemd/edgeguardd-pressure.socket")
            assert f"Environment=MEMORY_PRESSURE_WATCH={watch.path}\n" in text_of(
                "systemd/drop-ins/pressure-watch.conf"
            )


def test_each_proxy_asks_in_its_own_mode() -> None:
    """Every shipped file names its mode and the target, and every mode of a proxy has its file."""
    for mode in set(Mode) - {Mode.DIRECT}:
        name = {"caddy": "Caddyfile", "nginx": "nginx.conf"}.get(mode, f"{mode}.yaml")
        text = text_of(f"packaging/gate/{name}")
        assert f"/admit?mode={mode}&target=llm" in text or f"/admit/{mode}/llm" in text
        assert mode in STATUSES
