"""The systemd back end against a directory for / and a stand-in for systemctl that keeps what it is told."""

import json
import os
from pathlib import Path

import pytest

from edgeguardd.core.configparse import read
from edgeguardd.isolate.provision import wanted
from edgeguardd.isolate.provision.drop_ins import shown_number
from edgeguardd.isolate.provision.model import Machine, ProvisionError
from edgeguardd.isolate.provision.refusals import Request
from edgeguardd.isolate.provision.run import Provisioning
from edgeguardd.isolate.provision.systemd import SystemdBackend
from edgeguardd.state import StateDirectory

GIB = 1 << 30
MACHINE = Machine(8 * GIB, 4096, has_swap=False)
TEXT = """
[[provision.slice]]
name = "inference.slice"
memory_max = "6G"

[[provision.service]]
name = "llama.service"
slice = "inference.slice"
memory_high = "4G"
memory_max = "{max}"
cpu_max = "150%"
oom_group = true
oom_score_adjust = 500
"""
DROP_IN = "etc/systemd/system/llama.service.d/zz-edgeguardd-provision.conf"

# Files that the stand-in writes on a reload, or never.
LEFT = {"memory.oom.group": "0", "cpu.max": "max 100000"}
# Merges our drop-ins over defaults on daemon-reload, and writes them to the cgroups of what is active, as systemd does.
# The files beside it: units.json (name -> state), calls (one line each), failing (words that fail), lazy (there: a
# reload leaves cgroups as they are, and what set-property has set is held until then without a word, as 257 does).
SYSTEMCTL = r"""#!/usr/bin/python3 -IS
import glob, json, os, sys
home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
words = [word for word in sys.argv[1:] if word != "--no-ask-password"]
with open(f"{home}/calls", "a") as file:
    print(*words, file=file)
if os.path.exists(f"{home}/failing") and " ".join(words).startswith(open(f"{home}/failing").read()):
    sys.exit("Failed: told to fail")
units = json.load(open(f"{home}/units.json"))
FILES = {"MemoryHigh": "memory.high", "MemoryMax": "memory.max"}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
def size(word):
    if word == "infinity":
        return word
    return str(int(word[:-1]) * UNITS[word[-1]]) if word[-1] in UNITS else word
def merged(name):
    found = {"MemoryHigh": "infinity", "MemoryMax": "infinity", "OOMPolicy": "stop", "CPUQuotaPerSecUSec": "infinity",
             "MemoryMin": "0", "MemoryLow": "0", "MemorySwapMax": "infinity", "Slice": "system.slice"}
    paths = []
    below = ("etc/systemd/system", "run/systemd/system", "etc/systemd/system.control", "run/systemd/system.control")
    drop_ins = [path for folder in below for path in glob.glob(f"{home}/{folder}/{name}.d/*.conf")]
    for path in [*glob.glob(f"{home}/etc/systemd/system/{name}"), *sorted(drop_ins, key=os.path.basename)]:
        paths.append(path.removeprefix(home))
        for line in open(path):
            key, equals, value = line.strip().partition("=")
            if key == "CPUQuota":
                found["CPUQuotaPerSecUSec"] = f"{float(value[:-1]) * 10:g}ms" if value else "infinity"
            elif equals:
                found[key] = size(value) if key.startswith("Memory") else value
    return found | {"DropInPaths": " ".join(paths)}
lazy = os.path.exists(f"{home}/lazy")
def write(name, realize=True):
    unit, loaded = units[name], merged(name)
    unit["loaded"] = loaded
    if unit.get("cgroup") and realize:
        for key, file in FILES.items():
            open(f"{home}/cgroup{unit['cgroup']}/{file}", "w").write(loaded[key].replace("infinity", "max") + "\n")
        quota = loaded["CPUQuotaPerSecUSec"]
        quota = "max" if quota == "infinity" else f"{float(quota.removesuffix('ms')) * 100:.0f}"
        open(f"{home}/cgroup{unit['cgroup']}/cpu.max", "w").write(f"{quota} 100000\n")
match words:
    case ["show", "--property=ControlGroup", "--value", "--", name]:
        print(units.get(name, {}).get("cgroup", ""))
    case ["show", asked, "--", name]:
        unit = units.get(name)
        state = {"LoadState": "not-found" if unit is None else "loaded", "NeedDaemonReload": "no"}
        if unit is not None:
            state["ActiveState"] = "active" if unit.get("cgroup") else "inactive"
            state["ControlGroup"] = unit.get("cgroup", "")
            state |= unit.get("loaded") or merged(name)
        for key in asked.removeprefix("--property=").split(","):
            if key in state:
                print(f"{key}={state[key]}")
    case ["daemon-reload"]:
        for name in units:
            write(name, realize=not lazy)
    case ["start", "--", name]:
        units[name]["cgroup"] = f"/{name}"
        os.makedirs(f"{home}/cgroup/{name}", exist_ok=True)
        write(name)
    case ["stop", "--", name]:
        units[name]["cgroup"] = ""
    case ["set-property", "--runtime", "--", name, assignment]:
        key = assignment.partition("=")[0]
        os.makedirs(f"{home}/run/systemd/system.control/{name}.d", exist_ok=True)
        open(f"{home}/run/systemd/system.control/{name}.d/50-{key}.conf", "w").write(f"[Service]\n{assignment}\n")
        write(name)
        if key == "CPUQuota" and lazy:
            value = assignment.partition("=")[2]
            units[name]["loaded"]["CPUQuotaPerSecUSec"] = f"{float(value[:-1]) * 10:g}ms" if value else "infinity"
    case _:
        sys.exit(f"not known: {words}")
json.dump(units, open(f"{home}/units.json", "w"))
"""


class Box:
    """A machine: its files, its systemctl, and what that was told."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "bin").mkdir()
        (home / "bin/systemctl").write_text(SYSTEMCTL)
        (home / "bin/systemctl").chmod(0o755)
        (home / "cgroup/system.slice/llama.service").mkdir(parents=True)
        (home / "cgroup/cgroup.controllers").write_text("cpu memory\n")
        cgroup = home / "cgroup/system.slice/llama.service"
        for name, text in {"memory.high": "max", "memory.max": "max", "memory.current": str(GIB), **LEFT}.items():
            (cgroup / name).write_text(f"{text}\n")
        units = {"inference.slice": {}, "llama.service": {"cgroup": "/system.slice/llama.service"}}
        (home / "units.json").write_text(json.dumps(units))

    def provisioning(self, text: str | None, *, force: bool = False, runtime: bool = False) -> Provisioning:
        """One run; text None is an undo."""
        groups = () if text is None else wanted.groups(read(text, "t").provision, MACHINE)
        backend = SystemdBackend(f"{self.home}/cgroup", MACHINE, 0.2, runtime=runtime, prefix=str(self.home))
        request = Request(groups, {}, MACHINE, 0, overcommit=False, force=force)
        return Provisioning(backend, StateDirectory(f"{self.home}/state", pytest.fail), request, "boot")

    def run(self, text: str | None, *, force: bool = False) -> tuple[int, tuple[str, ...]]:
        """How many changes, and the notes."""
        provisioning = self.provisioning(text, force=force)
        outcome = provisioning.run(provisioning.plan())
        return len(outcome.changes), outcome.notes

    def calls(self) -> list[str]:
        """What systemctl was told but to show, since the last time."""
        path = self.home / "calls"
        told = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return [call for call in told if not call.startswith("show")]

    def kernel(self, name: str) -> str:
        """A file of the service's cgroup."""
        return (self.home / "cgroup/system.slice/llama.service" / name).read_text().strip()

    def files(self) -> list[str]:
        """All unit files there are."""
        return sorted(
            os.path.relpath(os.path.join(folder, name), self.home)
            for top in ("etc", "run")
            for folder, _, names in os.walk(self.home / top)
            for name in names
        )


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """Its systemctl first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Box(tmp_path)


def test_drop_ins_are_written_loaded_and_read_back(box: Box) -> None:
    """Sizes as they are written; a second run does nothing; undo leaves nothing."""
    text = TEXT.replace("{max}", "5G")
    changed, notes = box.run(text)
    assert changed > 0
    assert box.calls() == ["daemon-reload", "start -- inference.slice"]
    assert (box.home / DROP_IN).read_text().splitlines()[1:] == [
        "[Service]",
        *("Slice=inference.slice", "MemoryHigh=4G", "MemoryMax=5G", "CPUQuota=150%", "OOMPolicy=kill"),
        "OOMScoreAdjust=500",
    ]
    assert (box.kernel("memory.high"), box.kernel("memory.max")) == (str(4 * GIB), str(5 * GIB))
    assert [note for note in notes if "until `systemctl restart llama.service`" in note]
    assert box.run(text)[0] == 0
    assert box.calls() == []
    assert box.run(None)[0] > 0
    assert box.files() == []
    assert box.calls() == ["daemon-reload", "stop -- inference.slice"]
    assert box.kernel("memory.max") == "max"
    assert os.listdir(box.home / "state") == []


def test_a_unit_that_is_not_there_is_refused(box: Box) -> None:
    """A name with a fault in it would be isolated on paper only."""
    plan = box.provisioning(TEXT.replace("{max}", "5G").replace("llama.service", "lama.service")).plan()
    assert plan.refusals[0].startswith("cannot provision lama.service: systemd knows no such unit")
    assert box.files() == []


def test_a_failing_reload_is_rolled_back(box: Box) -> None:
    """The drop-ins go again, and the record with them."""
    (box.home / "failing").write_text("start")
    with pytest.raises(ProvisionError, match=r"systemctl start -- inference.slice`: Failed[\s\S]*rolled back"):
        box.run(TEXT.replace("{max}", "5G"))
    assert box.files() == []
    assert box.kernel("memory.max") == "max"
    assert os.listdir(box.home / "state") == []


def test_what_comes_later_than_ours_is_named_and_all_is_taken_back(box: Box) -> None:
    """A drop-in of somebody else with a later name."""
    control = box.home / "etc/systemd/system/llama.service.d/zzz-mine.conf"
    control.parent.mkdir(parents=True)
    control.write_text("[Service]\nMemoryMax=3G\n")
    with pytest.raises(ProvisionError, match=r"/llama\.service\.d/zzz-mine\.conf sets it"):
        box.run(TEXT.replace("{max}", "5G"))
    assert box.files() == [str(control.relative_to(box.home))]


def test_a_limit_below_what_is_in_use_needs_force_and_gives_up_without_a_kill(box: Box) -> None:
    """What the stand-in uses does not shrink: memory.max is never written below it."""
    text = TEXT.replace("4G", "256M").replace("{max}", "512M")
    assert "cannot set memory_max of llama.service to 512M: it uses 1G" in box.provisioning(text).plan().refusals[0]
    with pytest.raises(ProvisionError, match=r"cannot bring llama.service below 928M[\s\S]*rolled back"):
        box.run(text, force=True)
    told = box.calls()
    assert [call for call in told if "MemoryHigh=" in call]
    assert not [call for call in told if "MemoryMax=" in call]
    assert box.kernel("memory.high") == "max"
    assert box.files() == []


def test_what_somebody_wrote_into_the_cgroup_is_put_right_through_systemd(box: Box) -> None:
    """And what set-property leaves behind is taken away again."""
    text = TEXT.replace("{max}", "5G")
    box.run(text)
    box.calls()
    (box.home / "cgroup/system.slice/llama.service/memory.high").write_text("max\n")
    assert box.run(text)[0] == 1
    assert box.calls() == [f"set-property --runtime -- llama.service MemoryHigh={4 * GIB}", "daemon-reload"]
    assert box.kernel("memory.high") == str(4 * GIB)
    assert all("control" not in file for file in box.files())


def test_undo_takes_limits_out_of_the_kernel_where_a_reload_does_not(box: Box) -> None:
    """systemd 257 reads its files again and leaves the cgroups of what runs as they are."""
    (box.home / "lazy").touch()
    text = TEXT.replace("{max}", "5G")
    box.run(text)
    assert (box.kernel("memory.high"), box.kernel("cpu.max")) == (str(4 * GIB), "150000 100000")
    _, notes = box.run(None)
    assert (box.kernel("memory.high"), box.kernel("memory.max"), box.kernel("cpu.max")) == ("max", "max", "max 100000")
    assert box.files() == []
    assert [note for note in notes if "and systemd has" in note] == []


def test_a_key_taken_out_of_the_configuration_leaves_the_kernel_too(box: Box) -> None:
    """The drop-in stays, and says one thing less."""
    (box.home / "lazy").touch()
    text = TEXT.replace("{max}", "5G")
    box.run(text)
    box.run(text.replace('cpu_max = "150%"\n', ""))
    assert (box.kernel("cpu.max"), box.kernel("memory.max")) == ("max 100000", str(5 * GIB))


def test_what_set_property_holds_until_a_reload_is_put_right(box: Box) -> None:
    """Without systemd's saying that a reload is due."""
    (box.home / "lazy").touch()
    text = TEXT.replace("{max}", "5G")
    box.run(text)
    units = json.loads((box.home / "units.json").read_text())
    units["llama.service"]["loaded"]["CPUQuotaPerSecUSec"] = "900ms"
    units["llama.service"]["loaded"]["DropInPaths"] += " /run/systemd/system.control/llama.service.d/50-CPUQuota.conf"
    (box.home / "units.json").write_text(json.dumps(units))
    control = box.home / "run/systemd/system.control/llama.service.d/50-CPUQuota.conf"
    control.parent.mkdir(parents=True)
    control.write_text("[Service]\nCPUQuota=90%\n")
    (box.home / "cgroup/system.slice/llama.service/cpu.max").write_text("90000 100000\n")
    box.run(text)
    assert box.kernel("cpu.max") == "150000 100000"
    assert box.run(text)[0] == 0


def test_undo_says_what_runs_on_in_a_slice_that_is_not_its_own_any_more(box: Box) -> None:
    """No service is restarted for it."""
    box.run(TEXT.replace("{max}", "5G"))
    (box.home / "cgroup/inference.slice").mkdir(exist_ok=True)
    (box.home / "cgroup/system.slice/llama.service").rename(box.home / "cgroup/inference.slice/llama.service")
    units = json.loads((box.home / "units.json").read_text())
    units["llama.service"]["cgroup"] = "/inference.slice/llama.service"
    (box.home / "units.json").write_text(json.dumps(units))
    _, notes = box.run(None)
    assert (
        "llama.service runs in /inference.slice/llama.service until `systemctl restart llama.service`; "
        "then in system.slice"
    ) in notes


def test_limits_of_the_units_own_files_do_not_come_back_below_what_is_in_use(box: Box) -> None:
    """Undo would let systemd write them at once: refused, also when only a key is taken out."""
    own = box.home / "etc/systemd/system/llama.service"
    own.parent.mkdir(parents=True)
    own.write_text("[Service]\nExecStart=/bin/true\nMemoryMax=512M\n")
    text = TEXT.replace("{max}", "5G")
    box.run(text)
    with pytest.raises(ProvisionError, match="its own files say 512M, and it uses 1G, 512M more"):
        box.run(None)
    with pytest.raises(ProvisionError, match=r"cannot take our memory\.max of llama\.service away"):
        box.run(text.replace('memory_max = "5G"', "").replace("4G", "3G"))
    assert box.kernel("memory.max") == str(5 * GIB)
    (box.home / "cgroup/system.slice/llama.service/memory.current").write_text("4096\n")
    box.run(None)
    assert box.kernel("memory.max") == str(GIB // 2)


def test_a_drop_in_that_somebody_changed_is_left_alone(box: Box) -> None:
    """Undo says so."""
    box.run(TEXT.replace("{max}", "5G"))
    (box.home / DROP_IN).write_text("[Service]\nMemoryMax=1G\n")
    _, notes = box.run(None)
    assert [note for note in notes if "was changed by somebody since: left alone" in note]
    assert box.files() == [DROP_IN]


@pytest.mark.parametrize(
    ("file", "word", "number"),
    [
        ("memory.max", "infinity", 2**64 - 1),
        ("memory.max", "4096", 4096),
        ("memory.max", "", None),
        ("memory.oom.group", "kill", 1),
        ("memory.oom.group", "continue", 0),
        ("cpu.weight", "[not set]", 100),
        ("cpu.weight", str(2**64 - 1), 100),
        ("cpu.max", "1.500s", 150_000),
        ("cpu.max", "infinity", 2**64 - 1),
    ],
)
def test_the_words_of_systemctl_mean_numbers_of_the_kernel(file: str, word: str, number: int | None) -> None:
    """Each kind of value."""
    keys = {"memory.max": "MemoryMax", "memory.oom.group": "OOMPolicy", "cpu.weight": "CPUWeight"}
    assert shown_number(file, {keys.get(file, "CPUQuotaPerSecUSec"): word}) == number
