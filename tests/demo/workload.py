"""Who asks what and when: the same conversations at the same times for every run of a seed. Pure.

Must not: read a clock or know sockets. Upstream: nothing. Downstream: load sends it, server answers it.
"""

import dataclasses
import random

# A new person begins a conversation about so often, takes so many turns, and pauses so long between them. The first
# turn brings a document along.
ARRIVAL_EVERY_S = (1.8, 2.8)
TURNS = (10, 15)
PAUSE_S = (0.4, 0.8)
DOCUMENT_TOKENS = (180, 260)
# Some come back to an old conversation for another turn.
RETURN_SHARE = 0.2
RETURN_AFTER_S = (5.0, 12.0)
PROMPT_TOKENS = (6, 10)
ANSWER_TOKENS = (5, 8)


@dataclasses.dataclass(frozen=True)
class Request:
    """One turn: the whole conversation so far is its context, as chat interfaces send it."""

    at_s: float
    conversation: int
    context_tokens: int
    prompt_tokens: int
    answer_tokens: int


def schedule(seed: int, duration_s: float) -> list[Request]:
    """All requests of a run, in order of time."""
    chance = random.Random(seed)  # noqa: S311 - to be the same each time is its job
    requests = []
    arrives_s, conversation = 0.0, 0
    while arrives_s < duration_s:
        requests += turns(chance, conversation, arrives_s)
        arrives_s += chance.uniform(*ARRIVAL_EVERY_S)
        conversation += 1
    return sorted((each for each in requests if each.at_s < duration_s), key=lambda each: each.at_s)


def turns(chance: random.Random, conversation: int, at_s: float) -> list[Request]:
    """One conversation, whose context grows from turn to turn; perhaps with a late return."""
    requests, context = [], 0
    for _ in range(chance.randint(*TURNS)):
        prompt = PROMPT_TOKENS if context else DOCUMENT_TOKENS
        requests.append(one_turn(chance, conversation, at_s, context, prompt))
        context += requests[-1].prompt_tokens + requests[-1].answer_tokens
        at_s += chance.uniform(*PAUSE_S)
    if chance.random() < RETURN_SHARE:
        requests.append(one_turn(chance, conversation, at_s + chance.uniform(*RETURN_AFTER_S), context, PROMPT_TOKENS))
    return requests


def one_turn(
    chance: random.Random, conversation: int, at_s: float, context_tokens: int, prompt: tuple[int, int]
) -> Request:
    """One turn of random length; `prompt` is the least and the most tokens it brings."""
    return Request(at_s, conversation, context_tokens, chance.randint(*prompt), chance.randint(*ANSWER_TOKENS))
