"""Callers of the demonstration: each asks one new long prompt after another, and what becomes of each is counted.

Must not: tell bare from guarded. Upstream: run. Downstream: llama-server's socket, or the gate's.
"""

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Callable

from edgeguardd.bridges.calls import AwayError, Http, Reply
from edgeguardd.bridges.endpoint import Endpoint

CALLERS = 2
# A caller gives up after so many times what its prompt takes, beside the other caller's, when memory is plentiful.
PATIENCE_FACTOR = 2.5
LEAST_TIMEOUT_S = 30.0
REFUSED_WITHIN_S = 1.0
# With the word that begins it, about 2,455 tokens of this model.
PROMPT_WORDS = 2450
ANSWER_TOKENS = 8
# Who asks has a time limit of its own.
FOR_EVER_S = 86_400.0
# After an answer that nobody gave there is no word on when to come again.
COME_AGAIN_S = 1.0
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl moment air teacher force"
)
WORDS = COMMON.split()


@dataclasses.dataclass
class Tally:
    """What became of the requests of one run. Times are seconds from asking to the end."""

    answered_s: list[float] = dataclasses.field(default_factory=list)
    refused_s: list[float] = dataclasses.field(default_factory=list)
    timed_out: int = 0
    lost: int = 0
    prompt_tokens: int = 0

    @property
    def sent(self) -> int:
        """All that have ended."""
        return len(self.answered_s) + len(self.refused_s) + self.timed_out + self.lost

    @property
    def slow_refusals(self) -> int:
        """Refusals that came too late to be of use."""
        return sum(took_s > REFUSED_WITHIN_S for took_s in self.refused_s)

    def kept(self) -> bool:
        """Whether each request was either answered or refused within a second."""
        return not (self.timed_out or self.lost or self.slow_refusals)


class Load:
    """CALLERS callers on one socket until the time is over or `enough` are answered; each waits for its last answer."""

    def __init__(
        self,
        socket_path: str,
        seconds: float,
        timeout_s: float,
        said: Callable[[str], None],
        enough: int | None = None,
        words: int = PROMPT_WORDS,
    ) -> None:
        self.tally = Tally()
        self._words = words
        self._enough = enough
        self._timeout_s = timeout_s
        self._socket_path = socket_path
        self._until = time.monotonic() + seconds
        self._said = said
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """All callers at once."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(self._call())

    async def _call(self) -> None:
        number = next(self._numbers)
        while not self._is_over():
            pause_s = await self.request(number)
            if pause_s is None:
                number = next(self._numbers)
            else:
                await asyncio.sleep(pause_s)

    def _is_over(self) -> bool:
        enough = self._enough is not None and len(self.tally.answered_s) >= self._enough
        return enough or time.monotonic() >= self._until

    async def request(self, number: int) -> float | None:
        """One request. None: answered, go on at once; else how long to wait before asking again."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await ask(self._socket_path, number, self._words)
        except TimeoutError:
            self.tally.timed_out += 1
            self._said(f"prompt {number}: no answer in {self._timeout_s:.0f} s")
            return COME_AGAIN_S
        except AwayError as error:
            return self._lost(number, str(error))
        return self._take(number, answer, time.monotonic() - began)

    def _take(self, number: int, answer: Reply, took_s: float) -> float | None:
        match answer.status:
            case 200 if answer.field("tokens_predicted") == ANSWER_TOKENS:
                self.tally.answered_s.append(took_s)
                self.tally.prompt_tokens = max(self.tally.prompt_tokens, answer.field("tokens_evaluated"))
                return None
            case 503:
                # The gate says when to come again; a llama-server that loads its model does not.
                self.tally.refused_s.append(took_s)
                return float(answer.headers.get("retry-after", COME_AGAIN_S))
            case status:
                return self._lost(number, f"status {status}: {answer.text()}")

    def _lost(self, number: int, why: str) -> float:
        self.tally.lost += 1
        self._said(f"prompt {number}: lost, {why}")
        return COME_AGAIN_S


async def ask(socket_path: str, number: int, words: int = PROMPT_WORDS) -> Reply:
    """Send the prompt of this number. Raises AwayError without a whole answer."""
    content = {"prompt": prompt(number, words), "n_predict": ANSWER_TOKENS, "temperature": 0.0, "ignore_eos": True}
    return await Http(Endpoint("localhost", path=socket_path), within_s=FOR_EVER_S).ask("POST", "/completion", content)


def prompt(number: int, words: int = PROMPT_WORDS) -> str:
    """A prompt of which no other shares more than the first token or two; the same number gives the same words."""
    chosen = random.Random(number)  # noqa: S311 - words, not secrets
    return " ".join(chosen.choices(WORDS, k=words))
