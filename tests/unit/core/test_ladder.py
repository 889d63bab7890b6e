"""What each step of a ladder asks for."""

import pytest

from edgeguardd.core.config import Step
from edgeguardd.core.ladder import Situation, parameters_of
from edgeguardd.core.model import Action, Level, Parameters

SITUATION = Situation(now=1.0, level=Level.HIGH, reason="usage", needed_bytes=100, release_bytes=30)


@pytest.mark.parametrize(
    ("step", "parameters"),
    [
        (Step(Action.TRIM_KV_CACHE), Parameters(release_bytes=30, needed_target_bytes=70)),
        (Step(Action.REDUCE_BATCH, max_batch_ratio=0.5), Parameters(max_batch_ratio=0.5)),
        (Step(Action.REJECT_REQUESTS), Parameters(accept_requests=False)),
        (Step(Action.UNLOAD_MODEL), Parameters(model_loaded=False)),
        (Step(Action.RESTORE), Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True)),
    ],
)
def test_a_step_asks_for_what_its_action_says(step: Step, parameters: Parameters) -> None:
    """A trim for the bytes that bring the target to its goal, everything else for a state."""
    assert parameters_of(step, SITUATION) == parameters


def test_a_trim_of_more_than_there_is_aims_at_nothing() -> None:
    """Not below zero; and without figures the server is asked to give what it can."""
    everything = Situation(now=1.0, level=Level.HIGH, reason="usage", needed_bytes=20, release_bytes=30)
    assert parameters_of(Step(Action.TRIM_KV_CACHE), everything).needed_target_bytes == 0
    unknown = Situation(now=1.0, level=Level.HIGH, reason="oom", release_bytes=30)
    assert parameters_of(Step(Action.TRIM_KV_CACHE), unknown) == Parameters()
