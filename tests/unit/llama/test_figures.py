"""What the demonstration counts and what it concludes."""

import asyncio
import json
from pathlib import Path

import pytest

from edgeguardd.core import configparse
from tests.llama import load
from tests.llama.__main__ import ROWS, figures, verdict
from tests.llama.guard import CONFIGURATION
from tests.llama.load import Tally
from tests.llama.run import Result


def test_prompts_are_the_same_each_time_and_share_no_beginning() -> None:
    """Nothing of one prompt can be served from the cache of another."""
    prompts = [load.prompt(number) for number in range(1, 60)]
    assert prompts == [load.prompt(number) for number in range(1, 60)]
    assert len({tuple(text.split()[:4]) for text in prompts}) == len(prompts)
    assert {len(text.split()) for text in prompts} == {load.PROMPT_WORDS}


@pytest.mark.parametrize(
    ("tally", "kept"),
    [
        (Tally(answered_s=[6.0], refused_s=[0.01, 0.6]), True),
        (Tally(answered_s=[6.0], refused_s=[1.2]), False),
        (Tally(answered_s=[6.0], timed_out=1), False),
        (Tally(answered_s=[6.0], lost=1), False),
    ],
)
def test_a_promise_is_kept_when_each_is_answered_or_refused_within_a_second(tally: Tally, kept: bool) -> None:
    """A late no is as bad as none."""
    assert tally.kept() is kept
    assert verdict({"guarded": Result("guarded", tally)}) == (0 if kept else 1)


def test_a_guarded_run_that_answers_nobody_has_kept_nothing() -> None:
    """Refusing everybody is no way to pass."""
    assert verdict({"guarded": Result("guarded", Tally(refused_s=[0.1] * 9))}) == 1
    assert verdict({"guarded": Result("guarded", Tally(answered_s=[1.0]), kills=1)}) == 1


def test_a_bare_run_without_trouble_proves_nothing() -> None:
    """The demonstration then says so, and fails."""
    assert verdict({"bare": Result("bare", Tally(answered_s=[6.0]))}) == 1
    assert verdict({"bare": Result("bare", Tally(timed_out=1))}) == 0
    assert verdict({"bare": Result("bare", Tally(), kills=1)}) == 0


def test_each_row_of_the_table_has_its_figure() -> None:
    """Also when there was nothing to measure."""
    assert len(figures(Result("bare", Tally()))) == len(ROWS)
    assert len(figures(Result("bare", Tally(answered_s=[1.0], refused_s=[0.1])))) == len(ROWS)


def test_the_configuration_is_one_that_edgeguardd_takes() -> None:
    """Every rung keeps what the one below it asked for."""
    config = configparse.read(CONFIGURATION.format(directory="/run/demo", path="/llama"), "demo")
    assert config.targets[0].path == "/llama"


def test_callers_count_what_became_of_each_request_and_come_again_when_told(tmp_path: Path) -> None:
    """Refused, cut off in the middle, answered, and not answered at all."""
    whole = json.dumps({"tokens_predicted": load.ANSWER_TOKENS, "tokens_evaluated": 2451}).encode()
    replies = [
        b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole,
        b"",
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            reply = replies.pop(0)
            if not reply:
                await reader.read()
            writer.write(reply)
        finally:
            writer.close()

    async def scene() -> None:
        path = str(tmp_path / "s")
        async with await asyncio.start_unix_server(answer, path):
            patient = load.Load(path, seconds=1.0, timeout_s=30.0, said=lambda _: None)
            assert [await patient.request(number) for number in range(3)] == [0.0, load.COME_AGAIN_S, None]
            tally = patient.tally
            assert (len(tally.answered_s), len(tally.refused_s), tally.lost, tally.timed_out) == (1, 1, 1, 0)
            assert tally.prompt_tokens == 2451
            hasty = load.Load(path, seconds=1.0, timeout_s=0.05, said=lambda _: None)
            assert await hasty.request(3) == load.COME_AGAIN_S
            assert (hasty.tally.sent, hasty.tally.timed_out) == (1, 1)

    asyncio.run(scene())
