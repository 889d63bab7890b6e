"""The transcripts that make a client conform, in the order of docs/reference/protocol.md, which prints them.

Must not: do I/O. Upstream: script, core.wire. Downstream: play, the protocol's page.
"""

from typing import Any

from edgeguardd.conformance.script import (
    CONTRACT_REASON,
    LOST_AFTER_S,
    Case,
    Close,
    Give,
    How,
    Leave,
    Pause,
    Return,
    Shows,
    Step,
    Survive,
    TurnAway,
    Want,
    say,
)
from edgeguardd.core import wire
from edgeguardd.core.model import Action, Parameters

DEADLINE_S = 5.0
FAIL = f"{CONTRACT_REASON}fail"
SLOW = f"{CONTRACT_REASON}slow"
_WHY = "needed 830.0 MiB is 81% of the range below memory.high"
_MIB = 2**20

HELLO = Want({"type": "hello"})


def _welcome(epoch: str = "e1", *, ratio: float = 1.0, accept: bool = True, heartbeat_s: float = 10.0) -> Give:
    level = "normal" if accept else "critical"
    return say(wire.WelcomeLine(1, epoch, "llm", level, ratio, accept, True, heartbeat_s))


def _command(
    seq: int, action: str, reason: str = _WHY, how: How = How.ALONE, deadline_s: float = DEADLINE_S, **parameters: Any
) -> Give:
    return say(
        wire.CommandLine(1, seq, "llm", action, Parameters(**parameters), "high", reason, deadline_s),
        how,
    )


def _trim(seq: int, reason: str = _WHY, how: How = How.ALONE) -> Give:
    return _command(seq, Action.TRIM_KV_CACHE, reason, how, release_bytes=267 * _MIB, needed_target_bytes=563 * _MIB)


def _reduce(seq: int, ratio: float, how: How = How.ALONE) -> Give:
    return _command(seq, Action.REDUCE_BATCH, how=how, max_batch_ratio=ratio)


def _reject(seq: int, how: How = How.ALONE) -> Give:
    return _command(seq, Action.REJECT_REQUESTS, how=how, accept_requests=False)


def _restore(seq: int, ratio: float = 1.0) -> Give:
    return _command(
        seq, Action.RESTORE, "level is normal", max_batch_ratio=ratio, accept_requests=True, model_loaded=True
    )


def _acked(seq: int, status: str = "done") -> Want:
    return Want({"type": "ack", "seq": seq, "status": status})


def _ping(name: str, how: How = How.ALONE) -> Give:
    return say(wire.Ping(id=name), how)


def _pong(name: str) -> Want:
    return Want({"type": "pong", "id": name})


def _state(**fields: Any) -> Shows:
    return Shows(fields)


def _case(name: str, rule: str, *steps: Step, lost_after_s: float = LOST_AFTER_S) -> Case:
    return Case(name, rule, steps, lost_after_s)


_BEGIN = (HELLO, _welcome())
_RESTRICTED = (HELLO, _welcome(ratio=0.25, accept=False), _state(max_batch_ratio=0.25, accept_requests=False))
# On a busy machine half a second is over before the connection is closed.
_EARLY = Want({"type": "ack", "seq": 1, "status": "done"}, optional=True)
_FREE = _state(max_batch_ratio=1.0, accept_requests=True)

CASES = (
    # Getting in
    _case(
        "hello-first",
        "The first line is hello, and nothing but ping follows it until the welcome.",
        Want({"type": "hello", "role": "inference"}),
        Pause(0.3),
        _welcome(),
        _ping("in"),
        _pong("in"),
    ),
    _case(
        "welcome-in-force",
        "What a welcome says is in force counts at once, as if a command had said it.",
        *_RESTRICTED,
    ),
    _case(
        "welcome-lifts",
        "A welcome that says less is in force than before lifts the rest.",
        *_RESTRICTED,
        Close(),
        HELLO,
        _welcome("e2"),
        _FREE,
    ),
    # Commands
    _case(
        "trim",
        "A command is carried out, and then acked once, with its own seq.",
        *_BEGIN,
        _trim(1),
        _acked(1),
        _state(trims=1),
    ),
    _case(
        "lasting",
        "What is restricted stays restricted.",
        *_BEGIN,
        _reduce(1, 0.5),
        _acked(1),
        _reject(2),
        _acked(2),
        _trim(3),
        _acked(3),
        _state(max_batch_ratio=0.5, accept_requests=False, trims=1),
    ),
    _case(
        "restore",
        "restore sets what its parameters say, which may be less than everything.",
        *_BEGIN,
        _reduce(1, 0.25),
        _acked(1),
        _reject(2),
        _acked(2),
        _restore(3, 0.5),
        _acked(3),
        _state(max_batch_ratio=0.5, accept_requests=True),
        _restore(4),
        _acked(4),
        _FREE,
    ),
    _case(
        "absolute",
        "Parameters are absolute: half of the configured batch, never half of now.",
        *_BEGIN,
        _reduce(1, 0.5),
        _acked(1),
        _reduce(2, 0.5),
        _acked(2),
        _state(max_batch_ratio=0.5),
        _reduce(3, 0.75),
        _acked(3),
        _state(max_batch_ratio=0.75),
    ),
    _case(
        "repeat",
        "A command that comes twice is carried out once, and is acked twice.",
        *_BEGIN,
        _reject(1),
        _acked(1),
        _reject(1),
        _acked(1),
        _reduce(2, 0.5),
        _acked(2),
        _reduce(2, 0.5),
        _acked(2),
        _trim(3),
        _acked(3),
        _trim(3),
        _acked(3),
        _state(max_batch_ratio=0.5, accept_requests=False, trims=1),
    ),
    _case(
        "gaps",
        "seq rises, not always by one, and takes up to 63 bits.",
        *_BEGIN,
        _trim(7),
        _acked(7),
        _trim(4294967297),
        _acked(4294967297),
        _trim(9007199254740993),
        _acked(9007199254740993),
        _trim(9223372036854775807),
        _acked(9223372036854775807),
    ),
    _case(
        "deadline",
        "The final ack comes within deadline_s.",
        *_BEGIN,
        _command(1, Action.TRIM_KV_CACHE, deadline_s=2.0, release_bytes=_MIB),
        _acked(1),
        _command(2, Action.REDUCE_BATCH, deadline_s=2.0, max_batch_ratio=0.5),
        _acked(2),
    ),
    _case(
        "failing-handler",
        "What cannot be carried out is acked failed, and the next command is carried out all the same.",
        *_BEGIN,
        _trim(1, FAIL),
        _acked(1, "failed"),
        _trim(2),
        _acked(2),
    ),
    _case(
        "unknown-action",
        "A command that the client does not know is acked unsupported, and nothing else comes of it.",
        *_BEGIN,
        _command(1, "defragment_cache"),
        _acked(1, "unsupported"),
        _trim(2),
        _acked(2),
    ),
    _case(
        "old-acks",
        "Commands end with their epoch: what was asked in the last one is not acked in the next.",
        *_BEGIN,
        _trim(1, SLOW),
        _EARLY,
        Pause(0.1),
        Close(),
        HELLO,
        _welcome("e2"),
        Pause(1.0),
    ),
    # A later server
    _case(
        "unknown-fields",
        "Unknown fields are passed over, whatever they hold.",
        HELLO,
        Give(
            '{"type":"welcome","v":1,"epoch":"e1","target":"llm","level":"normal","colour":[1,{"deep":[[],{}]}],'
            '"max_batch_ratio":1.0,"accept_requests":true,"model_loaded":true,"heartbeat_s":10.0,"more":null}'
        ),
        Give(
            '{"mood":{"seq":99,"type":"bye"},"type":"command","v":1,"seq":1,"target":"llm","action":"reduce_batch",'
            '"parameters":{"max_batch_ratio":0.5,"fan":{"max_batch_ratio":0.1}},"level":"high","reason":"",'
            '"deadline_s":5.0,"max_batch_ratio":0.1,"x":-1.5e-3}'
        ),
        _acked(1),
        _state(max_batch_ratio=0.5),
        Give('{"type":"ping","id":"p","id2":"q","pad":true}'),
        _pong("p"),
    ),
    _case(
        "unknown-type",
        "A message of an unknown type is passed over, without an answer.",
        *_BEGIN,
        Give('{"type":"confetti","v":1,"seq":1,"action":"trim_kv_cache"}'),
        _ping("after"),
        _pong("after"),
    ),
    _case(
        "unknown-level",
        "Level lines need no answer, and a level of a later version stops no command.",
        *_BEGIN,
        say(wire.LevelLine(1, "llm", "high", "normal", _WHY)),
        say(wire.LevelLine(1, "llm", "apocalypse", "high", _WHY)),
        Give(
            '{"type":"command","v":1,"seq":1,"target":"llm","action":"trim_kv_cache","parameters":{"release_bytes":1},'
            '"level":"apocalypse","reason":"","deadline_s":5.0}'
        ),
        _acked(1),
    ),
    _case(
        "unasked",
        "An admission or a pong that nobody waits for is passed over.",
        *_BEGIN,
        say(wire.Admission("nobody-asked", False, "no room", retry_after_s=1.5)),
        say(wire.Pong(id="nobody-pinged")),
        _ping("after"),
        _pong("after"),
    ),
    # Life signs
    _case(
        "ping",
        "A ping is answered with a pong of the same id, or of none.",
        *_BEGIN,
        _ping("1"),
        _pong("1"),
        Give('{"type":"ping","v":1}'),
        Want({"type": "pong", "id": None}),
        _ping("two", How.WITH_THE_NEXT),
        _ping("three"),
        _pong("two"),
        _pong("three"),
    ),
    _case(
        "heartbeat",
        "The client stays and answers, whatever the heartbeat.",
        HELLO,
        _welcome(heartbeat_s=0.3),
        Pause(0.3),
        _ping("first"),
        _pong("first"),
        Pause(0.3),
        _ping("second"),
        _pong("second"),
    ),
    # Lines and their bytes
    _case(
        "pieces",
        "A line is read whole, however it is cut on its way.",
        HELLO,
        Give(_welcome().text, How.BYTE_BY_BYTE),
        Give(_reduce(1, 0.5).text, How.BYTE_BY_BYTE),
        _acked(1),
        Give('{"type":"ping","v":1,"id":"ü記🧠"}', How.BYTE_BY_BYTE),
        _pong("ü記🧠"),
    ),
    _case(
        "together",
        "Lines that come in one read are all obeyed; a newer command may take the place of an older one that waits.",
        HELLO,
        Give(_welcome().text, How.WITH_THE_NEXT),
        say(wire.LevelLine(1, "llm", "high", "normal", _WHY), How.WITH_THE_NEXT),
        _trim(1, how=How.WITH_THE_NEXT),
        _reduce(2, 0.25, How.WITH_THE_NEXT),
        _reduce(3, 0.5, How.WITH_THE_NEXT),
        _reject(4, How.WITH_THE_NEXT),
        _ping("last"),
        _acked(1),
        Want({"type": "ack", "seq": 2, "status": "done"}, optional=True),
        _acked(3),
        _acked(4),
        _pong("last"),
        _state(max_batch_ratio=0.5, accept_requests=False),
    ),
    _case(
        "cut-off",
        "Half a line at the end of a connection is no line, and does not begin the next connection's first.",
        *_BEGIN,
        Give('{"type":"command","v":1,"seq":1,"target":"llm","action":"reject_req', How.UNFINISHED),
        Close(),
        HELLO,
        _welcome(ratio=0.5),
        _state(max_batch_ratio=0.5),
        _trim(1),
        _acked(1),
    ),
    _case(
        "long-line",
        f"A line may have {wire.MAX_LINE_BYTES} bytes.",
        *_BEGIN,
        Give(_trim(1, "@fill:65536@").text),
        _acked(1),
        Give(_trim(2, "@fill:65536@").text, How.WITH_THE_NEXT),
        Give('{"type":"ping","v":1,"id":"behind","pad":"@fill:65536@"}'),
        _acked(2),
        _pong("behind"),
    ),
    _case(
        "utf-8",
        "Texts are UTF-8 or escaped, and come back as the same text.",
        *_BEGIN,
        _trim(1, "Speicher knapp: 記憶體不足 🧠"),
        _acked(1),
        _ping("Grüße, 記憶體 🧠"),
        _pong("Grüße, 記憶體 🧠"),
        Give(r'{"type":"ping","v":1,"id":"a\"b\\c\/d \u00fc\u8a18\ud83e\udde0"}'),
        _pong('a"b\\c/d ü記🧠'),
    ),
    _case(
        "spelling",
        "JSON is JSON: spaces, the order of fields and the spelling of numbers are free.",
        HELLO,
        Give(
            ' { "heartbeat_s" : 10 , "model_loaded":true,"accept_requests":true,"max_batch_ratio":1,"level":"normal",'
            '"target":null,"epoch":"e1","v":1,"type":"welcome" } '
        ),
        Give(
            '{\t"parameters": {"max_batch_ratio": 50e-2, "release_bytes": null}, "deadline_s": 5, "reason": "", '
            '"level": "high", "action": "reduce\\u005fbatch", "target": "llm", "seq": 1, "v": 1, "type": "command"}\r'
        ),
        _acked(1),
        _state(max_batch_ratio=0.5),
    ),
    # What cannot be read
    _case(
        "garbage",
        "A line that cannot be read is passed over, or ends the connection; it never ends the program.",
        *_BEGIN,
        Give(""),
        Give("HTTP/1.1 400 Bad Request"),
        Give('{"type":"command","v":1,"seq":"one","action":7,"parameters":[]}'),
        Give('{"type":"command","seq":1'),
        Give('{"type":"ping","id":"@byte:ff@@byte:c0@@byte:80@"}'),
        Give(r'{"type":"ping","id":"\ud83e"}'),
        Give('[]"'),
        Give("null"),
        Give("@byte:00@@byte:00@"),
        Survive(),
    ),
    _case(
        "nested",
        "Nesting without measure is passed over, or ends the connection; it never ends the program.",
        *_BEGIN,
        Give("@nest:30000@"),
        Give('{"type":"ping","v":1,"pad":@nest:30000@}'),
        Survive(),
    ),
    _case(
        "too-long",
        "A longer line is passed over, or ends the connection; it never ends the program.",
        *_BEGIN,
        Give('{"type":"ping","v":1,"id":"@fill:300000@"}'),
        Survive(),
    ),
    # Errors and ends
    _case(
        "error",
        "An error line that does not end the connection ends nothing, whatever its code.",
        *_BEGIN,
        say(wire.ErrorLine(1, "unknown_seq", "cannot take the ack of 9: nothing of this number waits for it")),
        say(wire.ErrorLine(1, "a_later_code", "cannot say more")),
        _trim(1),
        _acked(1),
    ),
    _case(
        "bye",
        "After bye the client connects again.",
        *_BEGIN,
        say(wire.Bye(1, "stopping")),
        Close(),
        *_BEGIN,
    ),
    _case(
        "back-off",
        "Whoever is turned away comes again, each time after a longer pause.",
        TurnAway(5, '{"type":"error","v":1,"code":"too_many_subscribers","message":"cannot let you in: try later"}'),
        *_BEGIN,
    ),
    _case(
        "same-epoch",
        "A new connection within an epoch begins with hello and what is in force; numbers go on.",
        *_BEGIN,
        _reduce(4, 0.5),
        _acked(4),
        Close(),
        HELLO,
        _welcome(ratio=0.5),
        _trim(6),
        _acked(6),
        _state(max_batch_ratio=0.5, trims=1),
    ),
    _case(
        "told-again",
        "A daemon that was restarted tells a command again whose ack it has not seen: acked again, not done again.",
        *_BEGIN,
        _trim(1),
        _acked(1),
        _reject(2),
        _acked(2),
        Close(),
        HELLO,
        _welcome(accept=False),
        _trim(1),
        _acked(1),
        _reject(2),
        _acked(2),
        _state(trims=1, accept_requests=False),
    ),
    _case(
        "told-while-at-it",
        "A command that is told again while it is carried out is carried out once; its ack may come before it is told.",
        *_BEGIN,
        _trim(1, SLOW),
        _EARLY,
        Pause(0.1),
        Close(),
        HELLO,
        _welcome(),
        _trim(1, SLOW),
        _acked(1),
        _trim(2),
        _acked(2),
        _state(trims=2),
    ),
    _case(
        "new-epoch",
        "In a new epoch numbers begin again, and an old number is a new command.",
        *_BEGIN,
        _trim(1),
        _acked(1),
        _reject(2),
        _acked(2),
        Close(),
        HELLO,
        _welcome("e2"),
        _trim(1),
        _acked(1),
        _state(trims=2, accept_requests=True),
    ),
    _case(
        "gone",
        "While the daemon is away the client keeps what is in force, tries again, and is back soon after it.",
        *_RESTRICTED,
        Leave(),
        Pause(1.0),
        _state(max_batch_ratio=0.25, accept_requests=False),
        Return(),
        *_RESTRICTED,
    ),
    _case(
        "lost",
        "When the daemon has been away for so long that it counts as lost, the client lifts what it had restricted.",
        *_RESTRICTED,
        Leave(),
        _FREE,
        Return(),
        *_BEGIN,
        lost_after_s=1.0,
    ),
)
