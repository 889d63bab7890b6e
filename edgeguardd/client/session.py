"""The client's side of the protocol without I/O: bytes in, events out; calls in, bytes out; time is handed in.

Must not: open sockets, sleep, run handlers. Upstream: core.wire, core.lines, answered, orders, reporter, questions.
Downstream: blocking, aio, edgeguardctl.

A shell around it does five things: `connected` and `disconnected` when the link comes and goes, `receive` what was
read, send what `take_output` gives, call `tick` when `due` says, and carry out each Order (`begin`, then `complete`).

Two states are kept apart. `wanted` is what the daemon says is in force; `applied` is what the handlers have carried
out. They are compared on each welcome, so that nothing stays forgotten or restricted when the daemon restarts, and
lifted when it stays away.
"""

import msgspec

from edgeguardd.client.answered import Answered
from edgeguardd.client.answers import Answer
from edgeguardd.client.orders import Order
from edgeguardd.client.questions import Questions
from edgeguardd.client.reporter import Reporter
from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.model import AckEffect, AckStatus, Action, Command, InForce, Level, Parameters, Role
from edgeguardd.errors import ProtocolError

# How soon a lifting that may have failed is tried again, at the least.
LIFT_AGAIN_S = 5.0
# How long a daemon may take to answer hello; it answers at once, unless it is hung or stopped.
WELCOME_S = 10.0
SILENT_HEARTBEATS = 3
LOST_AFTER_S = 30.0
# What a welcome may say of its heartbeat, as [socket] heartbeat may; anything else is taken for the nearer end.
LEAST_HEARTBEAT_S = 0.1
MOST_HEARTBEAT_S = 3600.0
# The deadline of what the client asks of itself; nobody measures it.
_OWN_DEADLINE_S = 30.0

ClientEvent = wire.WelcomeLine | Order | wire.LevelLine | wire.Admission | wire.ErrorLine | wire.Bye | wire.Pong


class ClientSession:
    """One subscriber, over any number of connections. Not safe for threads by itself.

    lost_after_s  how long the daemon may be away before what it restricted is lifted; None: never
    bad_lines     lines of the daemon's that could not be understood, and were passed over
    """

    def __init__(
        self,
        name: str,
        target: str | None = "self",
        role: Role = Role.INFERENCE,
        supports: tuple[Action, ...] = (),
        *,
        lost_after_s: float | None = LOST_AFTER_S,
        now: float = 0.0,
    ) -> None:
        self.name = name
        self.target = target
        self.role = role
        self.supports = supports
        self.epoch: str | None = None
        self.level = Level.NORMAL
        self.wanted = InForce()
        self.applied = InForce()
        self.connection = 0
        self.welcomed = False
        self.bad_lines = 0
        self.last_error: wire.ErrorLine | None = None
        self._answered = Answered()
        self._reporter = Reporter()
        self._questions = Questions()
        self._linked = False
        self._lines = LineBuffer()
        self._output: list[bytes] = []
        self._heard_at = now
        self._pinged_at = now
        self._heartbeat_s = WELCOME_S
        self._lost_after_s = lost_after_s
        self._lift_at: float | None = None
        self._await_daemon(now)

    # The link

    def begin_life(self, now: float) -> None:
        """The client starts, perhaps not for the first time: the daemon counts as away from now on."""
        self.disconnected(now)
        self._await_daemon(now)

    def hello_bytes(self) -> bytes:
        """The first line of a connection."""
        return wire.encode(
            wire.Hello(name=self.name, role=self.role, target=self.target, supports=tuple(self.supports))
        )

    def connected(self, now: float) -> None:
        """There is a new connection: hello is the first to go out."""
        self.connection += 1
        self._linked = True
        self.welcomed = False
        self._lines = LineBuffer()
        self._output = [self.hello_bytes()]
        self._heard_at = self._pinged_at = now

    def disconnected(self, now: float) -> None:
        """The connection is gone; from now on the daemon counts as away."""
        if self.welcomed:
            self._await_daemon(now)
        self._linked = False
        self.welcomed = False
        self._output.clear()
        self._questions.clear()

    def receive(self, data: bytes, now: float) -> list[ClientEvent]:
        """What was read, as events in order. Lines that cannot be understood are counted and passed over."""
        self._heard_at = now
        self._lines.feed(data)
        events: list[ClientEvent] = []
        while True:
            try:
                line = self._lines.next_line()
                if line is None:
                    return events
                if line.strip():
                    events += self._message(wire.decode_server(line))
            except ProtocolError:
                self.bad_lines += 1

    def take_output(self, now: float) -> bytes:
        """What is to be sent now: acks first, then figures, then as many questions as may be on their way.

        Take it only when all that was taken before has left: what waits here can still be merged or withdrawn.
        """
        if self.welcomed:
            self._output += map(wire.encode, self._reporter.take(now))
            self._output += map(wire.encode, self._questions.take(now))
        output = b"".join(self._output)
        self._output.clear()
        return output

    # Time

    def due(self, *, blocked: bool = False) -> float | None:
        """When `tick` and `take_output` want to be called next, whatever else happens; None: not by itself.

        blocked: the socket takes nothing now, so that nothing is due for being sent.
        """
        times = [self._lift_at]
        if self._linked:
            times.append(self._silent_at())
        if self.welcomed:
            times.append(self._pinged_at + self._heartbeat_s)
            if not blocked:
                times += [self._reporter.due(), self._questions.due()]
        return min((time for time in times if time is not None), default=None)

    def is_silent(self, now: float) -> bool:
        """Whether the daemon has said nothing for so long that the connection is to be dropped."""
        return self._linked and now >= self._silent_at()

    def tick(self, now: float) -> list[ClientEvent]:
        """Ping a silent daemon; lift what an absent one restricted."""
        if self.welcomed and now >= self._pinged_at + self._heartbeat_s:
            self._pinged_at = now
            if now - self._heard_at >= self._heartbeat_s:
                self._send(wire.Ping())
        if self._lift_at is None or now < self._lift_at:
            return []
        # Tried again as long as the daemon is away, because a handler may fail.
        self._lift_at = now + max(LIFT_AGAIN_S, self._lost_after_s or 0.0)
        self.wanted = InForce()
        self.level = Level.NORMAL
        return list(self._bridge(f"the daemon has been away for {self._lost_after_s:g} s"))

    # What the application says

    def ask(self, request: str, size_bytes: int | None, tokens: int | None) -> None:
        """Ask whether a request may be taken. Goes nowhere when not welcomed."""
        if self.welcomed:
            self._questions.ask(wire.Admit(id=request, bytes=size_bytes, tokens=tokens))

    def withdraw(self, request: str) -> None:
        """Nobody waits for the answer any more."""
        self._questions.withdraw(request)

    def report(self, figures: dict[str, int | None]) -> None:
        """Tell figures of wire.ReportLine; they are told again after a reconnect. Raises as Reporter.report does."""
        self._reporter.report(figures)

    def finish(self, request: str) -> None:
        """Tell that an admitted request is done. A daemon that is away has forgotten it anyway."""
        if self.welcomed:
            self._reporter.finish(request)

    def begin(self, order: Order) -> bool:
        """A handler is to start on an order: say "accepted". False: it has been carried out, and is answered again."""
        if order.acked and order.epoch_number == self._answered.epoch_number:
            known, ack = self._answered.told_again(order.command.seq)
            if known:
                self._say_again(ack)
                return False
            self._answered.begun(order.command.seq, order.epoch_number)
        self._ack(order, Answer(AckStatus.ACCEPTED))
        return True

    def complete(self, order: Order, answer: Answer) -> list[Order]:
        """A handler has answered. Returns what else is to be done, if the connection has changed meanwhile."""
        self._ack(order, answer)
        if answer.status is AckStatus.DONE:
            self.applied = _after(self.applied, order.command.parameters)
        if order.connection == self.connection and self.welcomed:
            return []
        return self._bridge("the daemon reconnected during the last order") if self.welcomed else []

    # Messages

    def _message(self, message: wire.ServerMessage) -> list[ClientEvent]:
        match message:
            case wire.CommandLine():
                return list(self._command(message))
            case wire.WelcomeLine():
                return [message, *self._welcome(message)]
            case wire.LevelLine():
                self.level = self._level(message.level)
            case wire.ErrorLine():
                self.last_error = message
            case wire.Ping():
                self._output.append(wire.encode(wire.Pong(id=message.id)))
                return []
            case wire.Admission():
                self._questions.answered(message.id)
            case wire.Pong() | wire.Bye():
                pass
        return [message]

    def _welcome(self, line: wire.WelcomeLine) -> list[Order]:
        self.welcomed = True
        self._lift_at = None
        self.epoch = line.epoch
        for ack in self._answered.welcomed(line.epoch, line.target):
            self._send(ack)
        self.level = self._level(line.level)
        self._heartbeat_s = min(max(LEAST_HEARTBEAT_S, line.heartbeat_s), MOST_HEARTBEAT_S)
        self._reporter.begin_again()
        self.wanted = InForce(line.max_batch_ratio, line.accept_requests, line.model_loaded)
        return self._bridge("in force when the daemon let us in")

    def _command(self, line: wire.CommandLine) -> list[Order]:
        known, ack = self._answered.told_again(line.seq)
        if known:
            self._say_again(ack)
            return []
        try:
            action = Action(line.action)
        except ValueError:
            self._send(wire.Ack(line.seq, AckStatus.UNSUPPORTED, message=f"unknown action {line.action[:64]}"))
            return []
        self.wanted = _after(self.wanted, line.parameters)
        level = self._level(line.level)
        if action in self.supports:
            command = Command(line.seq, line.target, action, line.parameters, level, line.reason, line.deadline_s)
            return [Order(command, self.connection, epoch_number=self._answered.epoch_number)]
        if action is Action.RESTORE:
            # Without handlers for what can be restricted there is nothing to restore, and that is done at once.
            self._send(wire.Ack(line.seq, AckStatus.DONE, effect=AckEffect.NONE))
        else:
            self._send(wire.Ack(line.seq, AckStatus.UNSUPPORTED, message="no handler for it"))
        return []

    def _level(self, word: str) -> Level:
        """A level of a later version counts as no change."""
        try:
            return wire.level_of(word)
        except ProtocolError:
            return self.level

    def _bridge(self, reason: str) -> list[Order]:
        """The orders that lead from what is applied to what is wanted; none where they agree."""
        wanted, applied = self.wanted, self.applied
        if (
            wanted.max_batch_ratio > applied.max_batch_ratio
            or wanted.accept_requests > applied.accept_requests
            or wanted.model_loaded > applied.model_loaded
        ):
            steps = {Action.RESTORE: Parameters(**msgspec.structs.asdict(wanted))}
        else:
            steps = {
                Action.REDUCE_BATCH: Parameters(max_batch_ratio=wanted.max_batch_ratio),
                Action.REJECT_REQUESTS: Parameters(accept_requests=wanted.accept_requests),
                Action.UNLOAD_MODEL: Parameters(model_loaded=wanted.model_loaded),
            }
        return [
            Order(
                Command(0, self.target or "", action, parameters, self.level, reason, _OWN_DEADLINE_S),
                self.connection,
                acked=False,
            )
            for action, parameters in steps.items()
            if action in self.supports and _after(applied, parameters) != applied
        ]

    # Output

    def _ack(self, order: Order, answer: Answer) -> None:
        """Say it, on whatever connection there is: numbers hold for the epoch. A final one waits for a connection."""
        if not order.acked or order.epoch_number != self._answered.epoch_number:
            return
        seq = order.command.seq
        ack = wire.Ack(seq, answer.status, wire.VERSION, answer.effect, answer.released_bytes, answer.message)
        self._send(ack)
        if answer.status is not AckStatus.ACCEPTED:
            self._answered.ended(ack, order.epoch_number, said=self.welcomed)

    def _say_again(self, ack: wire.Ack | None) -> None:
        if ack is not None:
            self._send(ack)

    def _send(self, message: wire.ClientMessage) -> None:
        if self.welcomed:
            self._output.append(wire.encode(message))

    def _silent_at(self) -> float:
        return self._heard_at + (SILENT_HEARTBEATS * self._heartbeat_s if self.welcomed else WELCOME_S)

    def _await_daemon(self, now: float) -> None:
        self._lift_at = None if self._lost_after_s is None else now + self._lost_after_s


def _after(state: InForce, parameters: Parameters) -> InForce:
    """The restrictions once the parameters are obeyed. None: not touched."""
    return InForce(
        state.max_batch_ratio if parameters.max_batch_ratio is None else parameters.max_batch_ratio,
        state.accept_requests if parameters.accept_requests is None else parameters.accept_requests,
        state.model_loaded if parameters.model_loaded is None else parameters.model_loaded,
    )
