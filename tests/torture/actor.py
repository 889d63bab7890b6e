"""An inference server in one process: holds memory, subscribes, obeys or misbehaves, and says on stdout what it does.

    python -I -S -B actor.py SOCKET TARGET SEED      orders as JSON lines on stdin, a journal as JSON lines on stdout

Without a target ("") it subscribes to nothing, and only holds memory.

Must not: use the client library, nor import anything that costs start-up time. Upstream: world. Downstream: the
daemon's socket, the kernel.
"""

import json
import mmap
import os
import random
import socket
import sys
import threading
import time
from typing import Any

PIECE = 256 * 1024
FILLING = b"\xa5" * PIECE
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]
FREE = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}
KEPT = ("anon", "shmem", "file_mapped", "kernel_stack", "pagetables", "percpu", "slab_unreclaimable", "sock")
PAUSE_S = 0.05
TURN_S = 0.05
# What a flooding peer sends: bytes that are no JSON, no message, no line, and much that is well-formed.
RUBBISH = [
    b"\x00\xff\xfe{\n",
    b"{}\n",
    b'{"type":"colour"}\n',
    b'{"type":"hello","name":"again"}\n',
    b'{"type":"ack","seq":-1,"status":"done"}\n',
    b'{"type":"ack","seq":18446744073709551616,"status":"done"}\n',
    b'{"type":"report","kv_bytes":1,"running":2,"waiting":3}\n',
    b'{"type":"ping","id":"flood"}\n',
    b'{"type":"admit","id":"flood","bytes":1}\n',
    b"[" * 2000 + b"\n",
]


class Actor:
    """`kind` is how it behaves; it may change at any time."""

    def __init__(self, path: str, target: str, seed: int) -> None:
        self.path = path
        self.target = target
        self.chance = random.Random(seed)  # noqa: S311 - to be the same each time is its job
        self.kind = "good"
        self.pieces: list[mmap.mmap] = []
        self.lock = threading.Lock()
        self.state: dict[str, Any] = dict(FREE)
        self.sock: socket.socket | None = None
        # What was answered in this epoch, by number: told again it is answered again, and not done again.
        self.epoch = ""
        self.answered: dict[int, dict[str, Any]] = {}
        self.stat = os.open(f"/sys/fs/cgroup{own_cgroup()}/memory.stat", os.O_RDONLY)
        # Journal lines of both threads; a line is written whole.
        self.saying = threading.Lock()

    # Memory

    def grow(self, size: int) -> int:
        """Take and touch so many bytes, piece by piece, so that throttling stalls it between small steps."""
        for _ in range(0, size, PIECE):
            area = mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            area[:] = FILLING
            with self.lock:
                self.pieces.append(area)
        return size

    def shrink(self, size: int) -> int:
        """Give back at least so many bytes; how many it was."""
        freed = 0
        with self.lock:
            while self.pieces and freed < size:
                self.pieces.pop().close()
                freed += PIECE
        return freed

    def needed(self) -> int:
        """Needed bytes of the own cgroup: what a server can know of them without counting kernel memory."""
        text = os.pread(self.stat, 16384, 0).decode()
        stat = dict(line.split() for line in text.splitlines())
        return sum(int(stat[key]) for key in KEPT)

    # The socket

    def live(self) -> None:
        """Connect again and again."""
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    if self.kind == "stall":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    sock.connect(self.path)
                    self.sock = sock
                    self.converse(sock)
            except OSError as error:
                self.say(what="lost", why=str(error))
            self.sock = None
            time.sleep(PAUSE_S)

    def converse(self, sock: socket.socket) -> None:
        """One connection, until it ends."""
        self.send(type="hello", name=f"actor-{self.target}", target=self.target, supports=SUPPORTS)
        sock.settimeout(TURN_S)
        rest = b""
        while True:
            if self.kind == "stall":
                time.sleep(TURN_S)
                continue
            self.misbehave(sock)
            try:
                piece = sock.recv(65536)
            except TimeoutError:
                continue
            if not piece:
                self.say(what="lost", why="end of file")
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self.take(sock, json.loads(line))

    def misbehave(self, sock: socket.socket) -> None:
        """What some kinds do before they read."""
        match self.kind:
            case "flood":
                try:
                    for _ in range(50):
                        sock.sendall(self.chance.choice(RUBBISH))
                    if self.chance.random() < 0.02:
                        sock.sendall(b"x" * 70000)
                except TimeoutError:  # the daemon makes it wait
                    pass
            case "halfclose":
                sock.shutdown(socket.SHUT_WR)
            case "foreign":
                for _ in range(3):
                    self.send(type="ack", seq=self.chance.randrange(1, 1 << 40), status="done")
            case _:
                pass

    def take(self, sock: socket.socket, line: dict[str, Any]) -> None:
        """One line."""
        match line["type"]:
            case "welcome":
                if line["epoch"] != self.epoch:
                    self.epoch, self.answered = line["epoch"], {}
                self.state = {key: line[key] for key in FREE}
                self.say(what="welcome", line=line)
            case "command":
                self.obey(sock, line)
            case "ping":
                self.send(type="pong", id=line.get("id"))
            case "bye" | "error":
                self.say(what=line["type"], line=line)
            case _:
                pass

    def obey(self, sock: socket.socket, line: dict[str, Any]) -> None:
        """A command, by the present behaviour."""
        needed = self.needed()
        kind = self.kind
        if kind == "reconnect" and self.chance.random() < 0.5:
            self.say(what="command", line=line, epoch=self.epoch, needed=needed, freed=0, kind=kind)
            sock.shutdown(socket.SHUT_RDWR)
            return
        told_again = line["seq"] in self.answered
        freed = 0 if told_again or kind in {"lie", "mute", "failing"} else self.carry_out(line, needed)
        self.say(what="command", line=line, epoch=self.epoch, needed=needed, freed=freed, kind=kind)
        if kind == "mute":
            return
        status = "failed" if kind == "failing" else "done"
        ack = {"type": "ack", "seq": line["seq"], "status": status, "effect": "released" if freed else "none"}
        ack = self.answered.setdefault(line["seq"], ack)
        self.send(**ack)
        if kind == "foreign":
            self.send(**ack)

    def carry_out(self, line: dict[str, Any], needed: int) -> int:
        """Absolutely, as the protocol has it: what is there already is not done again."""
        asked = line["parameters"]
        self.state.update({key: value for key, value in asked.items() if key in FREE and value is not None})
        if line["action"] == "unload_model":
            return self.shrink(1 << 40)
        if line["action"] != "trim_kv_cache":
            return 0
        goal = asked.get("needed_target_bytes") or 0
        return self.shrink(min(asked.get("release_bytes") or needed, max(0, needed - goal)))

    def send(self, **message: Any) -> None:
        """One line to the daemon; a connection that has ended is found out by reading."""
        sock = self.sock
        try:
            if sock is not None:
                sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    # The harness

    def say(self, **entry: Any) -> None:
        """One journal line."""
        data = json.dumps({"at": time.monotonic(), **entry}).encode() + b"\n"
        with self.saying:
            while data:
                data = data[os.write(1, data) :]

    def do(self, order: dict[str, Any]) -> None:
        """One order."""
        match order["do"]:
            case "grow":
                self.grow(order["bytes"])
            case "shrink":
                self.shrink(order["bytes"])
            case "behave":
                self.kind = order["kind"]
            case "drop":
                self.drop()
            case "state":
                pass
        self.say(what="did", order=order, needed=self.needed(), held=len(self.pieces) * PIECE, state=self.state)

    def drop(self) -> None:
        """End the connection, if there is one: the next one begins anew."""
        sock = self.sock
        try:
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def own_cgroup() -> str:
    """Below the root of cgroup v2."""
    with open("/proc/self/cgroup") as file:
        return next(line.split(":", 2)[2].rstrip("\n") for line in file if line.startswith("0::"))


def main() -> None:
    """Orders until stdin ends; the daemon's lines in a thread of their own, which throttling of the other does not
    hold up."""
    actor = Actor(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    if actor.target:
        threading.Thread(target=actor.live, daemon=True).start()
    actor.say(what="ready")
    for line in sys.stdin:
        actor.do(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
