"""A client of the protocol in plain Python, right or wrong on purpose: `python rawclient.py KIND`, KIND from WRONG.

Must not: use the client library, or import anything slow; the conformance suite starts it many times.
"""

import json
import os
import socket
import sys
import time
from typing import Any

# What a kind does wrong.
WRONG = {
    "": "nothing",
    "silent": "does not say hello",
    "hasty": "reports before it is welcome",
    "no-json": "says hello in words",
    "ack-next": "acks the number after",
    "ack-twice": "acks everything twice",
    "ack-accepted": "never gets beyond accepted",
    "no-ack": "never acks",
    "late": "takes longer than the deadline",
    "relative": "halves the batch of now",
    "eager": "acks what it does not know as done",
    "optimist": "acks done although it failed",
    "float-seq": "keeps numbers as doubles",
    "deaf": "answers no ping",
    "forgetful": "answers a ping without its id",
    "ascii": "drops what is not ASCII",
    "one-read": "takes each read for one line",
    "first-line": "takes only the first line of a read",
    "short-lines": "has room for 4096 bytes",
    "strict-types": "ends at an unknown type",
    "answers-unknown": "answers an unknown type with an error",
    "strict-json": "ends at a line that it cannot read",
    "ignores-welcome": "obeys commands only",
    "never-lifts": "takes from a welcome only what restricts",
    "restores-all": "lifts everything at restore, whatever it says",
    "keeps-rest": "puts half a line of the last connection before the next one's",
    "remembers": "passes over numbers that it has seen, also of the last epoch",
    "forgets": "carries out again what is told again",
    "stale-acks": "acks in the next epoch what was asked in the last",
    "quits-at-bye": "ends with the connection",
    "quits-at-error": "ends at an error line",
    "busy": "connects again at once",
    "steady": "connects again every 0.2 s",
    "panics": "lifts everything as soon as the daemon is away",
    "loyal": "keeps restrictions for ever",
    "mute": "prints no state",
    "trims-only": "supports trim_kv_cache only",
    "trim-lifts": "lifts everything at a trim",
    "exact": "ends at a field that it does not know",
    "levels": "ends at a level that it does not know",
    "surprised": "ends at an answer that it did not ask for",
    "impatient": "leaves when it hears nothing for 0.1 s",
    "patterns": "looks for the bytes of a field instead of reading JSON",
    "recursive": "ends at what is nested too deeply",
    "greedy": "ends at a line that is too long",
    "amnesiac": "says hello on its first connection only",
}
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests"]
FREE = {"max_batch_ratio": 1.0, "accept_requests": True}


class Client:
    """One program's life."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.path = os.environ["EDGEGUARDD_SOCKET"]
        self.lost_after_s = float(os.environ["EDGEGUARDD_LOST_AFTER_S"])
        self.state: dict[str, Any] = {**FREE, "trims": 0}
        self.rest = b""
        self.seen: set[int] = set()
        self.answers: dict[int, str] = {}
        self.stale: list[int] = []
        self.pause_s = 0.1
        self.welcomed = False
        self.epochs: list[str] = []
        self.sock: socket.socket

    def live(self) -> None:
        """Connect again and again."""
        gone_at = None
        while True:
            with socket.socket(socket.AF_UNIX) as self.sock:
                try:
                    self.sock.connect(self.path)
                    self.converse()
                except OSError:
                    pass
            if self.welcomed:
                gone_at = time.monotonic()
            self.welcomed = False
            if self.kind == "quits-at-bye":
                sys.exit("the server has left")
            self.away(gone_at)
            time.sleep({"busy": 0.0, "steady": 0.2}.get(self.kind, self.pause_s))
            self.pause_s = min(5.0, self.pause_s * 2)

    def away(self, gone_at: float | None) -> None:
        """Lift what was restricted when the daemon counts as lost."""
        after_s = 0.0 if self.kind == "panics" else self.lost_after_s
        if gone_at is not None and time.monotonic() - gone_at >= after_s and self.kind != "loyal":
            self.set(FREE)

    def converse(self) -> None:
        """One connection."""
        if self.kind != "keeps-rest":
            self.rest = b""
        if self.kind == "no-json":
            self.sock.sendall(b"Hello, I am a server.\n")
        elif self.kind != "silent" and not (self.kind == "amnesiac" and self.epochs):
            supports = SUPPORTS[:1] if self.kind == "trims-only" else SUPPORTS
            self.say(type="hello", name="raw", supports=supports)
        if self.kind == "hasty":
            self.say(type="report", kv_bytes=1)
        while chunk := self.sock.recv(4096 if self.kind in {"short-lines", "one-read"} else 65536):
            for line in self.lines(chunk):
                self.take(line)

    def lines(self, chunk: bytes) -> list[bytes]:
        """The whole lines so far."""
        if self.kind == "one-read":
            return [chunk]
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        if self.kind == "short-lines" and len(self.rest) > 4096:
            self.rest = b""
        if len(self.rest) > 65536:
            if self.kind == "greedy":
                sys.exit("no room for this line")
            raise OSError("a line without end")
        return lines[:1] if self.kind == "first-line" else lines

    def take(self, line: bytes) -> None:
        """One line."""
        if self.kind == "patterns" and b'"type":"' not in line:
            return
        try:
            message = json.loads(line.decode("ascii", "ignore") if self.kind == "ascii" else line)
            self.obey(message, message["type"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if self.kind in {"strict-json", "one-read"} or (
                self.kind == "recursive" and isinstance(error, RecursionError)
            ):
                raise

    def obey(self, message: dict[str, Any], kind: str) -> None:
        """One message."""
        if self.kind == "exact" and "colour" in message:
            sys.exit("cannot take colour")
        if self.kind == "levels" and message.get("level") == "apocalypse":
            sys.exit("cannot take apocalypse")
        if self.kind == "surprised" and kind in {"admission", "pong"}:
            sys.exit(f"cannot take {kind}")
        match kind:
            case "welcome":
                self.welcome(message)
            case "command":
                self.command(message)
            case "ping" if self.kind == "forgetful":
                self.say(type="pong")
            case "ping" if self.kind != "deaf":
                json.dumps(message.get("id"), ensure_ascii=False).encode()  # no lone surrogates
                self.say(type="pong", id=message.get("id"))
            case "error" if self.kind == "quits-at-error":
                sys.exit(f"the server says {message['code']}")
            case "level" | "pong" | "error" | "bye" | "admission" | "ping":
                pass
            case _ if self.kind == "strict-types":
                sys.exit(f"cannot take {kind}")
            case _ if self.kind == "answers-unknown":
                self.say(type="error", code="unknown_type", message=kind)

    def welcome(self, message: dict[str, Any]) -> None:
        """What is in force."""
        self.welcomed, self.pause_s = True, 0.1
        if self.epochs[-1:] != [message["epoch"]]:
            self.answers.clear()
        self.epochs.append(message["epoch"])
        self.sock.settimeout(0.1 if self.kind == "impatient" else None)
        state = {key: message[key] for key in FREE}
        if self.kind == "never-lifts":
            state = {key: min(state[key], self.state[key]) for key in FREE}
        if self.kind != "ignores-welcome":
            self.set(state)
        if self.kind == "stale-acks":
            for seq in self.stale:
                self.say(type="ack", seq=seq, status="done")
            self.stale.clear()

    def command(self, message: dict[str, Any]) -> None:
        """Carry out a command and ack it."""
        seq, action, asked = message["seq"], message["action"], message["parameters"]
        if not isinstance(seq, int):
            raise TypeError("no number")
        if self.kind == "float-seq":
            seq = int(float(seq))
        if self.kind == "remembers" and seq in self.seen:
            return
        self.seen.add(seq)
        if message["reason"] == "conformance: slow" and self.kind == "stale-acks":
            self.stale.append(seq)
            return
        if seq not in self.answers or self.kind == "forgets":
            self.answers[seq] = self.carry_out(action, asked, message["reason"])
        status = self.answers[seq]
        if self.kind == "late":
            time.sleep(message["deadline_s"] + 0.1)
        if self.kind == "ack-accepted":
            status = "accepted"
        if self.kind != "no-ack":
            self.say(type="ack", seq=seq + (self.kind == "ack-next"), status=status)
        if self.kind == "ack-twice":
            self.say(type="ack", seq=seq, status=status)

    def carry_out(self, action: str, asked: dict[str, Any], reason: str) -> str:
        """The ack's status."""
        if action not in {*SUPPORTS, "restore"}:
            return "done" if self.kind == "eager" else "unsupported"
        if reason == "conformance: fail":
            return "done" if self.kind == "optimist" else "failed"
        if reason == "conformance: slow":
            time.sleep(0.5)
        if action == "trim_kv_cache":
            self.state["trims"] += 1
            self.set(FREE if self.kind == "trim-lifts" else {})
        elif action == "restore" and self.kind == "restores-all":
            self.set(FREE)
        elif action == "reduce_batch" and self.kind == "relative":
            self.set({"max_batch_ratio": self.state["max_batch_ratio"] * asked["max_batch_ratio"]})
        else:
            self.set({key: value for key, value in asked.items() if key in FREE and value is not None})
        return "done"

    def set(self, state: dict[str, Any]) -> None:
        """Change the state, and show it."""
        self.state.update(state)
        if self.kind != "mute":
            print(json.dumps(self.state), flush=True)

    def say(self, **message: Any) -> None:
        """One line."""
        self.sock.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    Client(sys.argv[1] if len(sys.argv) > 1 else "").live()
