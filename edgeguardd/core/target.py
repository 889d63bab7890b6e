"""Everything known of one target, and what it adds up to at one moment.

Must not: handle events (engine does). Upstream: policy, ledger, relief, admission. Downstream: engine, sharing, status.
"""

from msgspec import Struct, field

from edgeguardd.core import limits, policy
from edgeguardd.core.admission import Admissions
from edgeguardd.core.commands import Numbers
from edgeguardd.core.config import Policy
from edgeguardd.core.hint import Hint
from edgeguardd.core.ladder import Situation
from edgeguardd.core.ledger import Ledger
from edgeguardd.core.model import Action, Level, Report, Sample
from edgeguardd.core.policy import Gauge
from edgeguardd.core.relief import Relief


class Share(Struct, frozen=True):
    """What a target is asked for beyond its own limit.

    level, reason    of the machine or of a shared ancestor, for those who are asked to give for it
    wanted_bytes     what this target is asked to give for it
    deferred         the limit that binds is shared, and another target gives first
    """

    level: Level = Level.NORMAL
    reason: str = ""
    wanted_bytes: int = 0
    deferred: bool = False


class Target(Struct):
    """One target. `level` is what was last announced: the worst of its own, its ancestors' and the machine's.

    level_at    when that was; None: not since the start
    """

    name: str
    path: str
    policy: Policy
    gauge: Gauge
    ledger: Ledger
    admissions: Admissions
    relief: Relief = field(default_factory=Relief)
    hint: Hint = field(default_factory=Hint)
    level: Level = Level.NORMAL
    reason: str = "not sampled yet"
    level_at: float | None = None
    reports: dict[int, Report] = {}
    sample: Sample | None = None
    present: bool = False
    degraded: str | None = None
    interval_s: float | None = None
    recycling_noted: bool = False
    # limit and static bytes of the last word on what they do not allow
    limits_noted: tuple[int | None, int | None] | None = None
    # last resort: (level, place in its list) -> when it was last run
    resorted_at: dict[tuple[int, int], float] = {}
    resorting: bool = False

    @classmethod
    def new(cls, name: str, path: str, rules: Policy, numbers: Numbers) -> "Target":
        """A target of which nothing is known yet; its commands are numbered in this row."""
        gauge = Gauge()
        return cls(name, path, rules, gauge, Ledger(name, rules, gauge.lead, numbers), Admissions())

    def observe(self, sample: Sample, now: float) -> None:
        """Take a sample into the gauge."""
        loaded = self.ledger.obeyed().model_loaded
        policy.observe(self.gauge, self.policy, self.given_static_bytes, sample, now, loaded=loaded)

    @property
    def given_static_bytes(self) -> int | None:
        """What the target holds at rest, as configured or else as its subscribers report; None: nobody says."""
        if self.policy.static_bytes is not None:
            return self.policy.static_bytes
        reported = [r.static_bytes for r in self.reports.values() if r.static_bytes is not None]
        return sum(reported) if reported else None

    @property
    def static_bytes(self) -> int:
        """What the target holds at rest: configured, reported, or learned; 0 while nothing is known."""
        return policy.static_of(self.gauge, self.given_static_bytes)

    @property
    def own_limit_binds(self) -> bool:
        """Whether the limit that binds is the target's own, not a shared ancestor's."""
        return self.gauge.pressure is None or self.gauge.pressure.path == self.path

    @property
    def limit_path(self) -> str | None:
        """Whose limit binds; None: nobody's."""
        return None if self.gauge.pressure is None else self.gauge.pressure.path

    @property
    def request_bytes(self) -> int | None:
        """What one more request needs: the largest reported, else what was asked for lately."""
        reported = [r.bytes_per_request for r in self.reports.values() if r.bytes_per_request is not None]
        return max(reported, default=self.admissions.typical_bytes)

    @property
    def lead_s(self) -> float:
        """How long before the limit a trim has to be asked for."""
        return self.gauge.lead.seconds(self.policy.lead_floor_s, self.policy.lead_ceiling_s)

    def wanted_bytes(self) -> int:
        """What has to leave for the limit to stand below its mark, with what grows on while a trim is at work."""
        pressure = self.gauge.pressure
        if pressure is None:
            return 0
        coming = int(max(0.0, self.gauge.growth.bytes_per_s) * self.lead_s)
        return max(0, pressure.needed_bytes + coming - limits.release_goal(self.policy, pressure))

    def givable_bytes(self) -> int:
        """What the target could give: all above what it holds at rest and its floor."""
        return max(0, (self.gauge.needed_bytes or 0) - max(self.static_bytes, self.policy.floor_bytes))

    def situation(self, now: float, share: Share | None = None) -> Situation:
        """What policy says at this moment, for the ledger."""
        share = share or Share()
        gauge, pressure = self.gauge, self.gauge.pressure
        own_level = Level.NORMAL if share.deferred else gauge.level
        calls = gauge.called > Level.NORMAL and not share.deferred
        own = (own_level, policy.why(gauge, now))
        level, reason = (share.level, share.reason) if share.level > own_level else own
        wanted = max(share.wanted_bytes, self.wanted_bytes() if calls and self.own_limit_binds else 0)
        needed = gauge.needed_bytes
        most = 0 if needed is None else max(0, needed - self.policy.floor_bytes)
        return Situation(
            now=now,
            level=level,
            reason=reason,
            pressing=calls or share.wanted_bytes > 0,
            needed_bytes=needed,
            limit_bytes=None if pressure is None else pressure.limit_bytes,
            release_bytes=min(wanted, most),
            room_bytes=self.room_bytes(),
            request_bytes=self.request_bytes,
        )

    def hint_level(self, at: Situation) -> Level:
        """How bad it is for those who only heed pressure; NORMAL where the ladder asks for no trim, or none helped."""
        trims = any(step.action is Action.TRIM_KV_CACHE for step in self.policy.ladder.rung(at.level))
        return at.level if trims and at.pressing and not self.ledger.exhausted else Level.NORMAL

    def room_bytes(self) -> int | None:
        """What may still be taken below the critical mark; None: nothing limits it."""
        pressure = self.gauge.pressure
        return None if pressure is None else limits.marks(self.policy, pressure).critical_bytes - pressure.needed_bytes
