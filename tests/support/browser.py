"""A headless Chromium, spoken to over two pipes (the DevTools protocol): what a page looks like to who opens it.

Must not: need a driver program, a network or a home directory. Upstream: Debian's chromium. Downstream: page tests.
Each message is JSON and ends with a zero byte; Chromium reads descriptor 3 and writes descriptor 4.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.wait import eventually

ANSWER_S = 30.0
SCREENSHOTS_VARIABLE = "EDGEGUARDD_SCREENSHOTS"
PROGRAMS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# Chromium wants descriptors 3 and 4, which are in use here: the shell moves them there from numbers that are not.
_MOVED = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
_HIGH_FD = 20

# Before the page's own script: time stands still until the test moves it, and violations of the policy are kept.
PRELUDE = """
(() => {
  let now = 1000, next = 1;
  const timers = new Map();
  performance.now = () => now;
  window.setTimeout = (run, delay) => (timers.set(next, { run, at: now + (delay || 0) }), next++);
  window.clearTimeout = (number) => timers.delete(number);
  window.passTime = (ms) => {
    const end = now + ms;
    for (;;) {
      const due = [...timers].filter(([, timer]) => timer.at <= end).sort((a, b) => a[1].at - b[1].at)[0];
      if (!due) break;
      timers.delete(due[0]);
      now = Math.max(now, due[1].at);
      due[1].run();
    }
    now = end;
  };
  window.skipTime = (ms) => { now += ms; };
  window.violations = [];
  window.defects = [];
  addEventListener("securitypolicyviolation", (event) => {
    violations.push(event.violatedDirective + " " + event.blockedURI);
  });
  addEventListener("error", (event) => defects.push(String(event.message)));
  addEventListener("unhandledrejection", (event) => defects.push(String(event.reason)));
})();
"""


class Browser:
    """One Chromium with one page. Use `running()`."""

    def __init__(self, send_fd: int, receive_fd: int) -> None:
        self._send_fd = send_fd
        self._receive_fd = receive_fd
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=PRELUDE)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page into a window of this size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width, height)
        self._call("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState === 'complete' && location.href") == url, what=f"{url} loads")

    def resize(self, width: int, height: int) -> None:
        """Another window size; narrow ones are phones."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What is to be read in the first element of a kind, white space aside."""
        return self.texts(selector)[0]

    def texts(self, selector: str) -> list[str]:
        """What is to be read in each element of a kind, white space aside."""
        found = self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)")
        return [" ".join(text.split()) for text in found]

    def pass_time(self, seconds: float) -> None:
        """Let the page's timers run as if so much time went by."""
        self.run(f"passTime({seconds * 1000})")

    def screenshot(self, name: str) -> None:
        """The whole page as NAME.png, where somebody wants to look at it: in the directory EDGEGUARDD_SCREENSHOTS."""
        directory = os.environ.get(SCREENSHOTS_VARIABLE)
        if directory is None:
            return
        width, height = self.run("[innerWidth, document.documentElement.scrollHeight]")
        self.resize(width, height)
        found = self._call("Page.captureScreenshot")
        Path(directory, f"{name}.png").write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Ask it to end."""
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._receive_fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise AssertionError("Chromium does not answer")
            piece = os.read(self._receive_fd, 1 << 20)
            if not piece:
                raise AssertionError("Chromium has ended")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


def program() -> str:
    """The browser's path. Fails where there is none: tests/support/setup.sh installs it."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert found is not None, "cannot test the page: no Chromium here; apt-get install chromium"
    return found


@contextmanager
def running() -> Iterator[Browser]:
    """A fresh Chromium; nothing is left of it afterwards."""
    profile = tempfile.mkdtemp(prefix="eg-chromium-")
    (reads, sends), (receives, writes) = _pipe(), _pipe()
    command = [program(), *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["/bin/bash", "-c", _MOVED, "chromium", str(reads), str(writes), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(reads, writes),
        env={**os.environ, "HOME": profile, "XDG_CACHE_HOME": profile, "XDG_CONFIG_HOME": profile},
    )
    os.close(reads)
    os.close(writes)
    try:
        browser = Browser(sends, receives)
        yield browser
        browser.close()
        process.wait(ANSWER_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(sends)
        os.close(receives)
        shutil.rmtree(profile, ignore_errors=True)


def _pipe() -> tuple[int, int]:
    """Reading and writing end, with numbers that no shell uses."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
