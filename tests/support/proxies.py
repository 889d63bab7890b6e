"""Proxies as people run them, with the configurations that are shipped: each a process of its own on loopback ports.

Must not: touch a service or a configuration of the system's. Upstream: programs, packaging/gate.
Downstream: tests/component/test_proxies.py.
"""

import contextlib
import http.client
import http.server
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping

from tests.support import programs
from tests.support.children import ending
from tests.support.running import REPOSITORY
from tests.support.wait import DEADLINE_S, eventually

SHIPPED = os.path.join(REPOSITORY, "packaging", "gate")
# As docs/how-to/gate.md has it in [http] hosts, for Envoy alone.
PUBLIC = "llm.example.com"
# The ports that the shipped files name.
FRONT, SERVER, HTTP, AGENT = 8000, 8080, 9464, 9465

NGINX_AROUND = """\
daemon off;
pid {place}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
{body}
}}
"""
CADDY_AROUND = "{{\n\tadmin off\n\tauto_https off\n}}\n{body}"
HAPROXY_AROUND = "global\n    stats socket {place}/admin.sock level admin\n{body}"
AROUND = {"nginx": NGINX_AROUND, "caddy": CADDY_AROUND, "haproxy": HAPROXY_AROUND, "envoy": "{body}"}
FILES = {"nginx": "nginx.conf", "caddy": "Caddyfile", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml"}


class Answer:
    """One answer and how long it took."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, took_s: float) -> None:
        self.status, self.headers, self.body, self.took_s = status, headers, body, took_s


class Backend:
    """The inference server: says "hello", or for /stream a first piece, and the rest when it may."""

    def __init__(self) -> None:
        self.requests = 0
        self.streaming, self.go_on = threading.Event(), threading.Event()
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer()

            def _answer(self) -> None:
                backend.requests += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", "10")
                self.end_headers()
                self.wfile.write(b"hello")
                if self.path == "/stream":
                    backend.streaming.set()
                    backend.go_on.wait(DEADLINE_S)
                self.wfile.write(b"world")

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "Backend":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A proxy that ends resets what it has kept open."""


def ask(port: int, path: str = "/v1/chat/completions", body: bytes | None = None, host: str = PUBLIC) -> Answer:
    """One request through a proxy, on a connection of its own, by the name that clients know it by."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        began = time.monotonic()
        connection.request("GET" if body is None else "POST", path, body, {"Host": host})
        answer = connection.getresponse()
        text = answer.read()
        took_s = time.monotonic() - began
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text, took_s)
    finally:
        connection.close()


def written(name: str, place: str, ports: Mapping[int, int]) -> str:
    """The shipped configuration with other ports, and with what a test of its own needs around it, as a file."""
    with open(os.path.join(SHIPPED, FILES[name])) as file:
        body = re.sub(r"\b(8000|8080|9464|9465)\b", lambda port: str(ports[int(port[0])]), file.read())
    path = f"{place}/{FILES[name]}"
    with open(path, "w") as file:
        file.write(AROUND[name].format(place=place, body=body))
    return path


def command(name: str, config: str, place: str) -> list[str]:
    """How the proxy is run in the foreground."""
    program = program_of(name) or name
    return {
        "nginx": [program, "-e", "stderr", "-p", place, "-c", config],
        "caddy": [program, "run", "--adapter", "caddyfile", "--config", config],
        "haproxy": [program, "-db", "-f", config],
        "envoy": [program, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warn", "-c", config],
    }[name]


def program_of(name: str) -> str | None:
    """The proxy's program; None: it is not here."""
    if name != "envoy":
        return programs.find(name)
    try:
        import envoy  # noqa: PLC0415  a wheel that is there for some processors only
    except ImportError:
        return None
    path = os.path.join(os.path.dirname(envoy.__file__), "_bin", "envoy")
    return path if os.access(path, os.X_OK) else None


@contextlib.contextmanager
def running(name: str, place: str, ports: Mapping[int, int]) -> Iterator[int]:
    """The proxy, from when it listens; its port."""
    front = free_port()
    config = written(name, place, {**ports, FRONT: front})
    environment = {**programs.environment(), "HOME": place, "XDG_DATA_HOME": place, "XDG_CONFIG_HOME": place}
    with open(f"{place}/{name}.log", "w") as log:
        argv = command(name, config, place)
        started = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place)
        with ending(started) as process:
            try:
                eventually(lambda: process.poll() is not None or listens(front), what=f"{name} listens")
                assert process.poll() is None
            except AssertionError as failed:
                with open(f"{place}/{name}.log") as said:
                    raise AssertionError(f"{name} does not run:\n{said.read()}") from failed
            yield front
            process.terminate()
            process.wait(DEADLINE_S)


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def haproxy_maxconn(place: str) -> int:
    """How many connections HAProxy lets through to the server now."""
    heading, *rows = haproxy_told(place, "show stat").lstrip("# ").split("\n")
    names = heading.split(",")
    (server,) = (dict(zip(names, row.split(","), strict=False)) for row in rows if row.startswith("llm,llm,"))
    return int(server["slim"])


def haproxy_told(place: str, commands: str) -> str:
    """What HAProxy answers on its runtime API."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(DEADLINE_S)
        admin.connect(f"{place}/admin.sock")
        admin.sendall(commands.encode() + b"\n")
        return admin.makefile().read()
