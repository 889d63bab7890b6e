"""What HTTP serves: /metrics, /healthz, /readyz, /status (JSON that answers what a person asks first), and the page.

Must not: compute anything new. Upstream: engine, the shells' status. Downstream: daemon (serves it), edgeguardctl.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import to_builtins

from edgeguardd import __version__, exposition, oomscores, webpage
from edgeguardd.core import limits
from edgeguardd.core.config import SamplingConfig
from edgeguardd.core.effects import CommandEnded
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import LastResortEnded
from edgeguardd.core.model import Level
from edgeguardd.core.policy import stale_after_s
from edgeguardd.core.target import Target
from edgeguardd.keeperstats import KeeperStats, state_row
from edgeguardd.kernel.guarded import TargetStatus
from edgeguardd.kernel.machine import Machine
from edgeguardd.kernel.scores import ScoreStats
from edgeguardd.kernel.targets import Targets
from edgeguardd.metrics import Metrics
from edgeguardd.oomreports import OomStats
from edgeguardd.serve.http import Request, Response
from edgeguardd.serve.subscribers import SubscriberServer

# Outcomes shown by /status; older ones are in the log and in the metrics.
SHOWN_COMMANDS = 32

TEXT = "text/plain; charset=utf-8"


class Pages:
    """The HTTP routes of one daemon."""

    def __init__(
        self,
        epoch: str,
        config_path: str | None,
        engine: Engine,
        targets: Targets,
        subscribers: SubscriberServer,
        metrics: Metrics,
        machine: Machine,
    ) -> None:
        self.ready = False
        self.sampling = SamplingConfig()
        self.watchers: Callable[[], Mapping[str | None, int]] = dict
        self.oom: Callable[[], OomStats] = OomStats
        self.state: KeeperStats | None = None
        self.scores: Callable[[], ScoreStats] = ScoreStats
        self._epoch = epoch
        self._config_path = config_path
        self._engine = engine
        self._targets = targets
        self._subscribers = subscribers
        self._metrics = metrics
        self._machine = machine
        self._started_at = time.monotonic()
        self._last_commands: deque[tuple[CommandEnded, float]] = deque(maxlen=SHOWN_COMMANDS)
        self._last_resorts: dict[str, tuple[LastResortEnded, float]] = {}

    def routes(self) -> Mapping[str, Callable[[Request], Response]]:
        """Path -> handler, for HttpServer."""
        page = webpage.response()
        return {
            "/": lambda _: page,
            "/metrics": self._scrape,
            "/healthz": lambda _: self._healthz(),
            "/readyz": lambda _: self._readyz(),
            "/status": lambda _: Response(200, "application/json", msgspec.json.encode(self.status())),
        }

    def ended(self, end: CommandEnded) -> None:
        """Remember an outcome for /status."""
        self._last_commands.append((end, time.monotonic()))

    def resorted(self, end: LastResortEnded) -> None:
        """Remember what became of a last resort, the latest of each target that there still is."""
        self._last_resorts[end.target] = (end, time.monotonic())
        for gone in self._last_resorts.keys() - self._engine.targets.keys():
            del self._last_resorts[gone]

    def stale_s(self) -> float | None:
        """The age of the oldest sample of a present target when it is too old to be trusted, else None."""
        return self._too_old(self._targets.oldest_sample_age_s(time.monotonic()))

    def blind_s(self) -> float | None:
        """How long ago the daemon last looked at some target when that is too long, else None."""
        return self._too_old(self._targets.oldest_look_age_s(time.monotonic()))

    def _too_old(self, age_s: float | None) -> float | None:
        return age_s if age_s is not None and age_s > stale_after_s(self.sampling) else None

    def status(self) -> dict[str, Any]:
        """The JSON of /status."""
        now = time.monotonic()
        watched = self._targets.status(now)
        watchers = self.watchers()
        return {
            "version": __version__,
            "epoch": self._epoch,
            "uptime_s": round(now - self._started_at, 3),
            "config": {"path": self._config_path},
            "ready": self.ready and self._subscribers.stands(),
            "stale_s": self.stale_s(),
            "worst_level": self._engine.guard.worst_level().word,
            "machine": self._machine_row(now),
            "targets": [
                {
                    **_target(target, watched.get(name), now),
                    "watchers": watchers.get(name, 0),
                    "last_resort": self._last_resort(target, now),
                }
                for name, target in self._engine.targets.items()
            ],
            "subscribers": [to_builtins(row) for row in self._subscribers.subscribers()],
            "last_commands": _commands(self._last_commands, now),
            "kernel_log": _kernel_log(self.oom()),
            "oom_scores": oomscores.status(self.scores()),
            "state": state_row(self.state),
        }

    def _machine_row(self, now: float) -> dict[str, Any]:
        gauge = self._engine.machine
        row: dict[str, Any] = to_builtins(self._machine.status(now))
        age_s = None if gauge.level_at is None else round(now - gauge.level_at, 3)
        known = {"level": gauge.level.word, "reason": gauge.reason, "level_age_s": age_s}
        return {**known, "wanted_bytes": gauge.wanted_bytes, **row}

    def _last_resort(self, target: Target, now: float) -> dict[str, Any]:
        end, at = self._last_resorts.get(target.name, (None, now))
        return {
            "configured": any(target.policy.last_resort.steps(level) for level in Level),
            "running": target.resorting,
            "last": None
            if end is None
            else {
                "action": end.action.value,
                "outcome": end.outcome,
                "age_s": round(now - at, 3),
                "message": end.message,
            },
        }

    def _scrape(self, request: Request) -> Response:
        form = exposition.wanted(request.accept)
        return Response(200, form.value, self._metrics.written(form, time.monotonic()), (("Vary", "Accept"),))

    def _healthz(self) -> Response:
        stale_s = self.stale_s()
        if stale_s is None:
            failing = self.state is not None and self.state.failing
            return Response(200, TEXT, b"ok; what outlives the daemon cannot be written\n" if failing else b"ok\n")
        return Response(503, TEXT, f"the last sample is {stale_s:.1f} s old\n".encode())

    def _readyz(self) -> Response:
        if self.ready and not self._subscribers.stands():
            return Response(503, TEXT, f"not ready: {self._subscribers.place} is gone\n".encode())
        return Response(200, TEXT, b"ready\n") if self.ready else Response(503, TEXT, b"not ready\n")


def _target(target: Target, watched: TargetStatus | None, now: float) -> dict[str, Any]:
    gauge = target.gauge
    pressure = gauge.pressure
    # What cannot be read now is not known: an old figure beside a level that has risen since would belie it.
    blind = target.degraded is not None
    own = None if blind or target.sample is None else target.sample.usages[0]
    figures = None if blind else pressure
    return {
        "name": target.name,
        "path": target.path,
        "present": target.present,
        "watch": None if watched is None else watched.watch,
        "level": target.level.word,
        "reason": gauge.calls if target.level is Level.NORMAL else target.reason,
        "level_age_s": None if target.level_at is None else round(now - target.level_at, 3),
        "calls": None if blind else gauge.calls,
        "needed_bytes": None if blind else gauge.needed_bytes,
        "current_bytes": None if own is None else own.current_bytes,
        "static_bytes": target.static_bytes,
        "limit_bytes": None if pressure is None else pressure.limit_bytes,
        "limit_kind": None if pressure is None else pressure.kind.value,
        "limit_path": None if pressure is None else pressure.path,
        "headroom_bytes": None if figures is None else figures.headroom_bytes,
        "used_ratio": None if figures is None else round(max(0.0, figures.ratio), 4),
        "marks": None if pressure is None else _marks(target, pressure),
        "growth_bytes_per_s": None if blind else round(gauge.growth.bytes_per_s),
        "rung": target.ledger.rung.word,
        "exhausted": target.ledger.exhausted,
        "relief": target.relief.phase.value,
        "lead_s": round(target.lead_s, 3),
        "evicted_bytes": gauge.evicted_bytes,
        "psi_ratio": None if gauge.psi_ratio is None else round(gauge.psi_ratio, 4),
        "in_force": to_builtins(target.ledger.obeyed()),
        "counters": None if watched is None or watched.counters is None else to_builtins(watched.counters),
        "sample_age_s": None if watched is None else watched.sample_age_s,
        "degraded": target.degraded,
        "outstanding": [
            {
                "seq": waiting.command.seq,
                "action": waiting.command.action.value,
                "subscriber": waiting.subscriber,
                "status": "accepted" if waiting.accepted else "sent",
                "age_s": round(now - waiting.sent_at, 3),
            }
            for waiting in target.ledger.outstanding.values()
        ],
    }


def _kernel_log(stats: OomStats) -> dict[str, Any]:
    return {
        "readable": stats.readable,
        "why": stats.why,
        "reports": sum(stats.reports.values()),
        "victims": stats.victims,
        "lost_records": stats.lost_records,
        "last_report": stats.last,
    }


def _commands(ended: Iterable[tuple[CommandEnded, float]], now: float) -> list[dict[str, Any]]:
    return [
        {
            "seq": end.seq,
            "target": end.target,
            "action": end.action.value,
            "outcome": end.outcome.value,
            "took_s": round(end.took_s, 4),
            "claimed_bytes": end.claimed_bytes,
            "freed_bytes": end.freed_bytes,
            "subscriber": end.subscriber,
            "age_s": round(now - at, 3),
            "message": end.message,
        }
        for end, at in ended
    ]


def _marks(target: Target, pressure: limits.Pressure) -> dict[str, int]:
    at = limits.marks(target.policy, pressure)
    return {name: getattr(at, name) for name in at.__struct_fields__}
