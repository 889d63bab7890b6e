"""A client of edgeguardd in the standard library alone, to be copied: Guarded("my-server", obey).run() in a thread."""

import json, logging, random, socket, time

ALL_ALLOWED = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}
log = logging.getLogger("guarded")


class Guarded:
    """obey(action, parameters, reason) returns "done" or "unsupported"; what it raises is answered "failed"."""

    def __init__(self, name, obey, path="/run/edgeguardd/edgeguardd.sock", target="self", lost_after_s=30.0):
        self.hello = {"type": "hello", "name": name, "target": target}
        self.obey, self.path, self.lost_after_s = obey, path, lost_after_s
        self.epoch, self.acks, self.told, self.pause_s, self.lift_at = None, {}, None, 0.1, float("inf")

    def run(self):
        while True:
            self.welcomed = False
            try:
                with socket.socket(socket.AF_UNIX) as self.sock:
                    self.sock.settimeout(10)
                    self.sock.connect(self.path)
                    self.say(**self.hello)
                    with self.sock.makefile("rb") as lines:
                        while (line := lines.readline(65537)).endswith(b"\n"):  # a line that is cut off is none
                            self.take(line)
                self.tell(self.told or "the connection has ended")
            except OSError as error:
                self.tell(f"{self.path}: {error}")
            if self.welcomed:
                self.lift_at, self.pause_s = time.monotonic() + self.lost_after_s, 0.1
            time.sleep(min(self.pause_s * random.uniform(1, 1.5), max(0, self.lift_at - time.monotonic())))
            self.pause_s = min(6.4, self.pause_s * 2)
            if time.monotonic() >= self.lift_at:  # alone for too long: what is in force is lifted
                self.lift_at = float("inf")
                self.status_of("restore", ALL_ALLOWED, "edgeguardd is away")

    def take(self, line):
        try:
            message = json.loads(line)
            if message["type"] == "welcome":
                if self.epoch != message["epoch"]:  # numbers begin again
                    self.epoch, self.acks = message["epoch"], {}
                self.sock.settimeout(10 + 3 * message["heartbeat_s"])  # whoever lives says ping meanwhile
                self.welcomed, self.told, self.lift_at = True, None, float("inf")
                self.status_of("restore", {key: message[key] for key in ALL_ALLOWED}, "in force")
            elif message["type"] == "command":
                self.command(**message)
            elif message["type"] == "ping":
                self.say(type="pong", id=message.get("id"))
            elif message["type"] in ("error", "bye"):
                self.tell(message.get("message") or message["reason"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # what cannot be read is passed over

    def command(self, seq, action, parameters, reason, **_):
        if seq not in self.acks:  # told again: acked again, not done again
            self.acks[int(seq)] = self.status_of(action, dict(parameters), reason)
            for old in list(self.acks)[:-256]:
                del self.acks[old]
        self.say(type="ack", seq=seq, status=self.acks[seq])

    def status_of(self, action, parameters, reason):
        try:
            return self.obey(action, {key: value for key, value in parameters.items() if value is not None}, reason)
        except Exception:
            log.exception("cannot %s", action)
            return "failed"

    def say(self, **message):
        self.sock.sendall(json.dumps(message, ensure_ascii=False).encode() + b"\n")

    def tell(self, why):
        if why != self.told:
            log.warning("edgeguardd: %s", why)
        self.told = why
