"""What others say about kills: systemd about its units, systemd-oomd, Android's killers, earlyoom, nohang and such.

Must not: take what they say for a kernel OOM kill: each is a kind of its own. Upstream: nothing. Downstream: collector.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

MAX_TALOS_VICTIMS: Final = 1024


class UnitSaid(Struct, frozen=True):
    """systemd about a unit: `result` oom-kill, or how many processes systemd-oomd killed in it, or neither."""

    unit: str
    result: str | None = None
    killed_by_oomd: int | None = None


class OomdKilled(Struct, frozen=True):
    """systemd-oomd killed (`Killed X due to`) or is about to (`Marked X for killing due to`) a cgroup."""

    cgroup: str
    monitored: str | None
    pressure_pct: float | None = None
    limit_pct: float | None = None
    duration_s: float | None = None
    reason: str = "pressure"


class LowMemoryKilled(Struct, frozen=True):
    """Android's driver (`lowmemorykiller: Killing`) or daemon (lmkd, `lowmemorykiller: Kill`)."""

    pid: int
    comm: str
    score_adj: int | None
    uid: int | None = None
    to_free_kb: int | None = None
    on_behalf_of: str | None = None
    on_behalf_of_pid: int | None = None
    rss_kb: int | None = None
    swap_kb: int | None = None
    reason: str | None = None


class LowMemoryReason(Struct, frozen=True):
    """The second line of the driver's message."""

    to_free_kb: int
    on_behalf_of: str
    on_behalf_of_pid: int


class UserspaceKilled(Struct, frozen=True):
    """A killer in user space sent a signal to a process, or to all of a cgroup."""

    killer: str
    pid: int | None = None
    comm: str | None = None
    uid: int | None = None
    signal: str | None = None
    score: int | None = None
    rss_kb: int | None = None
    cgroup: str | None = None


class TalosVictims(Struct, frozen=True):
    """The processes of the cgroup that Talos has just killed."""

    processes: tuple[int | str, ...]


class KubeletSaw(Struct, frozen=True):
    """kubelet's node event about a kernel kill: no kill of its own."""

    comm: str
    pid: int | None


Other = TalosVictims | UnitSaid | OomdKilled | LowMemoryKilled | LowMemoryReason | UserspaceKilled | KubeletSaw

_UNIT_KILL = re.compile(
    r"(\S{1,255}\.(?:service|scope|slice|socket|mount|swap)): "
    r"(?:A process of this unit has been killed by the OOM killer"
    r"|The kernel OOM killer killed some processes in this unit)"
)
_UNIT_RESULT = re.compile(r"(\S{1,255}\.(?:service|scope|slice|socket|mount|swap)): Failed with result '(oom-kill)'")
_UNIT_OOMD = re.compile(
    r"(\S{1,255}\.(?:service|scope|slice)): systemd-oomd killed (?:(\d{1,9})|some) process\(es\) in this unit"
)
_OOMD_KILLED = re.compile(
    r"(?:Killed ((?:/|…|\w)\S*) due to|Marked ((?:/|…|\w)\S*) for killing due to) (memory .*|swap .*)", re.DOTALL
)
_OOMD_PRESSURE = re.compile(
    r"memory pressure for (\S+) being (?:(\d+(?:\.\d+)?)% > (\d+(?:\.\d+)?)% for > (\d+)(ms|min|s|h)?)?"
)
_OOMD_MONITORED = re.compile(r"memory pressure for (\S+) be")
_SECONDS: Final = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, None: 1}

_LMK_KILLING = re.compile(
    r"lowmemorykiller: Killing '(.*?)' \((\d{1,10})\)(?: \(tgid \d+\))?,? ?(?:\(?adj (-?\d{1,5})\)?)?", re.DOTALL
)
_LMK_OLD = re.compile(
    r"(?:lowmemorykiller: )?send sigkill to (\d{1,10}) \((.*?)\),? (?:oom_)?adj (-?\d{1,5}), size (\d{1,10})", re.DOTALL
)
_LMK_BECAUSE = re.compile(r"\s*to free (\d{1,12})kB on behalf of '(.*?)' \((\d{1,10})\)", re.DOTALL)
_LMKD = re.compile(
    r"lowmemorykiller: Kill '(.*?)' \((\d{1,10})\), uid (\d{1,10}), (?:oom_score_adj|oom_adj) (-?\d{1,5})"
    r"(?: to free (\d{1,12})kB(?: rss)?(?:, (\d{1,12})kB swap)?)?(?:; reason: (.*))?",
    re.DOTALL,
)

_EARLYOOM = re.compile(
    r'sending (SIG(?:TERM|KILL)) to process (\d{1,10})(?: uid (\d{1,10}))? "(.*)": (?:badness|oom_score) (-?\d{1,5}),'
    r"(?: oom_score_adj -?\d+,)? VmRSS:? (\d{1,9}) MiB",
    re.DOTALL,
)
_EARLYOOM_OLD = re.compile(
    r"Killing process '(.*)' with signal (\d{1,2}), pid: (\d{1,10}), badness: (-?\d{1,5}), VmRSS: (\d{1,9}) MiB",
    re.DOTALL,
)
_EARLYOOM_OLDER = re.compile(
    r"Killing process:? (.*), pid: (\d{1,10}), badness: (-?\d{1,5}), VmRSS: (\d{1,9}) MiB", re.DOTALL
)
_NOHANG = re.compile(
    r"(?:\[ OK \] )?Send(?:ing)? (SIG(?:TERM|KILL))(?: \(\d+\))? to (?:the victim:? )?(?:PID )?(\d{1,10})?"
    r"[ ,]*(?:\(?(.{1,64}?)\)?)?$",
    re.IGNORECASE,
)
_TALOS = re.compile(r"\[talos\] Sending SIGKILL to cgroup (\{.*\})", re.DOTALL)
_TALOS_VICTIMS = re.compile(r"\[talos\] victim processes: (\{.*\})", re.DOTALL)
_FACEBOOK = re.compile(r"(?:\d+(?:\.\d+)? ){3,}(\S{1,1000}) \d+ ruleset:\[.*\] detectorgroup:", re.DOTALL)
_KUBELET = re.compile(r".{0,300}?System OOM encountered, victim process: (.*?)(?:, pid: (\d{1,10}))?\s*$", re.DOTALL)


def _unit(text: str) -> UnitSaid | None:
    if found := _UNIT_KILL.match(text):
        return UnitSaid(found[1])
    if found := _UNIT_RESULT.match(text):
        return UnitSaid(found[1], result=found[2])
    found = _UNIT_OOMD.match(text)
    return None if found is None else UnitSaid(found[1], killed_by_oomd=int(found[2]) if found[2] else 0)


def _oomd(text: str) -> OomdKilled | None:
    found = _OOMD_KILLED.match(text)
    if found is None:
        return None
    cgroup, why = found[1] or found[2], found[3]
    if pressure := _OOMD_PRESSURE.match(why):
        return OomdKilled(
            cgroup,
            pressure[1],
            float(pressure[2]) if pressure[2] else None,
            float(pressure[3]) if pressure[3] else None,
            int(pressure[4]) * _SECONDS[pressure[5]] if pressure[4] else None,
        )
    if monitored := _OOMD_MONITORED.match(why):
        return OomdKilled(cgroup, monitored[1])
    return OomdKilled(cgroup, None, reason="swap" if "swap used" in why else "pressure")


def _low_memory(text: str) -> LowMemoryKilled | LowMemoryReason | None:
    if found := _LMKD.match(text):
        return LowMemoryKilled(
            int(found[2]),
            found[1],
            int(found[4]),
            uid=int(found[3]),
            rss_kb=_kb(found[5]),
            swap_kb=_kb(found[6]),
            reason=found[7].strip() if found[7] else None,
        )
    if found := _LMK_KILLING.match(text):
        because = _LMK_BECAUSE.search(text, found.end())
        return LowMemoryKilled(
            int(found[2]),
            found[1],
            _kb(found[3]),
            to_free_kb=int(because[1]) if because else None,
            on_behalf_of=because[2] if because else None,
            on_behalf_of_pid=int(because[3]) if because else None,
        )
    if found := _LMK_OLD.match(text):
        return LowMemoryKilled(int(found[1]), found[2], int(found[3]))
    found = _LMK_BECAUSE.match(text)
    return None if found is None else LowMemoryReason(int(found[1]), found[2], int(found[3]))


def _kb(text: str | None) -> int | None:
    return None if text is None else int(text)


def _earlyoom(text: str) -> UserspaceKilled | None:
    if found := _EARLYOOM.match(text):
        return UserspaceKilled(
            "earlyoom", int(found[2]), found[4], _kb(found[3]), found[1], int(found[5]), int(found[6]) * 1024
        )
    if found := _EARLYOOM_OLD.match(text):
        signal = {"15": "SIGTERM", "9": "SIGKILL"}.get(found[2], found[2])
        return UserspaceKilled("earlyoom", int(found[3]), found[1], None, signal, int(found[4]), int(found[5]) * 1024)
    if found := _EARLYOOM_OLDER.match(text):
        return UserspaceKilled("earlyoom", int(found[2]), found[1], None, None, int(found[3]), int(found[4]) * 1024)
    return None


def _nohang(text: str) -> UserspaceKilled | None:
    found = _NOHANG.match(text)
    if found is None or (found[2] is None and not found[3]):
        return None
    return UserspaceKilled("nohang", _kb(found[2]), found[3] or None, None, found[1].upper())


def _talos(text: str) -> UserspaceKilled | TalosVictims | None:
    found = _TALOS.match(text) or _TALOS_VICTIMS.match(text)
    if found is None:
        return None
    try:
        value: Any = msgspec.json.decode(found[1].encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if found.re is _TALOS_VICTIMS:
        names = value.get("processes")
        rows = [row for row in names if isinstance(row, int | str)] if isinstance(names, list) else []
        return TalosVictims(tuple(rows[:MAX_TALOS_VICTIMS]))
    cgroup = value.get("cgroup")
    return UserspaceKilled("talos", signal="SIGKILL", cgroup=cgroup) if isinstance(cgroup, str) else None


def _facebook(text: str) -> UserspaceKilled | None:
    found = _FACEBOOK.match(text)
    return None if found is None else UserspaceKilled("oomd", cgroup="/" + found[1].lstrip("/"))


def _kubelet(text: str) -> KubeletSaw | None:
    found = _KUBELET.match(text)
    return None if found is None else KubeletSaw(found[1], _kb(found[2]))


_READERS: tuple[tuple[str, Callable[[str], Other | None]], ...] = (
    ("OOM killer", _unit),
    ("'oom-kill'", _unit),
    ("systemd-oomd killed", _unit),
    (" due to ", _oomd),
    ("lowmemorykiller: ", _low_memory),
    ("send sigkill to ", _low_memory),
    (" on behalf of '", _low_memory),
    ("sending SIG", _earlyoom),
    ("Killing process", _earlyoom),
    ("SIGTERM", _nohang),
    ("SIGKILL to cgroup", _talos),
    ("victim processes: ", _talos),
    ("SIGKILL", _nohang),
    (" detectorgroup:", _facebook),
    ("System OOM encountered", _kubelet),
)


def read(text: str) -> Other | None:
    """What the message says, if it is one of these."""
    for word, reader in _READERS:
        if word in text:
            said = reader(text)
            if said is not None:
                return said
    return None
