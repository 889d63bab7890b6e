"""What is known of one target between its samples.

Must not: read or emit. Upstream: nodes, tree, pressure. Downstream: sampler, targets.
"""

import asyncio

from msgspec import Struct

from edgeguardd.core.config import Policy
from edgeguardd.core.model import Counters
from edgeguardd.kernel.neighbourhood import Neighbourhood
from edgeguardd.kernel.nodes import Watched
from edgeguardd.kernel.pressure import StallAlarm
from edgeguardd.kernel.tree import Follower, Place


class Link:
    """One cgroup that a target stands on: its own, or an ancestor. `seen`: the counters already told; None: not yet."""

    __slots__ = ("place_path", "seen", "watched")

    def __init__(self, place_path: str, watched: "Watched[Guarded]", seen: Counters | None) -> None:
        self.place_path = place_path
        self.watched = watched
        self.seen = seen


class Standing(Struct, frozen=True):
    """Where a target stands between two runs of the daemon: which cgroup it is, and how many kills have been told.

    None: not known. dynamic: it is guarded because a subscriber asked for it.
    """

    path: str = ""
    inode: int | None = None
    kills: int | None = None
    dynamic: bool = False


class Guarded:
    """One target.

    `links`: its own cgroup first, then the ancestors towards the root; empty while the cgroup is absent or unreadable.
    `was_absent`: we have seen that it was not there, so all that the next one counts happened on our watch.
    `number`: which beat its regular looks are on.
    `told`: the counters already told when its files went and its directory stayed.
    `before`: where the run before this one has left it, until it has been looked at.
    """

    def __init__(self, name: str, path: str, policy: Policy, interval_s: float, *, dynamic: bool) -> None:
        self.name = name
        self.path = path
        self.policy = policy
        self.interval_s = interval_s
        self.dynamic = dynamic
        self.peers = 0
        self.number = 0
        self.place: Place | None = None
        self.follower: Follower | None = None
        self.links: list[Link] = []
        self.was_absent = False
        self.told: Counters | None = None
        self.before: Standing | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.second_look: asyncio.TimerHandle | None = None
        self.looks_left = 0
        self.neighbourhood: Neighbourhood | None = None
        self.alarm: StallAlarm | None = None
        self.attached_at = 0.0
        self.looked_at = 0.0
        self.sampled_at: float | None = None
        self.failure: str | None = None
        self.fault: str | None = None
        self.errors = 0

    @property
    def attached(self) -> bool:
        """Whether its files are open."""
        return bool(self.links)


def standing_of(target: Guarded) -> Standing:
    """What the next run has to know of it. What this one has not looked at yet is as the last one has left it."""
    own = target.links[0] if target.links else None
    identity = None if target.place is None else target.place.identity
    inode = None if identity is None else identity[1]
    if target.before is not None:
        return Standing(target.path, target.before.inode, target.before.kills, target.dynamic)
    kills = None if own is None or own.seen is None else own.seen.oom_kill
    return Standing(target.path, inode, kills, target.dynamic)


class TargetStatus(Struct, frozen=True):
    """One target as status and metrics show it.

    `watch`: "epoll" when its counters wake the daemon, "poll" when they are only read at `interval_s`.
    `degraded`: why its files cannot be used, in whole or in part. `errors`: readings that failed since it was added.
    `psi`: "trigger" when the kernel wakes us as its tasks wait for memory, "polled" when how long they waited is only
    read at each sample, "absent" when it is not known.
    `limited_by`: the ancestors that have a limit now, the nearest first. `counters`: those of its own memory.events.
    """

    path: str
    present: bool
    watch: str
    psi: str
    dynamic: bool
    interval_s: float
    sample_age_s: float | None
    degraded: str | None
    errors: int
    limited_by: tuple[str, ...]
    counters: Counters | None


def status_of(target: Guarded, shown_path: str, now: float) -> TargetStatus:
    """The row of one target; `now` as the sampler's clock tells it."""
    own = target.links[0] if target.links else None
    return TargetStatus(
        path=shown_path,
        present=target.place is not None and target.place.present,
        watch="epoll" if own is not None and own.watched.woken_fd is not None else "poll",
        psi="absent" if target.alarm is None else target.alarm.mode,
        dynamic=target.dynamic,
        interval_s=target.interval_s,
        sample_age_s=None if target.sampled_at is None else round(max(0.0, now - target.sampled_at), 3),
        degraded=target.failure or target.fault,
        errors=target.errors,
        limited_by=tuple(link.watched.node.path for link in target.links[1:] if link.watched.limited),
        counters=None if own is None else own.seen,
    )
