"""`edgeguardctl provision` on a real kernel's cgroup tree: apply, prove, repeat, refuse, force, roll back, undo."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup, remove_tree
from tests.support.children import ending
from tests.support.documents import pages
from tests.support.hog import Hog
from tests.support.wait import eventually

MIB = 1 << 20
CTL = [sys.executable, "-c", "import sys; from edgeguardd.cli.edgeguardctl import main; sys.exit(main())"]
CONFIG = """
[provision]
backend = "cgroup"
reserve = "8M"
state_directory = "{state}"

[[provision.slice]]
name = "inference.slice"
memory_high = "80M"
memory_max = "100M"
swap_max = 0
cpu_weight = 50

[[provision.service]]
name = "llama.service"
slice = "inference.slice"
memory_low = 0
memory_high = "60000001"
memory_max = "{max}"
oom_group = true

[[provision.slice]]
name = "protected.slice"
memory_min = "16M"

[[provision.service]]
name = "control.service"
slice = "protected.slice"
memory_min = "10%"
"""


class Box:
    """A part of the tree that is ours: the root of what is provisioned."""

    def __init__(self, inside: Cgroup, directory: str) -> None:
        self.inside = inside
        self.config = f"{directory}/edgeguardd.toml"
        self.state = f"{directory}/state"

    def write(self, text: str) -> None:
        """The configuration."""
        with open(self.config, "w") as file:
            file.write(f'cgroup_root = "{self.inside.path}"\n{text.replace("{state}", self.state)}')

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Provision."""
        argv = [*CTL, "provision", "--config", self.config, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)

    def read(self, path: str) -> str:
        """A file below it."""
        return self.inside.read(path)

    def files(self) -> dict[str, str]:
        """Every value that provisioning could have changed."""
        found = {}
        for directory, _, names in os.walk(self.inside.path):
            for name in names:
                if name.endswith((".min", ".low", ".high", ".max", ".group", ".weight", "subtree_control")):
                    path = os.path.join(directory, name).removeprefix(f"{self.inside.path}/")
                    found[path] = self.inside.read(path)
        return found


@pytest.fixture
def box(cgroup: Cgroup, run_dir: str) -> Iterator[Box]:
    """A cgroup with all controllers of the root, empty."""
    with open(f"{cgroups.ROOT}/cgroup.controllers") as file:
        words = " ".join(f"+{one}" for one in file.read().split() if one in ("cpu", "memory"))
    with open(f"{cgroups.ROOT}/cgroup.subtree_control", "w") as file:
        file.write(words)
    yield Box(cgroup, run_dir)
    remove_tree(f"{cgroup.path}/inference.slice")


def small(**values: str) -> str:
    """One service in one slice; `values` are the service's."""
    keys = "\n".join(f"{key} = {value}" for key, value in values.items())
    return (
        '[provision]\nbackend = "cgroup"\nreserve = 0\nstate_directory = "{state}"\n[[provision.service]]\n'
        f'name = "llama.service"\nslice = "inference.slice"\n{keys}\n'
    )


@pytest.mark.cost(12)
def test_from_nothing_to_proof_and_back(box: Box) -> None:
    """Controllers from the root down, every value as the kernel rounds it, nothing the second time, all undone."""
    has_cpu = "cpu" in box.read("cgroup.controllers")
    text = CONFIG.replace("{max}", "70000001").replace('"10%"', '"4M"')
    box.write(text if has_cpu else text.replace("cpu_weight = 50", ""))
    before = box.files()
    shown = box.run("--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "  + a cgroup" in shown.stdout
    assert "  + memory.max 104857600 (100M)" in shown.stdout
    assert box.files() == before

    done = box.run()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "set and read back" in done.stdout
    assert box.read("inference.slice/memory.max") == str(100 * MIB)
    assert box.read("inference.slice/llama.service/memory.max") == str(70000001 // 4096 * 4096)
    assert box.read("inference.slice/llama.service/memory.high") == str(60000001 // 4096 * 4096)
    assert box.read("inference.slice/llama.service/memory.oom.group") == "1"
    assert box.read("protected.slice/memory.min") == str(16 * MIB)
    assert box.read("protected.slice/control.service/memory.min") == str(4 * MIB)
    if has_cpu:
        assert box.read("inference.slice/cpu.weight") == "50"
    after = box.files()

    again = box.run()
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("nothing to change: all is as wanted")
    assert box.files() == after

    undone = box.run("--undo")
    assert (undone.returncode, undone.stderr) == (0, ""), undone.stdout
    assert box.files() == before
    assert [name for name in os.listdir(box.state) if name.endswith(".json")] == []
    assert box.run("--undo").stdout == "nothing to put back\n"


@pytest.mark.cost(14)
def test_a_process_over_the_new_limit_is_not_killed(box: Box) -> None:
    """Refused with the figures; --force gives up when reclaim brings nothing, and does it when there is room."""
    box.write(small(memory_high='"90M"', memory_max='"100M"'))
    assert box.run().returncode == 0
    llama = Cgroup.__new__(Cgroup)
    llama.path = f"{box.inside.path}/inference.slice/llama.service"
    llama.set(swap_max=0)
    hog = Hog(llama)
    try:
        hog.grow(60 * MIB)
        box.write(small(memory_high='"30M"', memory_max='"40M"'))
        refused = box.run()
        assert refused.returncode == 1
        assert "cannot set memory_max of llama.service to 40M: it uses" in refused.stderr
        assert "give --force to lower it in steps" in refused.stderr
        assert llama.read("memory.max") == str(100 * MIB)

        forced = box.run("--force", "--wait", "1")
        assert forced.returncode == 1
        assert "cannot bring /inference.slice/llama.service below" in forced.stderr
        assert "rolled back" in forced.stderr
        assert (llama.read("memory.high"), llama.read("memory.max")) == (str(90 * MIB), str(100 * MIB))
        assert llama.counters()["oom_kill"] == 0

        hog.shrink(50 * MIB)
        eventually(lambda: int(llama.read("memory.current")) < 30 * MIB, what="the memory is given back")
        done = box.run()
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert (llama.read("memory.high"), llama.read("memory.max")) == (str(30 * MIB), str(40 * MIB))
        assert hog.process.poll() is None
    finally:
        hog.close()


@pytest.mark.cost(8)
def test_page_cache_is_reclaimed_step_by_step(box: Box, disk_dir: str) -> None:
    """What can be dropped is no reason to give up: --force brings the use below the limit without a kill."""
    box.write(small(memory_max='"100M"'))
    assert box.run().returncode == 0
    llama = Cgroup.__new__(Cgroup)
    llama.path = f"{box.inside.path}/inference.slice/llama.service"
    hog = Hog(llama)
    try:
        hog.write_file(f"{disk_dir}/weights", 48 * MIB)
        hog.map_file(f"{disk_dir}/weights")
        assert int(llama.read("memory.current")) > 40 * MIB
        box.write(small(memory_max='"32M"'))
        refused = box.run()
        assert refused.returncode == 1
        assert "is page cache" in refused.stderr
        forced = box.run("--force")
        assert (forced.returncode, forced.stderr) == (0, ""), forced.stdout
        assert (llama.read("memory.max"), llama.read("memory.high")) == (str(32 * MIB), "max")
        assert llama.counters()["oom_kill"] == 0
        assert hog.process.poll() is None
    finally:
        hog.close()


@pytest.mark.cost(8)
def test_a_run_that_is_killed_in_the_middle_leaves_no_limit_in_between(box: Box) -> None:
    """kill -9 while memory.high is being lowered: the next run, and an undo, know what was there before."""
    box.write(small(memory_max='"100M"'))
    assert box.run().returncode == 0
    llama = Cgroup.__new__(Cgroup)
    llama.path = f"{box.inside.path}/inference.slice/llama.service"
    llama.set(swap_max=0)
    hog = Hog(llama)
    try:
        hog.grow(40 * MIB)
        lower = small(memory_max='"20M"')
        box.write(lower)
        argv = [*CTL, "provision", "--config", box.config, "--force", "--wait", "90"]
        with ending(subprocess.Popen(argv, stdout=subprocess.DEVNULL)) as run:
            eventually(lambda: llama.read("memory.high") != "max", what="it has begun")
            run.kill()
            run.wait()
        assert llama.read("memory.high") != "max"
        # A polite end takes back what it has done itself, and leaves what the killed one did to the next whole run.
        before = llama.read("memory.high")
        with ending(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)) as run:
            eventually(lambda: llama.read("memory.high") != before, what="it has begun")
            run.terminate()
            assert "rolled back" in run.communicate()[1]
        assert llama.read("memory.high") == before
        box.write(small(memory_max='"100M"'))
        again = box.run()
        assert (again.returncode, again.stderr) == (0, ""), again.stdout
        assert (llama.read("memory.high"), llama.read("memory.max")) == ("max", str(100 * MIB))
        assert llama.counters()["oom_kill"] == 0
    finally:
        hog.close()


@pytest.mark.cost(9)
def test_nothing_is_done_where_the_kernel_would_refuse(box: Box) -> None:
    """A cgroup that holds processes cannot pass controllers on; sums and orders that cannot be."""
    slice_ = Cgroup(f"{box.inside.path}/inference.slice")
    keeper = slice_.spawn(["sleep", "600"], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: slice_.processes() == [keeper.pid], what="the process is in")
        box.write(small(memory_max='"40M"'))
        before = box.files()
        refused = box.run()
        assert refused.returncode == 1
        assert "/inference.slice would have to pass memory on, and holds 1 processes itself" in refused.stderr
        box.write(small(memory_high='"50M"', memory_max='"40M"', memory_min='"64G"', swap_max='"1G"'))
        refused = box.run()
        for sentence in ("it never acts at or above", "cannot guarantee", "guarantees nothing"):
            assert sentence in refused.stderr
        assert box.files() == before
    finally:
        keeper.kill()
        keeper.wait()


@pytest.mark.cost(10)
def test_what_others_changed_and_what_others_use_is_left_alone(box: Box) -> None:
    """Undo says so, and takes back the rest."""
    box.write(small(memory_high='"50M"', memory_max='"60M"', memory_low="0"))
    assert box.run().returncode == 0
    llama = Cgroup.__new__(Cgroup)
    llama.path = f"{box.inside.path}/inference.slice/llama.service"
    keeper = llama.spawn(["sleep", "600"], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: llama.processes() == [keeper.pid], what="the process is in")
        llama.write("memory.high", 55 * MIB)
        undone = box.run("--undo")
        assert (undone.returncode, undone.stderr) == (0, "")
        assert "somebody changed it, left alone" in undone.stdout
        assert "holds 1 processes: the cgroup stays" in undone.stdout
        assert (llama.read("memory.high"), llama.read("memory.max")) == (str(55 * MIB), "max")
    finally:
        keeper.kill()
        keeper.wait()


@pytest.mark.cost(8)
def test_a_failure_in_the_middle_is_rolled_back(box: Box, run_dir: str) -> None:
    """The tree may hold so many cgroups and no more: the second one cannot be made, the first one goes again."""
    box.inside.write("cgroup.max.descendants", 2)
    box.write(CONFIG.replace("{max}", "70M").replace('"10%"', '"4M"').replace("cpu_weight = 50", ""))
    before = box.files()
    failed = box.run()
    assert failed.returncode == 1
    assert "cannot make" in failed.stderr
    assert "rolled back" in failed.stderr
    assert box.files() == before
    assert [name for name in os.listdir(box.state) if name.endswith(".json")] == []
    assert not Path(f"{box.inside.path}/inference.slice").exists()


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page."""
    return [block.text for block in pages.blocks("docs/how-to/isolate-a-server.md", language)]


@pytest.mark.cost(12)
def test_the_page_does_what_it_says(box: Box) -> None:
    """Its file, on the little memory of a guest, and each of its commands in order; in the end all is as it was."""
    table = '[provision]\nbackend = "cgroup"\nstate_directory = "{state}"\n'
    text = blocks("toml")[0].replace("[provision]\n", table).replace('reserve = "256M"', 'reserve = "16M"')
    box.write(text if "cpu" in box.read("cgroup.controllers") else text.replace("cpu_weight = 800\n", ""))
    before = box.files()
    for block in blocks("console"):
        for line in block.splitlines():
            if not line.startswith("$ edgeguardctl provision"):
                continue
            done = box.run(*shlex.split(line)[3:])
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
            said = block.partition(line + "\n")[2].splitlines()[:1]
            if said and not said[0].startswith("$"):
                assert done.stdout.startswith(said[0].rstrip("…"))
    assert box.files() == before


@pytest.mark.cost(8)
def test_provision_builds_what_the_script_builds(box: Box) -> None:
    """Every value of every cgroup is the same, and all of the script's can be taken away again."""
    (script,) = blocks("sh")
    made = subprocess.run(
        ["/bin/sh", "-e", "-c", script.replace("/sys/fs/cgroup", box.inside.path)], capture_output=True, check=True
    )
    assert made.stderr == b""
    by_script = box.files()
    remove_tree(f"{box.inside.path}/inference.slice")
    box.inside.write("cgroup.subtree_control", "-memory")
    box.write('[provision]\nbackend = "cgroup"\nreserve = 0\nstate_directory = "{state}"\n' + blocks("toml")[1])
    done = box.run()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert box.files() == by_script


@pytest.mark.cost(4)
def test_a_start_script_puts_the_server_into_its_own_cgroup(box: Box) -> None:
    """The page's line, with another program in the server's place: limits hold for it from its first page on."""
    box.write('[provision]\nbackend = "cgroup"\nreserve = 0\nstate_directory = "{state}"\n' + blocks("toml")[1])
    assert box.run().returncode == 0
    (line,) = (one.text for one in pages.commands("docs/how-to/isolate-a-server.md") if "exec llama-server" in one.text)
    line = line.replace("/sys/fs/cgroup", box.inside.path).replace("llama-server …", "sleep 600")
    with ending(subprocess.Popen(["/bin/sh", "-c", line], stdin=subprocess.DEVNULL)) as server:
        eventually(lambda: Path(f"/proc/{server.pid}/comm").read_text() == "sleep\n", what="the server runs")
        held = box.read("inference.slice/llama-server.service/cgroup.procs").split()
        assert held == [str(server.pid)]
    assert box.run("--undo").returncode == 0
