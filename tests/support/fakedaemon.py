"""What edgeguardctl talks to: /status over HTTP and a subscriber socket, both real, with canned answers.

A test sets `status` and `lines` (sent after each hello) and reads `heard` (every line that clients sent).
"""

import http.server
import json
import socket
import threading
from pathlib import Path
from typing import Any

from edgeguardd.core import wire
from edgeguardd.core.model import Action, Parameters

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "epoch": "e1",
    "uptime_s": 61.5,
    "config": {"path": "/etc/edgeguardd/edgeguardd.toml"},
    "worst_level": "high",
    "ready": True,
    "machine": {
        "level": "normal",
        "reason": "",
        "wanted_bytes": 0,
        "enabled": True,
        "interval_s": 1.0,
        "sample_age_s": 0.5,
        "psi": "trigger",
        "estimated": False,
        "degraded": None,
        "sample": {"total_bytes": 8 * 2**30, "available_bytes": 5 * 2**30, "psi_some_us": 7},
        "devices": [{"name": "gpu", "kind": "nvml", "used_bytes": 2**30, "total_bytes": 4 * 2**30, "degraded": None}],
    },
    "targets": [
        {
            "name": "llm",
            "path": "/llm.service",
            "present": True,
            "watch": "epoll",
            "level": "high",
            "reason": "needed 850.0 MiB is 83% of the range",
            "level_age_s": 12.0,
            "calls": "needed 849.0 MiB is 83% of the range",
            "needed_bytes": 850 * 2**20,
            "limit_bytes": 2**30,
            "limit_kind": "memory.high",
            "limit_path": "/llm.service",
            "current_bytes": 900 * 2**20,
            "headroom_bytes": 174 * 2**20,
            "used_ratio": 0.83,
            "marks": {"elevated_bytes": 600 * 2**20, "high_bytes": 800 * 2**20, "critical_bytes": 940 * 2**20},
            "growth_bytes_per_s": 5 * 2**20,
            "rung": "high",
            "in_force": {"max_batch_ratio": 0.5, "accept_requests": True, "model_loaded": True},
            "counters": {"low": 0, "high": 3, "max": 0, "oom": 0, "oom_kill": 2, "oom_group_kill": None},
            "relief": "lifted",
            "last_resort": {
                "configured": True,
                "running": False,
                "last": {"action": "freeze", "outcome": "thawed", "age_s": 9.0, "message": "2 processes"},
            },
            "sample_age_s": 0.05,
            "degraded": None,
            "outstanding": [{"seq": 7, "action": "trim_kv_cache", "subscriber": 1, "status": "accepted", "age_s": 0.2}],
        }
    ],
    "subscribers": [
        {
            "subscriber": 1,
            "name": "server",
            "role": "inference",
            "target": "llm",
            "pid": 42,
            "uid": 0,
            "supports": ["trim_kv_cache"],
            "connected_s": 12.0,
            "silent_s": 1.0,
            "outbox_lines": 0,
        }
    ],
    "last_commands": [
        {
            "seq": 6,
            "target": "llm",
            "action": "trim_kv_cache",
            "outcome": "done",
            "took_s": 0.05,
            "claimed_bytes": 2**20,
            "freed_bytes": 2**19,
            "subscriber": 1,
            "age_s": 12.0,
            "message": "dropped 3 slots",
        }
    ],
}
WELCOME = wire.WelcomeLine(1, "e1", "llm", "normal", 1.0, True, True, 10.0)
COMMAND = wire.CommandLine(1, 7, "llm", Action.TRIM_KV_CACHE, Parameters(release_bytes=5), "high", "because", 5.0)
LEVEL = wire.LevelLine(1, "llm", "high", "normal", "because")


class FakeDaemon:
    """Serves until closed; use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = str(directory / "edgeguardd.sock")
        self.status: bytes = json.dumps(STATUS).encode()
        self.status_code = 200
        self.lines: list[bytes] = [wire.encode(WELCOME), wire.encode(COMMAND), wire.encode(LEVEL)]
        self.hang_up = False
        self.heard: list[dict[str, Any]] = []
        self.looks = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.socket_path)
        self._listener.listen()
        self._http = http.server.HTTPServer(("127.0.0.1", 0), self._handler())
        self._threads = [threading.Thread(target=self._accept), threading.Thread(target=self._http.serve_forever)]

    @property
    def http_address(self) -> str:
        """ADDRESS:PORT."""
        return f"127.0.0.1:{self._http.server_address[1]}"

    def options(self) -> list[str]:
        """The options that point at both."""
        return ["--socket", self.socket_path, "--http", self.http_address]

    def __enter__(self) -> "FakeDaemon":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._http.shutdown()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._http.server_close()

    def _handler(daemon) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler below
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                daemon.looks += 1
                self.send_response(daemon.status_code if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(daemon.status)))
                self.end_headers()
                self.wfile.write(daemon.status)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as lines:
                self._serve(peer, lines)

    def _serve(self, peer: socket.socket, lines: Any) -> None:
        try:
            self.heard.append(json.loads(lines.readline() or b"null"))
            peer.sendall(b"".join(self.lines))
            if self.hang_up:
                return
            for line in lines:
                self.heard.append(json.loads(line))
        except OSError:
            pass  # the client left
