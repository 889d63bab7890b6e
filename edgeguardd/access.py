"""Who may join which target: the peer's cgroup, or the allow list.

Must not: believe what the peer says of itself; its process, as the kernel knows it, decides. Upstream: kernel.peers,
kernel.targets. Downstream: daemon.
"""

from edgeguardd import decisionlog
from edgeguardd.core.config import Config, WatchSpec
from edgeguardd.core.model import Role
from edgeguardd.core.wire import Hello
from edgeguardd.errors import EdgeguardError, ProtocolError, TargetError
from edgeguardd.kernel import peers
from edgeguardd.kernel.targets import Targets
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.subscribers import SubscriberServer

NOT_A_MEMBER = "not in the target's cgroup any more"


class Access:
    """The rules of one daemon. `config` may be replaced at any time."""

    def __init__(self, config: Config, targets: Targets) -> None:
        self.config = config
        self._targets = targets

    def admit(self, peer: Peer, hello: Hello) -> str | None:
        """The target that this peer joins; None: an observer of everything. A "self" target may begin to be guarded.

        Raises TargetError or ProtocolError, whose sentence and code become the peer's error line.
        """
        try:
            return self._target_for(peer, hello)
        except EdgeguardError as error:
            decisionlog.peer_refused(peer, hello, error)
            raise

    def watched_target(self, peer: Peer, spec: WatchSpec | None) -> str | None:
        """The target whose pressure this peer hears of, counted as one more peer; None: the machine's.

        That of the socket it came to, else that of its cgroup, which may begin to be guarded, as a subscriber's would.
        """
        targets = self._targets
        try:
            if spec is not None and spec.target is not None:
                return targets.join_peer(spec.target)
            home = self._home_of(peer)
            if self.config.self_targets:
                return targets.guard_peer(home, self.config.defaults)
            return targets.join_home(home)
        except TargetError:
            return None

    def put_out_strangers(self, subscribers: SubscriberServer, target: str | None = None) -> None:
        """Disconnect who would not be let in any more: the target (None: any) has moved, or the rules have changed."""
        for number, served, peer in subscribers.serving():
            if target in (None, served) and not self._may_stay(peer, served):
                subscribers.disconnect(number, NOT_A_MEMBER)

    def _target_for(self, peer: Peer, hello: Hello) -> str | None:
        wanted, targets = hello.target, self._targets
        if hello.role is Role.OBSERVER:
            if wanted is not None and wanted not in targets.names():
                raise ProtocolError("unknown_target", f"cannot observe {wanted}: no such target")
            return wanted
        if wanted is None or wanted == "self":
            if not self.config.self_targets:
                raise ProtocolError("not_allowed", 'cannot guard "self": self_targets is off; name a target')
            return targets.guard_peer(self._home_of(peer), self.config.defaults)
        if wanted not in targets.names():
            raise ProtocolError("unknown_target", f"cannot serve {wanted}: no such target; see edgeguardctl status")
        if not self._is_allowed(peer):
            home = self._home_of(peer)
            if not targets.contains(wanted, home):
                raise ProtocolError(
                    "not_allowed", f"cannot serve {wanted}: you are in {home}, and uid {peer.uid} is not in allow_uids"
                )
        return targets.join_peer(wanted)

    def _may_stay(self, peer: Peer, target: str) -> bool:
        if self._is_allowed(peer):
            return True
        try:
            return self._targets.contains(target, self._home_of(peer))
        except TargetError:
            return False

    def _is_allowed(self, peer: Peer) -> bool:
        """Whether it may serve any target."""
        return peer.uid in self.config.socket.allow_uids

    def _home_of(self, peer: Peer) -> str:
        """The peer's cgroup, as the tree has it. Raises TargetError."""
        return self._targets.located(peers.cgroup_of(peer.pid, started=peer.started))
