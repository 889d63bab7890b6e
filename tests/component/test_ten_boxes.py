"""The roll-out over ssh: the script as it is, against ten boxes that are directories; ssh, scp, apt are stand-ins."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeguardd.core.configparse import read
from edgeguardd.serve.httphosts import is_meant
from tests.support.documents.pages import blocks, commands
from tests.support.documents.place import has_the_shape
from tests.support.faketree import FakeCgroup
from tests.support.running import REPOSITORY, Daemon

PAGE = "docs/how-to/ten-boxes.md"
SCRIPT = os.path.join(REPOSITORY, "packaging", "fleet", "rollout.sh")
NAMES = [f"box{number}" for number in range(1, 11)]

SSH = """#!/bin/sh
echo "ssh $*" >> "$BOXES/calls"
while :; do case $1 in -n) exec </dev/null; shift ;; -o) shift 2 ;; *) break ;; esac; done
root=$BOXES/${1#*@}
[ -d "$root" ] || { echo "ssh: Could not resolve hostname ${1#*@}: Name or service not known" >&2; exit 255; }
root=$(readlink -f "$root")
[ ! -e "$root/off" ] || { echo "ssh: connect to host ${1#*@} port 22: No route to host" >&2; exit 255; }
shift
export HOME="$root/home" ROOT="$root" PATH="$root/bin:/usr/bin:/bin"
cd "$HOME"
case "$*" in
    *"sh -s"*) sed "s,/etc/,$root/etc/,g" | sh -c "$*" ;;
    *) sh -c "$*" ;;
esac
"""
SCP = """#!/bin/sh
echo "scp $*" >> "$BOXES/calls"
while :; do case $1 in -q) shift ;; -o) shift 2 ;; *) break ;; esac; done
place=${2##*:} box=${2%:*}
case $box in *]) box=${box#*[} box=${box%]} ;; esac
[ ! -e "$BOXES/${box#*@}/off" ] || { echo "lost connection" >&2; exit 255; }
cp "$1" "$BOXES/${box#*@}/home/$place"
"""
ON_BOX = {
    "dpkg-query": 'cat "$ROOT/dpkg" 2>/dev/null || { echo "dpkg-query: no packages found" >&2; exit 1; }\n',
    "apt-get": """[ ! -e "$ROOT/full" ] || {
    echo "E: You don't have enough free space in /var/cache/apt/archives/." >&2; exit 100
}
for last; do :; done
printf 'installed %s\\n' "$(dpkg-deb --field "$last" Version)" > "$ROOT/dpkg"
""",
    "systemctl": """echo "$*" >> "$ROOT/systemctl"
[ ! -e "$ROOT/cut" ] || { rm "$ROOT/cut"; echo "client_loop: send disconnect: Broken pipe" >&2; exit 255; }
""",
    "sudo": 'shift\necho sudo >> "$ROOT/sudo"\nexec "$@"\n',
    "edgeguardctl": """case $1 in
    check-config) ! grep -q wrong "$2" || { echo "edgeguardctl: line 1: unknown key wrong" >&2; exit 2; } ;;
    health) [ ! -e "$ROOT/blind" ] || { echo "edgeguardctl: cannot rely on the daemon: /healthz says 503" >&2; exit 1; }
        echo "ready: every target that exists is watched, the last samples are fresh" ;;
esac
""",
}


class Fleet:
    """Ten boxes, and the machine that rolls out to them; `typed` runs there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.boxes = home / "boxes.d"
        for name in NAMES:
            for directory in ("home", "etc", "bin"):
                (self.boxes / name / directory).mkdir(parents=True)
            for program, text in ON_BOX.items():
                self._program(self.boxes / name / "bin" / program, f"#!/bin/sh\n{text}")
        (home / "bin").mkdir()
        self._program(home / "bin" / "ssh", SSH)
        self._program(home / "bin" / "scp", SCP)
        self.write("boxes", "".join(f"root@{name}\n" for name in NAMES))
        self.write("fleet.toml", '[http]\naddress = "0.0.0.0"\n')
        self.write("prometheus.conf", "[Service]\nIPAddressAllow=192.0.2.10\n")
        self.package("1.0")

    def _program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        """A file of the machine that rolls out."""
        (self.home / name).write_text(text)

    def package(self, version: str) -> None:
        """A Debian package of this version, with nothing in it."""
        control = self.home / "package" / "DEBIAN" / "control"
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_text(
            f"Package: edgeguardd\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x.example>\nDescription: x\n"
        )
        argv = ["dpkg-deb", "--build", "--root-owner-group", "package", "edgeguardd.deb"]
        subprocess.run(argv, cwd=self.home, check=True, capture_output=True, timeout=60)

    def roll_out(self, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """With configuration, drop-in and list, unless other options are given."""
        usual = ["-c", "fleet.toml", "-d", "prometheus.conf", "-o", "targets.json", "edgeguardd.deb", "boxes"]
        return self.typed([SCRIPT, *(options or usual)], **environment)

    def typed(self, argv: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
        path = f"{self.home}/bin:{os.environ['PATH']}:/usr/bin:/bin"
        return subprocess.run(
            argv, cwd=self.home, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
            env={"PATH": path, "HOME": str(self.home), "BOXES": str(self.boxes), **environment},
        )  # fmt: skip

    def on(self, name: str, file: str) -> Path:
        """A file of a box."""
        return self.boxes / name / file

    def calls(self) -> list[str]:
        """What was asked of ssh and scp since the last time."""
        file = self.boxes / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    return Fleet(tmp_path)


def test_ten_boxes_from_nothing(fleet: Fleet) -> None:
    """Each has the package, the configuration, the drop-in, is restarted once, ready, and on Prometheus' list."""
    done = fleet.roll_out()
    assert done.stdout.splitlines() == [
        *(f"{name}: installed 1.0, configuration changed, drop-in changed, ready" for name in NAMES), "10 of 10 ready",
    ]  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for name in NAMES:
        assert fleet.on(name, "etc/edgeguardd/edgeguardd.toml").read_text() == (fleet.home / "fleet.toml").read_text()
        assert "192.0.2.10" in fleet.on(name, "etc/systemd/system/edgeguardd.service.d/rollout.conf").read_text()
        assert fleet.on(name, "systemctl").read_text() == "daemon-reload\nrestart edgeguardd.service\n"
        assert os.listdir(fleet.on(name, "home")) == []
    listed = json.loads((fleet.home / "targets.json").read_text())
    assert [group["targets"] for group in listed] == [[f"{name}:9464"] for name in NAMES]
    assert [group["labels"] for group in listed] == [{"box": name} for name in NAMES]


def test_again_nothing_happens(fleet: Fleet) -> None:
    """No package is copied, nothing restarts, each is asked whether it is ready."""
    fleet.write("boxes", "box1\nbox2\n")
    fleet.roll_out()
    fleet.calls()
    done = fleet.roll_out()
    assert done.stdout.splitlines() == ["box1: ready", "box2: ready", "2 of 2 ready"]
    assert done.returncode == 0
    assert fleet.on("box2", "systemctl").read_text().count("restart") == 1
    assert not [call for call in fleet.calls() if call.startswith("scp") and ".deb" in call]


def test_those_that_fail_are_named_and_stop_no_other(fleet: Fleet) -> None:
    """One is off, one full, one blind; mended and run again, those three are brought to where the others are."""
    fleet.on("box3", "off").touch()
    fleet.on("box5", "full").touch()
    fleet.on("box10", "blind").touch()
    done = fleet.roll_out()
    said = done.stdout.splitlines()
    assert said[2] == "box3: FAILED: ssh: connect to host box3 port 22: No route to host"
    assert said[4] == "box5: FAILED: E: You don't have enough free space in /var/cache/apt/archives/."
    assert said[9] == "box10: FAILED: edgeguardctl: cannot rely on the daemon: /healthz says 503"
    assert said[10] == "7 of 10 ready; failed: box3 box5 box10"
    assert done.returncode == 1
    assert len(json.loads((fleet.home / "targets.json").read_text())) == len(NAMES)
    for name, what in (("box3", "off"), ("box5", "full"), ("box10", "blind")):
        fleet.on(name, what).unlink()
    done = fleet.roll_out()
    assert done.returncode == 0
    changed = [line.partition(":")[0] for line in done.stdout.splitlines() if "changed" in line]
    assert changed == ["box3", "box5"]


def test_a_configuration_that_a_box_refuses_stays_out(fleet: Fleet) -> None:
    """The one before is in force; no box restarts."""
    fleet.write("boxes", "box1\nbox2\n")
    fleet.roll_out()
    fleet.write("fleet.toml", "wrong = 1\n")
    done = fleet.roll_out()
    assert done.returncode == 1
    assert "box1: FAILED: edgeguardctl: line 1: unknown key wrong" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 of 2 ready; failed: box1 box2"
    assert "[http]" in fleet.on("box1", "etc/edgeguardd/edgeguardd.toml").read_text()
    assert fleet.on("box1", "systemctl").read_text().count("restart") == 1


def test_a_run_that_was_cut_off_is_made_up_for(fleet: Fleet) -> None:
    """The file was in place, the restart had not come: the next run restarts, though nothing differs any more."""
    fleet.write("boxes", "box1\n")
    fleet.on("box1", "cut").touch()
    assert fleet.roll_out().returncode == 1
    assert "restart" not in fleet.on("box1", "systemctl").read_text()
    assert fleet.roll_out().returncode == 0
    assert "restart edgeguardd.service" in fleet.on("box1", "systemctl").read_text()
    assert not fleet.on("box1", "etc/edgeguardd/.restart-wanted").exists()


def test_an_update_and_a_user_who_is_not_root(fleet: Fleet) -> None:
    """Another version is installed over the old one, by sudo where that is asked for; without -c nothing else moves."""
    fleet.write("boxes", "# the first\nadmin@box1  box1.example\n\n")
    fleet.roll_out()
    fleet.package("2.0")
    done = fleet.roll_out("-o", "targets.json", "-p", "9999", "edgeguardd.deb", "boxes", SUDO="sudo -n")
    assert done.stdout.splitlines() == ["box1: installed 2.0, ready", "1 of 1 ready"]
    assert fleet.on("box1", "sudo").exists()
    assert json.loads((fleet.home / "targets.json").read_text()) == [
        {"targets": ["box1.example:9999"], "labels": {"box": "box1"}}
    ]


@pytest.mark.parametrize(
    ("boxes", "options", "says"),
    [
        ("-oProxyCommand=id\n", (), "cannot use the line 2 of boxes"),
        ("box2; reboot\n", (), "cannot use the line"),
        ("$(reboot)\n", (), "cannot use the line"),
        ("box2\x1b[2J\n", (), "a character in it is in no host name"),
        ("box2\r\n", (), "plain line ends"),
        ("box2 two three\n", (), "a box and a name, no more"),
        ("root@\n", (), "it names no host; write root@box1"),
        ("root@", (), "it names no host"),
        ("@box2\n", (), "there is no user before the @"),
        ("root@admin@box2\n", (), "more than one @"),
        ("root@-x\n", (), "-x begins with a dash"),
        ("box2 -x\n", (), "-x begins with a dash"),
        ("fe80::1\n", (), "write it in brackets, [fe80::1]"),
        ("box2 fe80::1\n", (), "write it in brackets, [fe80::1]"),
        ("root@box2:22\n", (), "leave it out, and give ssh's port in ssh_config"),
        ("box2 box2.example:9464\n", (), "Prometheus' with -p"),
        ("[box2]\n", (), "brackets are for an IPv6 address"),
        ("[::1]:22\n", (), "brackets are for an IPv6 address"),
        ("[::1@x]\n", (), "brackets are for an IPv6 address"),
        ("admin@BOX1\n", (), "BOX1 is there twice"),
        ("box2 box1\n", (), "box1 is there twice"),
        ("box2\n", ("-c", "missing.toml"), "cannot read missing.toml"),
        ("box2\n", ("-c", ""), "cannot use -c"),
        ("box2\n", ("-d", "bin"), "cannot read bin"),
        ("box2\n", ("-x",), "rollout.sh [-c CONFIGURATION]"),
        *(("box2\n", ("-p", port), f"cannot use port {port}:") for port in ("http", "0", "65536", "-1", "99999999999")),
        ("box2\n", ("-o", "missing/targets.json"), "cannot write missing/targets.json"),
        ("box2\n", ("-o", "bin"), "cannot write bin: it is a directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(fleet: Fleet, boxes: str, options: tuple[str, ...], says: str) -> None:
    """Before a box is touched, the first of the file neither; nothing is left behind."""
    fleet.write("boxes", f"root@box1\n{boxes}")
    before = sorted(os.listdir(fleet.home))
    done = fleet.roll_out(*options, "edgeguardd.deb", "boxes")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.replace("\n", "").isprintable()
    assert (fleet.calls(), done.stdout) == ([], "")
    assert sorted(os.listdir(fleet.home)) == before


def test_no_box_at_all(fleet: Fleet) -> None:
    """Nothing to do is a mistake."""
    fleet.write("boxes", "# nobody\n\n")
    done = fleet.roll_out()
    assert (done.returncode, fleet.calls()) == (2, [])
    assert "cannot find a box in boxes" in done.stderr


def test_another_package(fleet: Fleet) -> None:
    """A Debian package of something else goes to no box."""
    control = fleet.home / "package" / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("edgeguardd", "other"))
    argv = ["dpkg-deb", "--build", "--root-owner-group", "package", "edgeguardd.deb"]
    subprocess.run(argv, cwd=fleet.home, check=True, capture_output=True, timeout=60)
    done = fleet.roll_out()
    assert (done.returncode, fleet.calls()) == (2, [])
    assert "it is not edgeguardd's package" in done.stderr


def test_whatever_its_name_a_box_that_fails_is_counted(fleet: Fleet) -> None:
    """Names that a shell or a test could take for something else; summary and list are complete."""
    names = [".", "..", "0", "false", "n", "_"]
    fleet.write("boxes", "box1\n" + "".join(f"root@{name}.x\n" for name in names))
    done = fleet.roll_out()
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 of 7 ready; failed: " + " ".join(f"{name}.x" for name in names)
    assert len(json.loads((fleet.home / "targets.json").read_text())) == 7


def test_an_ipv6_address(fleet: Fleet) -> None:
    """ssh gets it bare, scp and Prometheus in brackets."""
    fleet.write("boxes", "root@[2001:db8::1]\n")
    (fleet.boxes / "2001:db8::1").symlink_to("box1")
    done = fleet.roll_out()
    assert done.stdout.splitlines()[-1] == "1 of 1 ready", done.stdout
    calls = fleet.calls()
    assert all(" root@2001:db8::1 " in call for call in calls if call.startswith("ssh "))
    assert all(" root@[2001:db8::1]:" in call for call in calls if call.startswith("scp "))
    assert json.loads((fleet.home / "targets.json").read_text()) == [
        {"targets": ["[2001:db8::1]:9464"], "labels": {"box": "2001:db8::1"}}
    ]


def test_with_the_real_commands_on_a_box(fleet: Fleet, place: str, llm: FakeCgroup) -> None:
    """check-config and health as they are, against a daemon that runs; a fault in the file is named by its line."""
    with Daemon(place, cgroup_root=f"{place}/tree") as daemon:
        real = f'exec "{sys.executable}" -m edgeguardd.cli.edgeguardctl "$@"'
        address = daemon.http.removeprefix("http://")
        (fleet.on("box1", "bin") / "edgeguardctl").write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{REPOSITORY}"\n[ "$1" = health ] && set -- "$@" --http {address}\n{real}\n'
        )
        fleet.write("boxes", "box1\n")
        done = fleet.roll_out()
        assert done.stdout.splitlines()[-1] == "1 of 1 ready", done.stdout
        fleet.write("fleet.toml", "[http]\nadress = 1\n")
        assert "adress" in fleet.roll_out().stdout


def test_the_commands_of_the_page(fleet: Fleet) -> None:
    """As printed, with the files that the page prints, three boxes, and the package where `make deb` puts it."""
    for language in ("toml", "ini", "text"):
        for block in blocks(PAGE, language):
            if named := re.match(r"# ([\w.]+)\n", block.text):
                fleet.write(named[1], block.text)
    fleet.boxes.joinpath("box3").rename(fleet.boxes / "10.0.0.3")
    (fleet.home / ".build" / "deb").mkdir(parents=True)
    (fleet.home / "edgeguardd.deb").rename(fleet.home / ".build" / "deb" / "edgeguardd_1.0_all.deb")
    (fleet.home / "packaging").symlink_to(os.path.join(REPOSITORY, "packaging"))
    (fleet.home / "prometheus").mkdir()
    rolled = [one for one in commands(PAGE) if "rollout.sh" in one.text or one.text.startswith("cp ")]
    assert len(rolled) == 3
    for one in rolled:
        done = fleet.typed(["bash", "-c", one.text.replace("/etc/prometheus", f"{fleet.home}/prometheus")])
        assert done.returncode == 0, done.stdout + done.stderr
        assert has_the_shape(done.stdout, one.shown) is None, done.stdout
    listed = json.loads((fleet.home / "prometheus" / "edgeguardd.json").read_text())
    asked = [group["targets"][0] for group in listed]
    assert asked == ["box1:9464", "box2:9464", "box3.example:9464"]
    hosts = read((fleet.home / "fleet.toml").read_text(), "fleet.toml").http.hosts
    assert [name for name in asked if not is_meant(name.encode(), "192.0.2.1", hosts)] == []


def test_the_scripts_are_plain_shell() -> None:
    """A shell without extensions parses them, and they say what they are for."""
    shell = shutil.which("dash") or "sh"
    for name in ("rollout.sh", "on-box.sh"):
        path = os.path.join(os.path.dirname(SCRIPT), name)
        subprocess.run([shell, "-n", path], check=True, timeout=60)
        assert os.access(path, os.X_OK)
