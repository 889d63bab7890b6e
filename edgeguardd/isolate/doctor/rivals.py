"""Other daemons that act on memory pressure, and how to live with each.

Must not: read. Upstream: facts. Downstream: checks.
They kill; edgeguardd asks first. What asks needs time, so whoever kills should not kill what is being asked.
"""

from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import Facts

# /proc/PID/comm holds that many characters of a name.
COMM_CHARS = 15


class Rival(Struct, frozen=True):
    """One of them. `comm`: its name in /proc/PID/comm."""

    comm: str
    does: str
    remedy: str


RIVALS = (
    Rival(
        "systemd-oomd",
        "kills whole cgroups by pressure and swap use, perhaps the very server that is being asked to trim",
        "set ManagedOOMPreference=avoid in [Service] of the guarded units (systemctl edit UNIT; from systemd 248 on), "
        "and leave ManagedOOMSwap= and ManagedOOMMemoryPressure= of their slices at auto; or switch it off: "
        "systemctl disable --now systemd-oomd.service systemd-oomd.socket",
    ),
    Rival(
        "earlyoom",
        "kills the process with the highest oom_score, usually the server, when RAM and swap have less than 10% left",
        "exempt the guarded servers with --avoid '^(llama-server)$' in EARLYOOM_ARGS of /etc/default/earlyoom and run "
        "systemctl restart earlyoom; or switch it off: systemctl disable --now earlyoom",
    ),
    Rival(
        "nohang",
        "warns and kills by its own thresholds of memory, swap and PSI",
        "lower the guarded servers' badness with @BADNESS_ADJ_RE_NAME -1000 /// ^llama-server$ in "
        "/etc/nohang/nohang.conf (nohang-desktop.conf for nohang-desktop) and restart it; or switch it off: "
        "systemctl disable --now nohang nohang-desktop",
    ),
    Rival(
        "oomd",
        "kills cgroups by the rules of its oomd.json",
        "keep the guarded cgroups out of the cgroup patterns of its rules (/etc/oomd/oomd.json) and restart it; or "
        "switch it off: systemctl disable --now oomd",
    ),
    Rival(
        "lmkd",
        "kills by PSI and oom_score_adj, as on Android",
        "give the guarded servers a low oom_score_adj (OOMScoreAdjust= of their units), or stop it",
    ),
)


def findings(facts: Facts) -> Iterator[Finding]:
    """One for each that runs; one in all when none does."""
    for rival in RIVALS:
        if rival.comm in (facts.running or ()):
            yield Finding("rival daemons", Verdict.WARN, f"{rival.comm} runs here, and {rival.does}", rival.remedy)
    if facts.running is None:
        says = "no process can be seen here, so none of other daemons"
        yield Finding("rival daemons", Verdict.WARN, says, "mount procfs on /proc, or run doctor as root")
    elif not facts.running:
        names = ", ".join(rival.comm for rival in RIVALS)
        seen = " (as far as this user may see)" if facts.hides_processes and facts.user != 0 else ""
        yield Finding("rival daemons", Verdict.OK, f"none of {names} runs here{seen}")
