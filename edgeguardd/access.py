"""Who may join which target: the peer's cgroup, or the allow list.

Must not: believe what the peer says of itself; its process, as the kernel knows it, decides. Upstream: kernel.peers,
kernel.targets. Downstream: daemon.
"""

from edgeguardd.core.config import Config, WatchSpec
from edgeguardd.core.model import Role
from edgeguardd.core.wire import Hello
from edgeguardd.errors import ProtocolError, TargetError
from edgeguardd.kernel import peers
from edgeguardd.kernel.targets import Targets
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.subscribers import SubscriberServer

NOT_A_MEMBER = "not in the target's cgroup any more"


def target_for(peer: Peer, hello: Hello, config: Config, targets: Targets) -> str | None:
    """The target that this peer joins; None: an observer of everything. A "self" target may begin to be guarded.

    Raises TargetError or ProtocolError, whose sentence and code become the peer's error line.
    """
    wanted = hello.target
    if hello.role is Role.OBSERVER:
        if wanted is not None and wanted not in targets.names():
            raise ProtocolError("unknown_target", f"cannot observe {wanted}: no such target")
        return wanted
    if wanted is None or wanted == "self":
        if not config.self_targets:
            raise ProtocolError("not_allowed", 'cannot guard "self": self_targets is off; name a target')
        return targets.guard_peer(_home_of(peer, targets), config.defaults)
    if wanted not in targets.names():
        raise ProtocolError("unknown_target", f"cannot serve {wanted}: no such target; see edgeguardctl status")
    if peer.uid not in config.socket.allow_uids:
        home = _home_of(peer, targets)
        if not targets.contains(wanted, home):
            raise ProtocolError(
                "not_allowed", f"cannot serve {wanted}: you are in {home}, and uid {peer.uid} is not in allow_uids"
            )
    return targets.join_peer(wanted)


def watched_target(peer: Peer, spec: WatchSpec | None, config: Config, targets: Targets) -> str | None:
    """The target whose pressure this peer hears of, counted as one more peer; None: the machine's.

    That of the socket it came to, else that of its cgroup, which may begin to be guarded, as a subscriber's would.
    """
    try:
        if spec is not None and spec.target is not None:
            return targets.join_peer(spec.target)
        home = _home_of(peer, targets)
        return targets.guard_peer(home, config.defaults) if config.self_targets else targets.join_home(home)
    except TargetError:
        return None


def _home_of(peer: Peer, targets: Targets) -> str:
    """The peer's cgroup, as the tree has it. Raises TargetError."""
    return targets.located(peers.cgroup_of(peer.pid, started=peer.started))


def put_out_strangers(
    subscribers: SubscriberServer, config: Config, targets: Targets, target: str | None = None
) -> None:
    """Disconnect who would not be let in any more: the target (None: any) has moved, or the rules have changed."""
    for number, served, peer in subscribers.serving():
        if target in (None, served) and not _may_stay(peer, served, config, targets):
            subscribers.disconnect(number, NOT_A_MEMBER)


def _may_stay(peer: Peer, target: str, config: Config, targets: Targets) -> bool:
    if peer.uid in config.socket.allow_uids:
        return True
    try:
        return targets.contains(target, _home_of(peer, targets))
    except TargetError:
        return False
