"""The page at `/` in a real browser, served by the project's own HTTP server, with /status as each test wants it.

With EDGEGUARDD_SCREENSHOTS=DIR some tests leave there what they saw, for people to look at.
"""

import asyncio
import copy
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edgeguardd import webpage
from edgeguardd.core.config import HttpConfig
from edgeguardd.serve.http import HttpServer, Request, Response
from tests.support import browser as browsers
from tests.support.browser import Browser
from tests.support.fakedaemon import STATUS
from tests.support.wait import DEADLINE_S, eventually

MIB = 2**20
WIDE, PHONE = (1280, 900), (360, 740)
# Names as a peer may choose them: markup, an attribute's end, a script, a turn of the writing direction, one long word.
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "\" onmouseover=\"document.title='owned'",
    "javascript:document.title='owned'",
    "{{7*7}} ${document.title='owned'} &lt;b&gt; &amp;",
    "abc\u202egnp.exe",
    "W" * 128,
    "ممممم 名前 🧠",
    "__proto__",
    "constructor",
)


class Served:
    """The page, and a /status that the test sets."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = copy.deepcopy(STATUS)
        self.raw: Response | None = None
        self.looks = 0
        self._loop = asyncio.new_event_loop()
        page = webpage.response()
        self._server = HttpServer(HttpConfig(port=0), {"/": lambda _: page, "/status": self._status})
        self._loop.run_until_complete(self._server.start())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.port}/"

    def _status(self, _: Request) -> Response:
        self.looks += 1
        if self.raw is not None:
            return self.raw
        return Response(200, "application/json", json.dumps(self.status).encode())

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests here."""
    with browsers.running() as running:
        yield running


@pytest.fixture
def served(browser: Browser) -> Iterator[Served]:
    """A server of its own for each test; no test may leave a defect or a broken policy behind."""
    serving = Served()
    try:
        yield serving
        assert browser.run("violations") == []
        assert browser.run("defects") == []
        browser.run("location.href = 'about:blank'")
    finally:
        serving.close()


def target(name: str, **changes: Any) -> dict[str, Any]:
    """A target as the daemon tells it, with some fields changed."""
    return {**copy.deepcopy(STATUS["targets"][0]), "name": name, "path": "/" + name, **changes}


def opened(browser: Browser, served: Served, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
    """Open the page and wait until it shows the first answer."""
    browser.open(served.url, width=size[0], height=size[1], dark=dark)
    eventually(lambda: "Worst level" in browser.text("#summary"), what="the first answer is shown")


def look_again(browser: Browser, served: Served, seconds: float = 1.0) -> None:
    """Let time pass until the page has asked once more and got its answer."""
    before = served.looks
    browser.pass_time(seconds)
    eventually(lambda: served.looks > before and browser.run("!asking"), what="the page asks again")


def facts(browser: Browser, card: int) -> dict[str, str]:
    """Label -> value of one card."""
    nodes = f"[...document.querySelectorAll('article')][{card}].querySelectorAll('dt, dd')"
    texts = browser.run(f"[...{nodes}].map((node) => node.innerText)")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_the_page_shows_what_status_says(browser: Browser, served: Served) -> None:
    """Memory against marks, level and why, what is in force and asked, subscribers, outcomes, relief, last resort."""
    served.status["targets"][0]["watchers"] = 2
    opened(browser, served)
    assert browser.texts("article h3") == ["The whole machine normal", "llm high"]
    assert browser.text("#summary") == "Worst level high. 1 target, 1 subscriber."
    assert browser.text("#raised") == "Above normal: llm (high)"
    assert browser.texts(".reason")[1] == (
        "since 12 s ago: needed 850.0 MiB is 83% of the range; now: needed 849.0 MiB is 83% of the range"
    )
    assert browser.texts(".state")[1] == "2 processes killed by the kernel so far"
    assert browser.texts(".legend li")[2:] == [
        "needed 850.0 MiB",
        "elevated from 600.0 MiB",
        "high from 800.0 MiB",
        "critical from 940.0 MiB",
        "memory.high 1.0 GiB",
    ]
    told = facts(browser, 1)
    assert told["Needed"] == "850.0 MiB (83 % of the limit, 83 % of what can grow)"
    assert told["Limit"] == "1.0 GiB, memory.high"
    assert told["Restricted to"] == "batch at most 50 %"
    assert told["Asked #7"] == "trim_kv_cache, accepted 200 ms ago by server"
    assert told["Told of pressure"] == "2 programs"
    assert told["Relief"] == "memory.high is lifted for the trim"
    assert told["Last resort"] == "freeze thawed 9.0 s ago: 2 processes"
    assert told["Sampled"] == "50 ms ago, woken by the kernel"
    assert facts(browser, 0)["gpu"] == "1.0 GiB of 4.0 GiB in use"
    assert browser.texts("#subscribers tbody td")[:5] == ["server", "1", "inference", "llm", "42"]
    assert browser.texts("#commands tbody td") == [
        "#6", "llm", "trim_kv_cache", "done: dropped 3 slots", "12 s ago", "50 ms", "1.0 MiB", "512.0 KiB", "server",
    ]  # fmt: skip
    assert browser.run("document.title").startswith("high – edgeguardd 127.0.0.1:")
    assert browser.run("document.querySelectorAll('article')[1].querySelector('path.needed').getAttribute('d')")


def test_an_idle_daemon_says_what_is_missing(browser: Browser, served: Served) -> None:
    """Empty tables would leave a beginner alone."""
    served.status |= {"targets": [], "subscribers": [], "last_commands": [], "machine": {"enabled": False}}
    served.status |= {"ready": False, "stale_s": 7.0, "worst_level": "normal"}
    opened(browser, served)
    for sentence in ("No targets: ", "No subscribers: nobody can be asked", "No commands have ended yet."):
        assert sentence in browser.text("main")
    assert browser.texts("article") == []
    assert browser.text("#doubt") == (
        "The daemon is not ready. The daemon's last sample is 7.0 s old: it sees nothing any more."
    )


def test_whom_the_kernel_killed_is_told(browser: Browser, served: Served) -> None:
    """With why, and what to change; the name is the victim's own choice, and is text."""
    served.status["kernel_log"] = {
        "readable": True,
        "reports": 2,
        "victims": 2,
        "last_report": {"target": "llm", "comm": "server", "why": "memory.max of /llm was met", "remedy": "raise it"},
    }
    served.status["kernel_log"]["last_report"]["comm"] = HOSTILE[0]
    opened(browser, served)
    told = f"the last killed {HOSTILE[0]} of llm: memory.max of /llm was met; raise it"
    assert browser.text("#kills") == f"OOM reports of the kernel so far: 2; {told}"


def test_a_target_of_which_nothing_is_known_has_no_figures(browser: Browser, served: Served) -> None:
    """Unknown is shown as unknown, not as zero; a field that an older daemon lacks as well."""
    served.status["targets"] = [{"name": "later", "path": "/later", "present": False, "level": "normal"}]
    opened(browser, served)
    told = facts(browser, 1)
    assert (told["Needed"], told["Limit"], told["Sampled"]) == ("unknown", "none", "not yet")
    assert browser.texts(".state")[1] == "no such cgroup yet; nobody subscribed: nobody can be asked"


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_names_from_strangers_are_text(browser: Browser, served: Served, size: tuple[int, int]) -> None:
    """Whatever a subscriber calls itself or says is shown as such: nothing runs, nothing is laid out of its place."""
    row = served.status["subscribers"][0]
    ended = served.status["last_commands"][0]
    served.status["subscribers"] = [{**row, "name": n, "subscriber": i, "supports": [n]} for i, n in enumerate(HOSTILE)]
    served.status["targets"] = [target(n, reason=n, degraded=n, limit_path=n, level=n) for n in HOSTILE]
    served.status["last_commands"] = [{**ended, "target": n, "action": n, "outcome": n, "message": n} for n in HOSTILE]
    served.status["machine"]["devices"][0]["name"] = HOSTILE[0]
    served.status |= {"version": HOSTILE[0], "worst_level": HOSTILE[1], "config": {"path": HOSTILE[0]}}
    opened(browser, served, size)
    look_again(browser, served)
    shown = browser.run(
        "[...document.querySelectorAll('#subscribers tbody tr')].map((row) => row.cells[0].textContent)"
    )
    assert shown == [name.replace("\u202e", "\\u{202e}") for name in HOSTILE]
    assert browser.run("document.title").startswith(HOSTILE[1])
    assert browser.run("document.querySelectorAll('img, script').length") == 1
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.parametrize("size", [WIDE, (1190, 700), (768, 1024), PHONE], ids=["wide", "narrow", "tablet", "phone"])
def test_nothing_needs_to_be_scrolled_sideways(
    browser: Browser, served: Served, number: int, size: tuple[int, int]
) -> None:
    """One target or twenty, on a desk or on a phone: all are there, and none is wider than the window."""
    names = [f"serving-{at:02}.scope" for at in range(number)]
    served.status["targets"] = [target(name) for name in names]
    row = served.status["subscribers"][0]
    served.status["subscribers"] = [{**row, "name": name, "target": name} for name in names]
    served.status["last_commands"] *= 32
    opened(browser, served, size)
    browser.screenshot(f"{number}-targets-{size[0]}")
    assert browser.texts("article h3 bdi")[1:] == names
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    beyond = "(node) => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1"
    every = "[...document.querySelectorAll('article *, td, p, li')]"
    assert browser.run(f"{every}.filter({beyond}).map((node) => node.outerHTML.slice(0, 80))") == []


def test_more_than_a_page_can_show_is_said(browser: Browser, served: Served) -> None:
    """A daemon with its most targets and subscribers does not drown the browser."""
    served.status["targets"] = [target(f"t{at}") for at in range(256)]
    served.status["subscribers"] *= 1024
    opened(browser, served)
    assert browser.run("document.querySelectorAll('article').length") == 65
    assert browser.text("#more-targets") == "And 192 more: edgeguardctl status lists them all."
    assert browser.text("#more-subscribers") == "And 924 more: edgeguardctl status lists them all."


def test_a_change_of_level_is_told_as_it_happens(browser: Browser, served: Served) -> None:
    """In the card, the title, and once in the log that screen readers follow."""
    served.status["targets"][0]["level"] = served.status["worst_level"] = "normal"
    opened(browser, served)
    served.status["targets"][0] |= {"level": "critical", "reason": "needed 960.0 MiB"}
    served.status["worst_level"] = "critical"
    look_again(browser, served)
    look_again(browser, served)
    assert browser.texts("article h3")[1] == "llm critical"
    (entry,) = browser.texts("#changes li")
    assert entry.endswith(" llm: normal → critical: needed 960.0 MiB")
    assert browser.run("document.querySelector('#changes').getAttribute('aria-live')") == "polite"
    served.status["epoch"] = "e2"
    look_again(browser, served)
    assert browser.texts("#changes li")[0].endswith("the daemon was started anew")


def test_targets_that_come_and_go_are_followed(browser: Browser, served: Served) -> None:
    """Each keeps its card and its place."""
    served.status["targets"] = [target("a"), target("b")]
    opened(browser, served)
    browser.run("document.querySelectorAll('article')[2].mark = 'the same node'")
    served.status["targets"] = [target("b"), target("c")]
    look_again(browser, served)
    assert browser.texts("article h3 bdi")[1:] == ["b", "c"]
    assert browser.run("document.querySelectorAll('article')[1].mark") == "the same node"


def test_the_plot_keeps_five_minutes_and_no_more(browser: Browser, served: Served) -> None:
    """However long the page is open, and its first point leaves at the left edge."""
    opened(browser, served)
    points = "cards.get('t llm').history.points"
    for _ in range(12):
        browser.run("skipTime(29000)")
        look_again(browser, served)
    kept = browser.run(f"{points}.map((point) => performance.now() - point.at)")
    assert len(kept) == 11
    assert kept[1] < 300_000 <= kept[0]
    # More than it may keep at once, as after many pauses: the oldest go.
    browser.run("for (let i = 0; i < 1000; i++) cards.get('t llm').history.add({at: performance.now(), used: i})")
    assert browser.run(f"{points}.length") == browser.run("KEPT_POINTS")


@pytest.mark.parametrize(
    "answer",
    [
        Response(503, "text/plain", b"too many connections\n"),
        Response(200, "application/json", b"no JSON"),
        Response(200, "application/json", b"[]"),
        Response(200, "application/json", b"null"),
    ],
    ids=["503", "no JSON", "array", "null"],
)
def test_a_lost_connection_is_said_and_mends_itself(browser: Browser, served: Served, answer: Response) -> None:
    """What is below is from before; once there is an answer again all is as it was, with a gap in the plot."""
    opened(browser, served)
    served.raw = answer
    look_again(browser, served)
    alert = browser.text("#lost-alert")
    assert alert.startswith("Connection lost; all below is as it was at ")
    assert browser.run("document.title").startswith("connection lost")
    assert browser.run("document.querySelector('#lost-alert').getAttribute('role')") == "alert"
    assert browser.texts("article h3")[1] == "llm high"
    served.raw = None
    browser.run("document.querySelector('#retry').click()")
    eventually(lambda: browser.run("document.querySelector('#lost').hidden"), what="the connection is back")
    assert [entry.split(" ", 1)[1] for entry in browser.texts("#changes li")] == ["connected again", "connection lost"]
    needed = browser.run("document.querySelectorAll('article')[1].querySelector('path.needed').getAttribute('d')")
    assert needed.count("M") == 2


def test_an_answer_that_the_page_does_not_understand_is_no_lost_connection(browser: Browser, served: Served) -> None:
    """A newer daemon's, say: what could not be shown is said, and is gone with the next answer that can be."""
    opened(browser, served)
    right, served.status["targets"] = served.status["targets"], [None]
    look_again(browser, served)
    assert browser.text("#doubt").startswith("This page cannot show all of the daemon's answer (")
    assert browser.run("document.querySelector('#lost').hidden")
    served.status["targets"] = right
    look_again(browser, served)
    assert browser.run("document.querySelector('#doubt').hidden")


def test_a_daemon_that_is_gone_is_asked_ever_more_seldom(browser: Browser, served: Served) -> None:
    """After 1, 2, 4, 8, 16, 30, 30 seconds; the alert is said once, the countdown beside it goes on."""
    opened(browser, served)
    served.raw = Response(500, "text/plain", b"")
    look_again(browser, served)
    alert = browser.text("#lost-alert")
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        before = served.looks
        browser.pass_time(pause_s - 0.01)
        assert browser.run("asking") is False
        assert served.looks == before
        assert browser.text("#lost-next") == "Next try in 1 s."
        look_again(browser, served, 0.02)
    assert browser.text("#lost-alert") == alert


def test_a_server_that_is_not_there_at_all_is_a_lost_connection(browser: Browser, served: Served) -> None:
    """Refused rather than answered; it never was there, and that is what is said."""
    served.raw = Response(500, "text/plain", b"")
    browser.open(served.url)
    eventually(lambda: browser.run("!document.querySelector('#lost').hidden"))
    assert browser.text("#lost-alert") == "No answer from the daemon so far (the answer is 500)."
    assert browser.text("#summary") == "Asking the daemon…"


def test_a_page_that_nobody_sees_does_not_ask(browser: Browser, served: Served) -> None:
    """Hidden for ten minutes: no request; seen again: one at once."""
    opened(browser, served)
    browser.run(
        "Object.defineProperty(document, 'hidden', {configurable: true, get: () => window.away});"
        "window.away = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    before = served.looks
    browser.pass_time(600)
    assert browser.run("asking") is False
    assert served.looks == before
    browser.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    eventually(lambda: served.looks == before + 1)


CONTRAST = """
(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)));
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.map((v, i) => linear(v / 255) * [0.2126, 0.7152, 0.0722][i]).reduce((a, b) => a + b);
  const paper = (node) => {
    if (!node) return [255, 255, 255];
    const own = channels(getComputedStyle(node).backgroundColor);
    return own[3] === 0 ? paper(node.parentElement) : over(own, paper(node.parentElement));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !node.checkVisibility() || node.closest("script, style, noscript, template")) continue;
    const back = paper(node);
    const [a, b] = [light(over(channels(getComputedStyle(node).color), back)), light(back)];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 40)]);
  }
  return found;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_can_be_read_in_both_schemes(browser: Browser, served: Served, dark: bool) -> None:
    """WCAG AA: each text against what is behind it is at least 4.5 to 1, every level and the alert included."""
    levels = ("normal", "elevated", "high", "critical", "emergency", "odd")
    served.status["targets"] = [target(level, level=level, exhausted=True) for level in levels]
    opened(browser, served, dark=dark)
    served.raw = Response(500, "text/plain", b"")
    look_again(browser, served)
    browser.screenshot(f"levels-{'dark' if dark else 'light'}")
    contrasts = browser.run(CONTRAST)
    assert len(contrasts) > 100
    assert [(round(ratio, 2), text) for ratio, text in contrasts if ratio < 4.5] == []
    schemes = {"light": 255, "dark": 0}
    paper = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert all(abs(channel - schemes["dark" if dark else "light"]) < 40 for channel in paper)


def test_every_part_has_a_name_for_who_cannot_see_it(browser: Browser, served: Served) -> None:
    """Plots say their figures, tables and sections are labelled, the language is told, every button has a text."""
    opened(browser, served)
    label = browser.run("document.querySelectorAll('article svg[role=img]')[1].getAttribute('aria-label')")
    assert label.startswith("llm over the last 5 minutes: needed 850.0 MiB, elevated from 600.0 MiB")
    labelled = "[...document.querySelectorAll('section[aria-labelledby], table')]"
    labels = browser.run(
        f"{labelled}.map((node) => document.getElementById(node.getAttribute('aria-labelledby'))?.innerText)"
    )
    assert len(labels) == 6
    assert all(labels)
    assert browser.run("document.documentElement.lang") == "en"
    assert browser.texts("h1, h2")[1:] == [
        "Memory", "Subscribers", "Commands, newest first", "Seen while this page was open",
    ]  # fmt: skip


def test_the_policy_lets_nothing_else_in(browser: Browser, served: Served) -> None:
    """Scripts and styles by hash, no markup from text; and that the policy bites is seen when it is provoked."""
    opened(browser, served)
    browser.run("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:1/x'}))")
    eventually(lambda: browser.run("violations.length"))
    with pytest.raises(AssertionError, match="TrustedHTML"):
        browser.run("document.body.innerHTML = '<b>x</b>'")
    assert [violation.split()[0] for violation in browser.run("violations")] == [
        "img-src",
        "require-trusted-types-for",
    ]
    browser.run("violations.length = 0")


def test_the_page_is_small_and_self_contained() -> None:
    """It works on a box without a network, and costs a phone little."""
    page = webpage.response()
    assert len(page.body) < 40 * 1024
    text = page.body.decode()
    for outside in ("https:", "//cdn", "@import", "url(", "innerHTML", " onclick", " style="):
        assert outside not in text
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
