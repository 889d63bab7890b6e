"""What others say about kills is kept apart from the kernel's, each as a kind of its own."""

# ruff: noqa: E501 - lines of logs as they are

from tests.support.oomlogs import answer

TALOS = (
    'user: warning: [2026-01-12T20:27:31.913975631Z]: [talos] Sending SIGKILL to cgroup {"component": '
    '"controller-runtime", "controller": "runtime.OOMController", "cgroup": "/sys/fs/cgroup/kubepods/burstable/pod77"}'
)


def test_earlyoom_in_its_versions() -> None:
    """1.6 with the user, 1.3 without, 1.2 with another wording; SIGKILL after SIGTERM is the same kill."""
    lines = (
        'Feb 20 10:59:34 h earlyoom[1]: sending SIGTERM to process 7378 uid 1000 "tail": badness 156, VmRSS 4962 MiB',
        'Feb 20 10:59:35 h earlyoom[1]: sending SIGKILL to process 7378 uid 1000 "tail": badness 156, VmRSS 4962 MiB',
        'Feb 20 10:59:36 h earlyoom[1]: sending SIGTERM to process 12006 "python3": badness 209, VmRSS 2891 MiB',
        "Feb 20 10:59:37 h earlyoom[1]: Killing process 'bash' with signal 15, pid: 5874, badness: 538, VmRSS: 3160 MiB",
    )
    found = answer("\n".join(lines))
    assert found["events"] == []
    assert [(row["killer"], row["pid"], row["comm"], row["rss_kb"]) for row in found["userspace_kills"]] == [
        ("earlyoom", 7378, "tail", 4962 * 1024),
        ("earlyoom", 12006, "python3", 2891 * 1024),
        ("earlyoom", 5874, "bash", 3160 * 1024),
    ]
    assert found["userspace_kills"][0]["repeated"] == 2


def test_what_earlyoom_says_at_start_is_no_kill() -> None:
    """Its thresholds name the signals too."""
    lines = (
        "Feb 20 10:59:34 h earlyoom[1]: sending SIGTERM when mem <=  4.00% and swap <= 10.00%,",
        "Feb 20 10:59:34 h earlyoom[1]:         SIGKILL when mem <=  2.00% and swap <=  5.00%",
    )
    assert "userspace_kills" not in answer("\n".join(lines))


def test_talos_kills_a_cgroup() -> None:
    """Its controller is in the kernel's log, but is not the kernel."""
    found = answer(TALOS)
    assert found["events"] == []
    (row,) = found["userspace_kills"]
    assert (row["killer"], row["cgroup"]) == ("talos", "/sys/fs/cgroup/kubepods/burstable/pod77")
    victims = '[talos] victim processes: {"component": "x", "processes": [56372, "/bin/a b"]}'
    (row,) = answer(f"{TALOS}\n{victims}")["userspace_kills"]
    assert row["processes"] == [56372, "/bin/a b"]


def test_a_kubelets_event_is_no_kill_of_its_own() -> None:
    """It saw what the kernel did."""
    lines = (
        "Warning  SystemOOM   3m57s  kubelet         System OOM encountered, victim process: stress-ng-vm, pid: 3103923",
        (
            "Warning  OOMKilling  3m56s  kernel-monitor  Out of memory: Killed process 3103923 (stress-ng-vm) "
            "total-vm:15791416kB, anon-rss:14369596kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:1000"
        ),
    )
    found = answer("\n".join(lines))
    assert [(event["victim_pid"], event["oom_score_adj"]) for event in found["events"]] == [(3103923, 1000)]
    assert found["kubelet"] == [{"comm": "stress-ng-vm", "victim_pid": 3103923}]


def test_node_problem_detector_wraps_two_lines_into_one() -> None:
    """With an escaped newline, or a real one in JSON."""
    first = "Memory cgroup out of memory: Kill process 4321 (a b) score 1912 or sacrifice child"
    second = "Killed process 4321 (a b) total-vm:8kB, anon-rss:4kB, file-rss:4kB"
    for log in (
        f"5m  Warning  OOMKilling  node/x  {first}\\n{second}",
        '{"reason":"OOMKilling","message":"' + f"{first}\\n{second}" + '"}',
    ):
        (event,) = answer(log)["events"]
        assert (event["victim_pid"], event["comm"], event["scope"]) == (4321, "a b", "memcg")
        assert (event["chosen_score"], event["anon_rss_kb"]) == (1912, 4)


def test_systemd_and_the_kernel_about_one_kill() -> None:
    """The unit and its manager's unit are told, and neither is a kill more."""
    lines = (
        (
            "Dec 14 17:13:12 h kernel: Memory cgroup out of memory: Killed process 7 (a) total-vm:8kB, anon-rss:4kB, "
            "file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0"
        ),
        "Dec 14 17:13:12 h systemd[1]: x.service: A process of this unit has been killed by the OOM killer.",
        "Dec 14 17:13:12 h systemd[1]: x.service: Main process exited, code=killed, status=9/KILL",
        "Dec 14 17:13:12 h systemd[1]: x.service: Failed with result 'oom-kill'.",
        "Dec 14 17:13:13 h systemd[1]: y.slice: The kernel OOM killer killed some processes in this unit.",
    )
    found = answer("\n".join(lines))
    assert len(found["events"]) == 1
    assert found["systemd"] == [
        {"unit": "x.service", "manager_pid": 1, "result": "oom-kill"},
        {"unit": "y.slice", "manager_pid": 1},
    ]


def test_systemd_oomd_in_its_versions() -> None:
    """By swap and by pressure, killed or marked; attempts and failures are no kills."""
    lines = (
        (
            "Jan 1 00:00:01 h systemd-oomd[5]: Killed /a/b.service due to memory used (16370909184) / total (16498253824) and "
            "swap used (4100000000) / total (4294963200) being more than 90.00%"
        ),
        (
            "Jan 1 00:00:02 h systemd-oomd[5]: Killed /a/c.scope due to memory pressure for /a being 62.02% > 50.00% for > 30s "
            "with reclaim activity"
        ),
        "Jan 1 00:00:02 h systemd[1]: c.scope: systemd-oomd killed 12 process(es) in this unit.",
        "Jan 1 00:00:03 h systemd-oomd[5]: Failed to kill any cgroup(s) under /a based on pressure: No such device",
        "Jan 1 00:00:03 h systemd-oomd[5]: oomd attempting to kill 407 with KILL",
        (
            "19:46:58 systemd-oomd[726]: Marked …ea541d95.scope for killing due to memory used (16260780032) / total (16419115008) "
            "and swap used (29560922112) / total (32838500352) being more than 90.00%"
        ),
    )
    found = answer("\n".join(lines))
    assert found["events"] == []
    swap, pressure, marked = found["oomd"]
    assert (marked["killed_cgroup"], marked["reason"]) == ("…ea541d95.scope", "swap")
    assert (swap["killed_cgroup"], swap["reason"]) == ("/a/b.service", "swap")
    assert (pressure["monitored_cgroup"], pressure["pressure_pct"], pressure["duration_s"], pressure["processes"]) == (
        *("/a", 62.02, 30),
        12,
    )


def test_androids_driver_in_one_record() -> None:
    """/dev/kmsg shows its newlines escaped; the process on whose behalf it was is no victim."""
    log = (
        "6,2302,533604004,-;lowmemorykiller: Killing 'externalstorage' (21742), adj 1000,\\x0a   to free 27320kB on behalf "
        "of 'kswapd0' (47) because\\x0a   cache 181920kB is below limit 184320kB for oom_score_adj 1000\\x0a"
    )
    (event,) = answer(log)["events"]
    assert (event["victim_pid"], event["comm"], event["scope"]) == (21742, "externalstorage", "lowmemorykiller")
    assert (event["to_free_kb"], event["on_behalf_of"], event["on_behalf_of_pid"]) == (27320, "kswapd0", 47)


def test_androids_daemon_in_its_versions() -> None:
    """With and without swap and reason; logcat's own styles."""
    lines = (
        (
            "10-24 14:24:26.342   710   710 I lowmemorykiller: Kill 'com.a' (17933), uid 10446, oom_score_adj 900 to free "
            "140528kB rss, 37404kB swap; reason: low watermark is breached"
        ),
        "I/lowmemorykiller(  710): Kill 'com.b' (17934), uid 10447, oom_adj 906 to free 4kB",
    )
    events = answer("\n".join(lines))["events"]
    assert [(e["victim_pid"], e["comm"], e["uid"], e["oom_score_adj"], e["rss_kb"]) for e in events] == [
        (17933, "com.a", 10446, 900, 140528),
        (17934, "com.b", 10447, 906, 4),
    ]
    assert events[0]["reason"] == "low watermark is breached"
