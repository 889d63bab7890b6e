"""The pages on boards: each command is run on files as such a board has them; its programs are stood in for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import machines
from tests.support.documents.pages import Command, blocks, commands
from tests.support.documents.place import has_the_shape
from tests.support.machines import MACHINES, machine
from tests.support.running import REPOSITORY

GRUB = {"etc/default/grub": 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="quiet"\n'}
SERVER = "sys/fs/cgroup/system.slice/llama-server.service/memory.current"
CMA = "MemTotal:        8000000 kB\nCmaTotal:        262144 kB\nCmaFree:         100000 kB\n"
VENDOR = "6.1.75-vendor-rk35xx"

# Page -> the board as it comes, and as it is once the page has been followed.
BOARDS = {
    "docs/how-to/raspberry-pi.md": (MACHINES["raspberry pi os"], MACHINES["raspberry pi, enabled"]),
    "docs/how-to/jetson-orin.md": (
        MACHINES["jetpack 6"]
        | {SERVER: "409000000\n", "proc/meminfo": "MemTotal:        8000000 kB\nNvMapMemUsed:     805068 kB\n"},
        MACHINES["jetpack 6"],
    ),
    "docs/how-to/rk3588.md": (
        MACHINES["rk3588, psi off"] | {f"boot/config-{VENDOR}": "CONFIG_MEMCG=y\n", "proc/meminfo": CMA},
        MACHINES["rk3588, psi off"],
    ),
    "docs/how-to/x86.md": (machine("6.12.0-rhel10", psi="") | GRUB, MACHINES["debian 12"]),
}
# What a page's commands leave in a file of the board: the words that doctor asks for.
LEFT = {
    "docs/how-to/raspberry-pi.md": ("boot/firmware/cmdline.txt", "console=tty1 cgroup_enable=memory psi=1\n"),
    "docs/how-to/rk3588.md": ("boot/armbianEnv.txt", "extraargs=psi=1 \n"),
    "docs/how-to/x86.md": ("etc/default/grub.d/psi.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX psi=1"\n'),
}
# Programs of the board, or whose work is elsewhere: pip's is that of test_package.py.
STAND_INS = {
    "reboot": "echo rebooting",
    "update-grub": "echo done",
    "grubby": "echo done",
    "nvpmodel": "echo 'NV Power Mode: MODE_15W'; echo 0",
    "uname": f"echo {VENDOR}",
    "opt/edgeguardd/bin/pip": "test $1 = install && echo installed",
}
SHOWN = [(page, one) for page in BOARDS for one in commands(page) if one.shown]


class Board:
    """Files below a directory, the commands of a page run as if that were /."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root = root
        machines.write(files, root)
        machines.write({"home/.keep": "", "bin/.keep": ""}, root)
        for name, script in STAND_INS.items():
            self._script(name if "/" in name else f"bin/{name}", script)
        self._script("bin/edgeguardctl", f'exec "{sys.executable}" -m edgeguardd.cli.edgeguardctl "$@"')

    def _script(self, name: str, text: str) -> None:
        machines.write({name: f"#!/bin/sh\n{text}\n"}, self.root)
        (self.root / name).chmod(0o755)

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Output and errors in one."""
        moved = re.sub(r"(?<![\w.])/(?=(?:boot|etc|proc|sys|opt)/)", f"{self.root}/", command)
        if command.startswith("edgeguardctl doctor"):
            moved += f" --root {self.root}"
        return subprocess.run(
            ["bash", "-c", moved], cwd=self.root / "home", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": REPOSITORY},
        )  # fmt: skip


@pytest.mark.parametrize("page", BOARDS)
def test_each_command_works_on_such_a_board(page: str, tmp_path: Path) -> None:
    """As it comes: nothing fails but doctor, which may have something to say; the boot files end as they should."""
    board = Board(tmp_path, BOARDS[page][0])
    for block in blocks(page, "toml"):
        if block.text.startswith("# edgeguardd.toml"):
            (tmp_path / "home" / "edgeguardd.toml").write_text(block.text)
    for command in commands(page):
        done = board.run(command.text)
        assert done.returncode in ((0, 1) if "doctor" in command.text else (0,)), f"{command.text}\n{done.stdout}"
        assert "Traceback" not in done.stdout
        assert done.stdout or command.text.startswith(("sed", "mkdir")), command.text
    if page in LEFT:
        name, content = LEFT[page]
        assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[f"{page}:{one.line}" for page, one in SHOWN])
def test_what_is_shown_is_what_comes(page: str, command: Command, tmp_path: Path) -> None:
    """On a board that has been set up as the page says; figures may differ."""
    before, after = BOARDS[page]
    board = Board(tmp_path, before | after)
    printed = board.run(command.text).stdout
    assert has_the_shape(printed, command.shown) is None, printed
