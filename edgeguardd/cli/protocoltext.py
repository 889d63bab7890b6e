"""What docs/reference/protocol.md says in words: rules, an example session, the meaning of each field.

Must not: repeat types, defaults or limits; protocolpage takes those from core.wire. Upstream: core.wire, core.model.
Downstream: protocolpage. A test sees to it that no field, action or outcome is left without its row.
"""

from edgeguardd.client.backoff import FIRST_S
from edgeguardd.conformance.link import LONGEST_PAUSE_S
from edgeguardd.conformance.script import LOST_AFTER_S
from edgeguardd.core import wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.model import AckEffect, AckStatus, Action, Outcome, Parameters

# What fields mean. A field that means something of its own in one message has a row "message.field".
MEANINGS = {
    "v": "Version of the protocol.",
    "hello.name": "What logs, metrics and `edgeguardctl status` call the subscriber.",
    "hello.role": "`inference` obeys commands, `observer` only looks.",
    "hello.target": 'The target that is served or looked at. "self" or null: for a server the cgroup it lives in, for '
    "an observer null means all targets.",
    "hello.supports": "The commands it will carry out; others are not sent. `restore` is always supported.",
    "ack.seq": "The number of the command that is answered.",
    "ack.status": "`accepted` says that work has begun; the others end the command.",
    "ack.effect": "What became of the memory: `released` to the kernel, only the server's own bookkeeping (`logical`), "
    "or `none`.",
    "ack.released_bytes": "How much was given back, as far as the server knows; the daemon measures for itself.",
    "ack.message": "For people: why it failed, what was dropped.",
    "report.static_bytes": "What it holds at rest: weights, preallocated cache, buffers.",
    "report.kv_bytes": "Size of its KV cache now.",
    "report.running": "Requests being worked on.",
    "report.waiting": "Requests in its queue.",
    "report.batch_limit": "The batch it is configured for: what `max_batch_ratio` is a share of.",
    "report.bytes_per_token": "KV cache that one token needs.",
    "report.bytes_per_request": "What one request takes: decides whether the next still fits.",
    "report.finished": "Ids of admitted requests that are done; what was reserved for them is free again.",
    "admit.id": "The request's id, chosen by the client, unique among its open requests.",
    "admit.bytes": "Memory the request will need, if known.",
    "admit.tokens": "Tokens of the request with its longest answer, if bytes are not known.",
    "ping.id": "Comes back in the pong.",
    "pong.id": "The id of the ping.",
    "welcome.epoch": "Changes when the daemon has lost its state: numbers begin again, old commands are void.",
    "welcome.target": "The target's name as the daemon knows it; null for an observer of all.",
    "welcome.level": "Its level now; of an observer of all the worst there is. The levels of each come as they change.",
    "welcome.max_batch_ratio": "In force now: share of the configured batch that may run. Without a target this and "
    "the next two say nothing: 1.0 and true.",
    "welcome.accept_requests": "In force now: whether new requests may be taken.",
    "welcome.model_loaded": "In force now: whether the model may be in memory.",
    "welcome.heartbeat_s": "A peer that is silent for this long is pinged.",
    "command.seq": "Number of the command, rising within an epoch. The same number is the same command, told again.",
    "command.target": "The target it is about.",
    "command.action": "What is asked; an action that the client does not know is acked `unsupported`.",
    "command.parameters": "How far, see below.",
    "command.level": "The level that called for it.",
    "command.reason": "For people: the figures that made it.",
    "command.deadline_s": "Seconds from sending until it counts as expired.",
    "level.target": "The target.",
    "level.level": "Its level from now on.",
    "level.was": "Its level before.",
    "level.reason": "For people: the figures that made it.",
    "admission.id": "The request's id.",
    "admission.granted": "Whether it may be taken. A yes reserves its bytes for a short time.",
    "admission.reason": "For people: why.",
    "admission.retry_after_s": "When asking again makes sense.",
    "error.code": "A stable word, see below.",
    "error.message": "For people: what was wrong, and the remedy.",
    "bye.reason": "For people: why.",
    "parameters.release_bytes": "How much to give back now (`trim_kv_cache`).",
    "parameters.needed_target_bytes": "The needed bytes that the target should come down to (`trim_kv_cache`).",
    "parameters.max_batch_ratio": "Share of the configured batch that may run (`reduce_batch`, `restore`).",
    "parameters.accept_requests": "Whether new requests may be taken (`reject_requests`, `restore`).",
    "parameters.model_loaded": "Whether the model may be in memory (`unload_model`, `restore`).",
}

ACTIONS = {
    Action.TRIM_KV_CACHE: "Give memory back now, once: drop cached prefixes, shrink the cache, return free pages.",
    Action.REDUCE_BATCH: "Run at most `max_batch_ratio` of the configured batch, until told otherwise.",
    Action.REJECT_REQUESTS: "Answer new requests with a refusal at once (503 with Retry-After), until told otherwise.",
    Action.UNLOAD_MODEL: "Let running requests end, then take the model out of memory, until told otherwise.",
    Action.RESTORE: "What its parameters say is allowed again.",
}

OUTCOMES = {
    Outcome.DONE: "acked `done`, and needed bytes fell or nothing was to fall",
    Outcome.INEFFECTIVE: "acked `done`, but needed bytes did not fall: treated as failed",
    Outcome.FAILED: "acked `failed`",
    Outcome.UNSUPPORTED: "acked `unsupported`",
    Outcome.EXPIRED: "no final ack within the deadline",
    Outcome.SUPERSEDED: "a newer command took its place",
    Outcome.LOST: "the subscriber left",
    Outcome.DROPPED: "the target's cgroup vanished, or it is guarded no longer",
}

_MIB = 2**20
SESSION: tuple[tuple[str, wire.ClientMessage | wire.ServerMessage | str], ...] = (
    (">", wire.Hello("llama", target="llm")),
    ("<", wire.WelcomeLine(1, "6f1c…", "llm", "normal", 1.0, True, True, SocketConfig().heartbeat_s)),
    ("", "… requests come in, the KV cache grows …"),
    ("<", wire.LevelLine(1, "llm", "high", "normal", "needed 830.0 MiB is 81% of the range below memory.high")),
    (
        "<",
        wire.CommandLine(
            1,
            1,
            "llm",
            Action.TRIM_KV_CACHE,
            Parameters(release_bytes=267 * _MIB, needed_target_bytes=563 * _MIB),
            "high",
            "needed 830.0 MiB is 81% of the range below memory.high",
            5.0,
        ),
    ),
    (
        "<",
        wire.CommandLine(
            1,
            2,
            "llm",
            Action.REDUCE_BATCH,
            Parameters(max_batch_ratio=0.5),
            "high",
            "needed 830.0 MiB is 81% of the range below memory.high",
            5.0,
        ),
    ),
    (">", wire.Ack(1, AckStatus.ACCEPTED)),
    (">", wire.Ack(2, AckStatus.DONE, effect=AckEffect.NONE)),
    (">", wire.Ack(1, AckStatus.DONE, effect=AckEffect.RELEASED, released_bytes=268 * _MIB)),
    ("", "… memory stays down for the dwell times …"),
    ("<", wire.LevelLine(1, "llm", "normal", "elevated", "below the mark for 5 s")),
    (
        "<",
        wire.CommandLine(
            1,
            3,
            "llm",
            Action.RESTORE,
            Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True),
            "normal",
            "level is normal",
            5.0,
        ),
    ),
    (">", wire.Ack(3, AckStatus.DONE)),
)

TEXT = f"""\
# Subscriber protocol, version {wire.VERSION}

*Generated by `make docs` from `edgeguardd/core/wire.py`; a test compares.*

An inference server knows what it can give up; the kernel knows when memory is short. This protocol lets the one tell
the other in time: `edgeguardd` asks, the server answers, the daemon checks that memory really came back, asks for more
if it did not, and hands capacity back afterwards. It is plain enough for sixty lines of any language.

## In short

1. Connect to `{SocketConfig().path}` (`SOCK_STREAM`). Each line is one JSON object in UTF-8, both ways.
2. Say `hello`. You get `welcome` with what is in force **now**, and commands that are waiting.
3. Carry out each `command` within its deadline and answer with an `ack` of its `seq`.
4. Answer `ping` with `pong`.
5. When the connection breaks, keep what is in force, connect again after a pause that grows, and begin at 1.

## A session

`>` is what the client sends, `<` what it gets.

```text
@SESSION@
```

## Rules

- **State, not edges.** Whoever connects for a target is told its state; nothing depends on having seen what came
  before. An observer of all is told the worst level, and each target's as it changes.
- **Absolute parameters.** `max_batch_ratio: 0.5` is half of the *configured* batch, never half of now. Obeying a
  command twice is harmless, and a newer command of the same action replaces an unsent older one.
- **Lasting and single.** `trim_kv_cache` is done once for each number. The others stay in force until a later command
  or welcome says otherwise.
- **Numbers.** `seq` rises within an `epoch`, and one number is one command; after a new epoch, forget the numbers of
  the old one.
- **Told again.** A daemon that was restarted, updated or killed keeps its epoch. It tells each command again whose
  answer it does not know of, with its number, its parameters and the time that is left of its first deadline. What has
  been carried out is acked again with the same words and not carried out again; an ack that found no connection may be
  said as soon as the welcome of the same epoch is there ([ADR 17](../adr/0017-what-survives-the-daemon.md)).
- **Acks.** One final ack a command; `accepted` before it is optional and does not extend the deadline. `done` is
  checked against the target's needed bytes. When a rung's commands are unanswered, failed, unsupported or ineffective,
  the next rung of the ladder follows at once.
- **Heartbeat.** A silent peer is pinged every `heartbeat_s`. An inference server that is silent for three heartbeats is
  disconnected. Any line counts as a sign of life; clients may ping too.
- **Unknown is ignored.** Unknown fields are skipped by both sides. A message of an unknown type is answered with an
  error by the server, and passed over by the client.
- **What cannot be read.** A client passes over a line that it cannot read, or ends the connection; never its program.
- **Again.** A client without a connection waits for {FIRST_S:g} s before it tries again, and about twice as long after
  each attempt that brought no welcome, {LONGEST_PAUSE_S:g} s at most, partly by chance, so that not all come at once.
- **A daemon that stays away.** What is in force outlives the connection. A client that has been alone for
  {LOST_AFTER_S:g} s lifts it ([ADR 7](../adr/0007-a-lost-guard-fails-open.md)).
- **Who may.** The socket's mode and group say who may connect. The inference role is for peers that live in the
  target's cgroup, and for users in `[socket] allow_uids`.
- **Limits.** A line has at most {wire.MAX_LINE_BYTES} bytes without its newline, a name {wire.MAX_NAME_CHARS}
  characters, a text {wire.MAX_TEXT_CHARS}, `finished` {wire.MAX_FINISHED} ids. A flood of lines is read later; a peer
  that makes one mistake after another, or does not read what it is sent, is disconnected. None of this delays others.

## The smallest clients

To look (observers need not answer pings):

```sh
(echo '{{"type":"hello","name":"me","role":"observer"}}'; cat) | nc -U {SocketConfig().path}
```

To serve, with nothing but Python's standard library (3.8 or newer). It logs why it was refused, connects again after
pauses that grow, carries out no command twice, and lifts what is in force when the daemon stays away. To be copied:
[guarded.py](../../packaging/examples/smallest-client/guarded.py).

```python
@GUARDED@```

A server gives it a function to call, and a thread, as `run()` does not return. The one below obeys the [test
contract](../how-to/write-a-client.md#what-the-program-under-test-has-to-do), and passes `edgeguardctl conformance`:

```python
@SERVER@```
"""

CONFORMANCE_TEXT = """
## Conformance

What makes a client conform, as transcripts. `edgeguardctl conformance --exec PROGRAM` plays each of them with your
program, sending these very bytes: [how to write a client](../how-to/write-a-client.md).

| Line | Meaning |
|---|---|
| `<` | The client gets this line, in one write. |
| `<.` | It gets it in one write a byte. |
| `<&` | It gets it in the same write as the next. |
| `<~` | It gets this without a newline. |
| `>` | The client says a line with these fields, among others; acks within `deadline_s`, neighbours in any order. |
| `>?` | The client may say this line. |
| `=` | The program shows this state, perhaps among other things; such a case needs the test contract. |
| `*` | Something happens. |

In a line, `@fill:65536@` stands for so many letters `x` that the line has 65536 bytes, `@nest:1000@` for 1000 arrays,
each within the other, and `@byte:ff@` for that byte. The client may report, ask for admission, ping, and ack `accepted`
at any time after its welcome. Each case ends with a ping, which has to be answered.
"""
