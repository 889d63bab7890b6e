"""The keys of a policy: how a target is judged, what its subscribers are asked, what the daemon does itself.

Must not: parse anything itself. Upstream: configrows, configkinds, config. Downstream: configtable, configreader.
"""

from collections.abc import Callable
from typing import Any

from edgeguardd.core.config import UNLOAD_DEADLINE_S, Ladder, LastResorts, LastResortStep, Policy, Step
from edgeguardd.core.configkinds import (
    Kind,
    choice,
    duration,
    integer,
    mark,
    quoted,
    share,
    show_duration,
    show_share,
    size,
    switch,
    text,
)
from edgeguardd.core.confignames import check_service, check_signal
from edgeguardd.core.configrows import Row, Section
from edgeguardd.core.model import Action, LastResort

HOUR_S = 3600.0
LADDER_ACTIONS = (Action.TRIM_KV_CACHE, Action.REDUCE_BATCH, Action.REJECT_REQUESTS, Action.UNLOAD_MODEL)
DEADLINES_S = {Action.UNLOAD_MODEL: UNLOAD_DEADLINE_S}

# How a target is judged

POLICY_ROWS = (
    Row("elevated", "elevated", mark(), "Where level elevated begins, as share of the elastic range or as headroom."),
    Row("high", "high", mark(), "Where level high begins."),
    Row("critical", "critical", mark(), "Where level critical begins."),
    Row(
        "hysteresis",
        "hysteresis_ratio",
        share(0, 0.5),
        "How far below a mark the target has to come before the level may fall, as share of the elastic range.",
    ),
    Row("dwell", "dwell_s", duration(HOUR_S), "How long it has to stay there before the level falls by one."),
    Row(
        "restore_dwell",
        "restore_dwell_s",
        duration(HOUR_S),
        "How long the level has to stay down before the next rung of restrictions is lifted.",
    ),
    Row(
        "repeat",
        "repeat_s",
        duration(HOUR_S),
        "How long after a rung was asked before it may be asked again within one level.",
    ),
    Row(
        "static",
        "static_bytes",
        size(),
        "What the server holds at rest; what it reports, or shows, counts when not given.",
    ),
    Row(
        "settle",
        "settle_s",
        duration(HOUR_S),
        "How long needed bytes have to stand still before their minimum is taken as what the server holds at rest.",
    ),
    Row(
        "lead_floor",
        "lead_floor_s",
        duration(HOUR_S),
        "How long before the limit a trim is asked for at least, however fast trims of this target have been.",
    ),
    Row(
        "lead_ceiling",
        "lead_ceiling_s",
        duration(HOUR_S),
        "How long before the limit it is asked for at most, however slow they have been.",
    ),
    Row(
        "thrash",
        "thrash_ratio_per_s",
        share(0.001, 1),
        "How much evicted memory may come back each second, as share of the limit, before that counts as thrashing.",
    ),
    Row(
        "psi",
        "psi_ratio",
        share(0.01, 1),
        "For how much of the time tasks may wait for memory before that, with little headroom, raises the level.",
    ),
    Row(
        "livelock",
        "livelock_s",
        duration(HOUR_S),
        "For how long the kernel may throttle the target without its needed bytes falling before that is critical.",
    ),
    Row(
        "relief",
        "relief",
        switch("auto", "off"),
        "auto lifts memory.high for the length of a trim where it is in the trim's way; off never writes it.",
    ),
    Row(
        "relief_allowance",
        "relief_allowance_ratio",
        share(0, 1),
        "How far memory.high is lifted at most, as share of itself.",
    ),
    Row(
        "relief_reserve",
        "relief_reserve_ratio",
        share(0, 0.5),
        "How far a lifted memory.high stays below memory.max, as share of memory.max.",
    ),
    Row(
        "priority",
        "priority",
        integer(-1000, 1000),
        "Among targets that share a limit or the machine, the one with the lowest is asked first.",
    ),
    Row(
        "floor",
        "floor_bytes",
        size(0),
        "The needed bytes that it keeps: nobody asks it to go below.",
    ),
)

DEFAULTS = Section(
    "defaults",
    Policy,
    "How targets are judged; every key may be given again in a [[target]].",
    POLICY_ROWS,
)

# What subscribers are asked

STEP = Section(
    "",
    Step,
    "One step of a ladder, written as a table.",
    (
        Row("action", "action", choice(*LADDER_ACTIONS), "What is asked of the subscriber."),
        Row(
            "max_batch_ratio",
            "max_batch_ratio",
            share(0, 1, open_ends=True),
            "The share of its configured batch that may run: for reduce_batch, which needs it, and for it alone.",
        ),
        Row(
            "deadline",
            "deadline_s",
            duration(HOUR_S),
            "How long the subscriber has before the step counts as failed (30s for unload_model).",
        ),
    ),
)


def plain_step(action: Action) -> Step:
    """The step that the bare name of an action stands for."""
    return Step(action, deadline_s=DEADLINES_S.get(action, Step(action).deadline_s))


def show_step(step: Step) -> str:
    """A step as TOML: the bare name where that says it all."""
    if step == plain_step(step.action):
        return quoted(step.action)
    keys = [f"action = {quoted(step.action)}"]
    if step.max_batch_ratio is not None:
        keys.append(f"max_batch_ratio = {show_share(step.max_batch_ratio)}")
    if step.deadline_s != plain_step(step.action).deadline_s:
        keys.append(f"deadline = {show_duration(step.deadline_s)}")
    return "{" + ", ".join(keys) + "}"


def steps(example: str, show: Callable[[Any], str]) -> Kind:
    """An array of steps, each an action's name or a table; configreader reads what is in it."""

    def parse(value: object) -> list[object]:
        if isinstance(value, list):
            return value
        raise ValueError(f'this is an array of steps; write ["{example}"], or [] for none')

    return Kind(
        "an array of actions or steps", parse, lambda steps: "[" + ", ".join(show(step) for step in steps) + "]"
    )


RUNG = steps("trim_kv_cache", show_step)
LADDER = Section(
    "defaults.ladder",
    Ladder,
    "Per level, the steps it calls for, in the order in which they are asked; also [target.ladder].",
    (
        Row("elevated", "elevated", RUNG, "What is asked at level elevated."),
        Row("high", "high", RUNG, "What is asked at level high; it keeps the lasting steps of the level below."),
        Row("critical", "critical", RUNG, "What is asked at level critical."),
        Row("emergency", "emergency", RUNG, "What is asked at level emergency, when the kernel has begun to kill."),
    ),
)

# What the daemon does itself

RESORT_STEP = Section(
    "",
    LastResortStep,
    "One step of a last resort, written as a table.",
    (
        Row(
            "action",
            "action",
            choice(*LastResort),
            "What is done: reclaim (memory.reclaim), freeze (cgroup.freeze, for a time), signal, restart (the unit), "
            "kill (cgroup.kill).",
        ),
        Row(
            "hold_off",
            "hold_off_s",
            duration(HOUR_S),
            "How long after the step was done it may be done again.",
        ),
        Row(
            "signal",
            "signal",
            text('a name such as "SIGTERM"', check_signal),
            "What every process of the cgroup is sent: for signal alone.",
        ),
        Row(
            "unit",
            "unit",
            text("a .service", check_service),
            "What is restarted, when it is not the target's own unit: for restart alone.",
        ),
        Row(
            "max_freeze",
            "max_freeze_s",
            duration(HOUR_S, 0.1),
            "After how long the cgroup is thawed whatever happens: for freeze alone.",
        ),
    ),
)

# Keys that belong to one action.
RESORT_KEYS = {"signal": LastResort.SIGNAL, "unit": LastResort.RESTART, "max_freeze": LastResort.FREEZE}


def show_resort(step: LastResortStep) -> str:
    """A step of a last resort as TOML: the bare name where that says it all."""
    plain = LastResortStep(step.action)
    if step == plain:
        return quoted(step.action)
    keys = [
        f"{row.key} = {row.kind.show(value)}"
        for row in RESORT_STEP.rows
        if (value := getattr(step, row.field)) != getattr(plain, row.field) or row.key == "action"
    ]
    return "{" + ", ".join(keys) + "}"


RESORT = steps("reclaim", show_resort)
LAST_RESORT = Section(
    "defaults.last_resort",
    LastResorts,
    "Per level, what the daemon does itself, in this order, when nobody answers or nothing helps; also "
    "[target.last_resort]. Nothing, unless written here.",
    (
        Row("elevated", "elevated", RESORT, "What is done at level elevated."),
        Row("high", "high", RESORT, "What is done at level high."),
        Row(
            "critical",
            "critical",
            RESORT,
            'What is done at level critical, such as ["reclaim", {action = "freeze", max_freeze = "10s"}].',
        ),
        Row("emergency", "emergency", RESORT, "What is done at level emergency."),
    ),
)
