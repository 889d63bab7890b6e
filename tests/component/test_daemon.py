"""The daemon as a process, from outside: what it says, what it leaves, and what survives what."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.children import ending
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nfast = 0.05\nslow = 0.1\n'
HELLO = {"name": "test", "target": "llm"}


def start(place: str, body: str = TARGET, **options: Any) -> Daemon:
    return Daemon(place, body, cgroup_root=f"{place}/tree", **options)


def contents(directory: str) -> dict[str, str]:
    """What the plain files of a directory hold."""
    found = {}
    for name in os.listdir(directory):
        if os.path.isfile(f"{directory}/{name}"):
            with open(f"{directory}/{name}") as file:
                found[name] = file.read()
    return found


class NotifySocket:
    """systemd's side of sd_notify."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(20)
        self.path = path

    def wait_for(self, text: str) -> str:
        """The first message that contains text."""
        while True:
            message = self.socket.recv(4096).decode()
            if text in message:
                return message


def test_the_address_in_the_log_is_one_that_can_be_asked(place: str) -> None:
    """An IPv6 address stands in brackets, and "::" answers IPv4 as well."""
    os.mkdir(f"{place}/tree")
    FakeTree(f"{place}/tree")
    with Daemon(place, http='address = "::"', cgroup_root=f"{place}/tree") as daemon:
        address, _, port = daemon.facts("started")[0]["http"].rpartition(":")
        assert address == "[::]"
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=DEADLINE_S) as answer:
                assert answer.read() == b"ready\n"


def test_memory_in_command_out(place: str, llm: FakeCgroup) -> None:
    """A sample over the mark is a command at the socket, a level line, a line in the log, and numbers in /metrics."""
    with start(place) as daemon, Subscriber(daemon.socket_path, HELLO) as server:
        assert server.wait_for("welcome")["level"] == "normal"
        llm.usage(700 * MIB)
        command = server.wait_for("command", action="trim_kv_cache")
        assert command["parameters"]["release_bytes"] == 160 * MIB
        assert server.wait_for("level", level="elevated")["was"] == "normal"
        (sent,) = eventually(lambda: [fact for fact in daemon.facts("command_sent") if fact["seq"] == command["seq"]])
        assert sent["release_bytes"] == 160 * MIB
        assert daemon.metric("edgeguardd_target_level", target="llm") in {1, 2, 3}
        assert daemon.metric("edgeguardd_target_needed_bytes", target="llm") == 700 * MIB
        assert daemon.metric("edgeguardd_wakeup_to_deliver_seconds_count", cause="timer")
        eventually(lambda: daemon.metric("edgeguardd_commands_total", target="llm", outcome="ineffective"))


def test_a_scraper_gets_the_format_that_it_prefers(place: str, llm: FakeCgroup) -> None:
    """OpenMetrics as Prometheus asks for it, text as curl does; and each says that it depends on who asks."""
    with start(place) as daemon:
        for accept, kind, end in (
            ("application/openmetrics-text;version=1.0.0,*/*;q=0.1", "application/openmetrics-text", b"# EOF\n"),
            ("*/*", "text/plain", b"\n"),
        ):
            asked = urllib.request.Request(f"{daemon.http}/metrics", headers={"Accept": accept})  # noqa: S310
            with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310  loopback
                assert answer.headers["Content-Type"].startswith(f"{kind}; version=")
                assert answer.headers["Vary"] == "Accept"
                assert answer.read().endswith(end)


def test_a_useful_ack_ends_done_with_what_was_measured(place: str, llm: FakeCgroup) -> None:
    """The daemon looks at memory before it believes the ack: 300 MiB went, whatever the server claims."""
    with start(place) as daemon, Subscriber(daemon.socket_path, HELLO, ack=None) as server:
        llm.usage(700 * MIB)
        command = server.wait_for("command")
        llm.usage(400 * MIB)
        server.send(
            {"type": "ack", "v": 1, "seq": command["seq"], "status": "done", "effect": "released", "released_bytes": 1}
        )
        ended = eventually(lambda: daemon.facts("command_ended"))[0]
        assert (ended["outcome"], ended["claimed_bytes"], ended["freed_bytes"]) == ("done", 1, 300 * MIB)


def test_systemd_is_told_ready_status_reloading_watchdog_and_stopping(place: str, llm: FakeCgroup) -> None:
    """READY=1 comes after the sockets are bound; STATUS names the worst level; the watchdog is fed."""
    notify = NotifySocket(f"{place}/notify")
    daemon = start(place, start=False)
    daemon.environment = {"NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "200000"}
    daemon.start(wait=False)
    notify.wait_for("READY=1")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(daemon.socket_path)
    notify.wait_for("WATCHDOG=1")
    llm.usage(950 * MIB)
    assert "critical" in notify.wait_for("STATUS=critical")
    daemon.hang_up()
    assert "MONOTONIC_USEC=" in notify.wait_for("RELOADING=1")
    notify.wait_for("READY=1")
    daemon.process.terminate()  # type: ignore[union-attr]
    notify.wait_for("STOPPING=1")
    assert daemon.stop() == 0
    notify.socket.close()


def test_the_watchdog_starves_and_health_fails_when_samples_stop(place: str, llm: FakeCgroup) -> None:
    """A target whose files cannot be read any more: degraded at once, unhealthy when the last sample is old."""
    with start(place) as daemon:
        assert daemon.get("/healthz") == "ok\n"
        llm.write("memory.current", "")
        eventually(lambda: daemon.status()["targets"][0]["degraded"])
        with pytest.raises(urllib.error.HTTPError) as refused:
            eventually(lambda: not daemon.get("/healthz"))
        assert refused.value.code == 503
        refused.value.close()
        assert len(daemon.facts("target_degraded")) == 1


def test_what_cannot_be_read_any_more_is_not_known(place: str, llm: FakeCgroup) -> None:
    """Garbled figures beside counters that move: the level is what the counters say, and no old figure belies it."""
    garbled = {"memory.current": "garbage\n", "memory.stat": "anon 1x\n\x00"}
    with start(place) as daemon:
        llm.usage(0)
        eventually(lambda: daemon.status()["targets"][0]["used_ratio"] == 0)
        for name, content in garbled.items():
            llm.write(name, content)
        llm.events(oom=1)
        eventually(lambda: daemon.status()["targets"][0]["level"] == "emergency")
        target = daemon.status()["targets"][0]
        assert target["degraded"]
        figures = ("used_ratio", "needed_bytes", "current_bytes", "headroom_bytes", "growth_bytes_per_s")
        assert [target[name] for name in figures] == [None] * 5
        assert daemon.metric("edgeguardd_target_used_ratio") is None
        assert daemon.metric("edgeguardd_target_degraded") == 1
        port = daemon.http.removeprefix("http://")
        command = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "status", "--http", port]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout
        assert "0%" not in said
        assert "cannot be read: cannot use " in said
        llm.usage(50 * MIB)
        eventually(lambda: daemon.status()["targets"][0]["used_ratio"] == 0.05)


def test_one_broken_target_does_not_stop_the_others(place: str, llm: FakeCgroup) -> None:
    """Its sibling is judged as before."""
    other = FakeTree(f"{place}/tree").cgroup("/other", max_bytes=1000 * MIB)
    llm.write("memory.max", "")
    with start(place, TARGET + '[[target]]\nname = "other"\npath = "/other"\n') as daemon:
        other.usage(950 * MIB)

        def levels() -> bool:
            rows = {row["name"]: row for row in daemon.status()["targets"]}
            return rows["other"]["level"] == "critical" and bool(rows["llm"]["degraded"])

        eventually(levels)


def test_sigterm_says_bye_and_leaves_nothing(place: str, llm: FakeCgroup) -> None:
    """Exit status 0, a bye to everyone, no socket file, cgroup files untouched."""
    before = contents(llm.path)
    with start(place) as daemon:
        server = Subscriber(daemon.socket_path, HELLO)
        server.wait_for("welcome")
        assert daemon.stop() == 0
        server.wait_for("bye")
        server.close()
        assert not os.path.exists(daemon.socket_path)
    assert contents(llm.path) == before


def test_after_kill_9_the_next_start_takes_the_socket_over(place: str, llm: FakeCgroup) -> None:
    """The stale socket is no obstacle, and the run before goes on: the same epoch, level and restrictions."""
    llm.usage(950 * MIB)
    with start(place) as daemon:
        with Subscriber(daemon.socket_path, HELLO, ack=None) as first:
            old = first.wait_for("welcome")
            daemon.kill()
        assert os.path.exists(daemon.socket_path)
        daemon.start()
        with Subscriber(daemon.socket_path, HELLO, ack=None) as second:
            new = second.wait_for("welcome")
            assert new["level"] == "critical"
            assert new["accept_requests"] is False
            assert new["epoch"] == old["epoch"]
            second.wait_for("command", action="reject_requests")


def test_signals_that_mean_nothing_to_it_have_their_usual_effect(place: str, llm: FakeCgroup) -> None:
    """SIGPIPE is ignored, as a log that nobody reads must not end the guard; SIGUSR1 ends it as it ends any program."""
    with start(place) as daemon:
        os.kill(daemon.pid, signal.SIGPIPE)
        daemon.hang_up()
        eventually(lambda: daemon.metric("edgeguardd_reloads_total", result="applied"))
        os.kill(daemon.pid, signal.SIGUSR1)
        assert daemon.process is not None
        assert daemon.process.wait(20) == -signal.SIGUSR1
        assert "Traceback" not in daemon.log_text()
        daemon.start()


def test_kill_9_of_a_subscriber_ends_its_commands(place: str, llm: FakeCgroup) -> None:
    """Every outstanding command ends lost, and that nobody is left to ask is said."""
    script = "import socket,sys,json;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);"
    script += 's.sendall(json.dumps({"type":"hello","v":1,"name":"t","target":"llm"}).encode()+b"\\n");'
    script += 'f=s.makefile();print(next(l for l in f if "command" in l),flush=True);f.read()'
    llm.usage(950 * MIB)
    with start(place) as daemon:
        argv = [sys.executable, "-c", script, daemon.socket_path]
        with ending(subprocess.Popen(argv, stdout=subprocess.PIPE)) as server:
            assert server.stdout is not None
            server.stdout.readline()
            os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: len([f for f in daemon.facts("command_ended") if f["outcome"] == "lost"]) == 3)
        assert daemon.facts("nobody_to_ask")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing directories", "cannot listen on"),
        ("taken by a file", "cannot listen on"),
        ("no such tree", "cannot"),
    ],
)
def test_what_cannot_start_says_one_sentence_and_changes_nothing(
    place: str, llm: FakeCgroup, what: str, says: str
) -> None:
    """Exit status 1, one sentence with the remedy on standard error, no traceback, no file made or lost."""
    config = f'cgroup_root = "{place}/tree"\n[socket]\npath = "{place}/s"\n[http]\nport = 0\n'
    config = f'state_directory = "{place}/state"\n' + config
    match what:
        case "missing directories":
            config = config.replace(f"{place}/s", f"{place}/no/where/s")
        case "taken by a file":
            with open(f"{place}/s", "w") as file:
                file.write("precious")
        case "no such tree":
            config = config.replace(f"{place}/tree", f"{place}/nowhere")
    with open(f"{place}/c.toml", "w") as file:
        file.write(config)
    argv = [sys.executable, "-m", "edgeguardd", "run", "--config", f"{place}/c.toml"]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    (sentence,) = [line for line in ended.stderr.splitlines() if line.startswith("edgeguardd: ")]
    assert says in sentence
    assert "Traceback" not in ended.stderr
    if what == "taken by a file":
        assert contents(place)["s"] == "precious"
    else:
        assert not os.path.exists(f"{place}/s")


def test_a_reload_adds_and_drops_targets_and_new_marks_count_at_once(place: str, llm: FakeCgroup) -> None:
    """SIGHUP with another target and lower marks: both in force without a restart, the subscriber stays."""
    FakeTree(f"{place}/tree").cgroup("/other", max_bytes=1000 * MIB)
    with start(place) as daemon, Subscriber(daemon.socket_path, HELLO) as server:
        server.wait_for("welcome")
        marks = 'elevated = "8%"\nhigh = "50%"\n'
        daemon.write_config(TARGET.replace("[sampling]", f'{marks}[[target]]\nname = "b"\npath = "/other"\n[sampling]'))
        daemon.hang_up()
        server.wait_for("command", action="trim_kv_cache")
        assert {row["name"] for row in daemon.status()["targets"]} == {"llm", "b"}
        daemon.write_config("")
        daemon.hang_up()
        server.wait_for("bye")
        eventually(lambda: daemon.status()["targets"] == [])


def test_a_file_that_was_emptied_is_obeyed_and_said(place: str, llm: FakeCgroup) -> None:
    """A copy onto a full disk leaves one: which file, how many there were, and what to do; once, not at each reload."""
    with start(place) as daemon:
        daemon.hang_up()
        eventually(lambda: daemon.metric("edgeguardd_reloads_total", result="applied") == 1)
        assert daemon.facts("no_targets_left") == []
        daemon.write_config("")
        daemon.hang_up()
        eventually(lambda: daemon.metric("edgeguardd_reloads_total", result="applied") == 2)
        daemon.hang_up()
        eventually(lambda: daemon.metric("edgeguardd_reloads_total", result="applied") == 3)
        (said,) = daemon.facts("no_targets_left")
        assert (said["targets"], said["was"]) == (0, 1)
        assert said["configuration"] == daemon.status()["config"]["path"]
        assert "write the [[target]] tables again and reload" in said["remedy"]


def test_how_old_a_sample_may_be_follows_the_configuration(place: str, llm: FakeCgroup) -> None:
    """As /healthz judges it: what alerts compare the age with. At rest samples come at twice the slow interval."""
    with start(place, TARGET.replace("slow = 0.1", 'slow = "30s"')) as daemon:
        assert daemon.metric("edgeguardd_sample_stale_after_seconds") == 150
        daemon.write_config(TARGET.replace("slow = 0.1", "slow = 2"))
        daemon.hang_up()
        eventually(lambda: daemon.metric("edgeguardd_sample_stale_after_seconds") == 10)


def test_a_target_that_comes_and_goes_is_followed(place: str, llm: FakeCgroup) -> None:
    """It may be missing at the start; it appears, is judged, goes, and comes again."""
    tree = FakeTree(f"{place}/tree")
    with start(place, '[[target]]\nname = "late"\npath = "/late"\n') as daemon:
        for _ in range(3):
            assert eventually(lambda: not daemon.status()["targets"][0]["present"])
            late = tree.cgroup("/late", max_bytes=1000 * MIB)
            late.usage(950 * MIB)
            eventually(lambda: daemon.status()["targets"][0]["level"] == "critical")
            shutil.rmtree(late.path)


def test_a_running_daemon_has_no_openssl(place: str, llm: FakeCgroup) -> None:
    """Megabytes that a box under pressure does not have, for a protocol that none of its sockets speaks."""
    with start(place) as daemon:
        assert daemon.status()["targets"]
        with open(f"/proc/{daemon.pid}/maps") as file:
            mapped = file.read()
        assert "libpython" in mapped or "python3" in mapped
        assert "libcrypto" not in mapped
        assert "libssl" not in mapped


def test_a_full_log_does_not_stop_the_daemon(place: str, llm: FakeCgroup) -> None:
    """Standard error on a full disk: lines are dropped and counted, commands go out."""
    with open("/dev/full", "wb") as full, start(place, start=False) as daemon:
        argv = [sys.executable, "-m", "edgeguardd", "run", "--config", daemon.config_path, "--http", "off"]
        daemon.process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=full, stderr=full)
        eventually(daemon.listens)
        with Subscriber(daemon.socket_path, HELLO) as server:
            server.wait_for("welcome")
            llm.usage(950 * MIB)
            server.wait_for("command", action="reject_requests")
        assert daemon.stop() == 0


def test_without_configuration_a_subscriber_outside_any_limit_is_welcome(place: str, llm: FakeCgroup) -> None:
    """Zero configuration: "self" in a tree that does not hold the peer's cgroup is one clear error."""
    with start(place, "") as daemon, Subscriber(daemon.socket_path, {"name": "x", "target": "self"}) as server:
        error = server.wait_for("error")
        assert error["code"] in {"unknown_target", "not_allowed"}
        assert error["message"].startswith("cannot")


def test_the_start_imports_nothing_that_only_the_terminal_uses() -> None:
    """python -X importtime: no rich, no pyroute2, no command-line views in the daemon."""
    script = "import edgeguardd.cli.edgeguardd, edgeguardd.daemon"
    argv = [sys.executable, "-X", "importtime", "-c", script]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in ended.stderr.splitlines() if "|" in line}
    assert "msgspec" in imported
    assert not imported & {"rich", "pyroute2", "curses", "readline", "hypothesis"}
