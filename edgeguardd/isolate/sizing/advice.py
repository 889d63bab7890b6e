"""RAM, model or measured peak, other services -> limits and llama-server's flags, each with where it comes from.

Must not: read files. Upstream: model. Downstream: cli.size.
Factors without a source are judgements and say so in their line; a measured run replaces them.
"""

import math

from msgspec import Struct

from edgeguardd.errors import EdgeguardError
from edgeguardd.isolate.sizing.model import Model

MIB = 1 << 20
# memory.high acts this far below memory.max (docs/adr/0013): room for relief, and for one request's buffers.
HIGH_SHARE = 0.85
# Of what is left to the server, so much may be taken at rest: the rest is what can be given back.
REST_SHARE = 0.75
# Rows of a batch that are computed at once (llama-server's --ubatch-size), and how many intermediate values of
# embedding length a row has at a time: a judgement.
BATCH_ROWS = 512
VALUES_A_ROW = 24
PROGRAM_BYTES = 64 * MIB
MAX_CACHE_RAM_BYTES = 512 * MIB
CONTEXT_STEP = 256
LEAST_CONTEXT = 512
# The kernel and what is not named: 5 % of the RAM, but not less than a small Debian takes.
FREE_SHARE = 0.05
LEAST_FREE_BYTES = 256 * MIB


class SizingError(EdgeguardError):
    """It does not fit; the message says by how much, and what would."""


class Wish(Struct, frozen=True):
    """What is asked for. tokens None: as many as fit. measured_bytes: what a run really needed at most.

    model None: of whatever is served, only the measured run is known.
    """

    ram_bytes: int
    others_bytes: int
    model: Model | None
    parallel: int = 1
    tokens: int | None = None
    key_type: str = "f16"
    value_type: str = "f16"
    measured_bytes: int | None = None


class Line(Struct, frozen=True):
    """One line of the arithmetic."""

    what: str
    size_bytes: int
    how: str


class Advice(Struct, frozen=True):
    """What is proposed. flags: llama-server's, with the model; None without one."""

    lines: tuple[Line, ...]
    high_bytes: int
    max_bytes: int
    low_bytes: int
    others_bytes: int
    flags: "Flags | None"


class Flags(Struct, frozen=True):
    """How llama-server is to be started. `tokens`: of one slot; --ctx-size is that times `parallel`."""

    tokens: int
    parallel: int
    cache_ram_bytes: int
    key_type: str
    value_type: str


def advise(wish: Wish) -> Advice:
    """Raises SizingError."""
    lines, left = _left(wish)
    if wish.model is None:
        return _of_measured(wish, lines, left)
    return _of_model(wish, wish.model, lines, left)


def _left(wish: Wish) -> tuple[list[Line], int]:
    """What the server may have, and how it comes about."""
    free = max(int(wish.ram_bytes * FREE_SHARE), LEAST_FREE_BYTES)
    left = wish.ram_bytes - wish.others_bytes - free
    if left <= 0:
        raise SizingError(
            f"cannot fit a server: what else runs ({math.ceil(wish.others_bytes / MIB)}M) and what stays free "
            f"({math.ceil(free / MIB)}M) need {math.ceil(-left / MIB)}M more than the {wish.ram_bytes // MIB}M there "
            "are; run less beside it, or correct --others and --ram"
        )
    lines = [
        Line("RAM", wish.ram_bytes, "all there is"),
        Line("- other services", -wish.others_bytes, "what must live beside the server"),
        Line("- kept free", -free, f"{FREE_SHARE:.0%} of the RAM, at least {LEAST_FREE_BYTES // MIB}M: kernel, logins"),
        Line("= left to the server", left, "memory_max is at most this"),
    ]
    return lines, left


def _of_measured(wish: Wish, lines: list[Line], left: int) -> Advice:
    """Limits for a server of which a run has been measured; what it held at rest is not known apart."""
    peak = wish.measured_bytes or 0
    lines.append(Line("measured", peak, "the peak of a real run"))
    room = int(left * HIGH_SHARE)
    if peak > room:
        raise SizingError(
            f"cannot fit a server that took {math.ceil(peak / MIB)}M: that is {math.ceil((peak - room) / MIB)}M more "
            f"than the {room // MIB}M below memory_high; run less beside it, or serve something smaller"
        )
    high, limit = _limits(peak * 1.1, left)
    low = min(peak, high) // MIB * MIB
    lines += [
        Line("memory_high", high, "measured + 10 %"),
        Line("memory_max", limit, f"memory_high / {HIGH_SHARE}"),
        Line("memory_low", low, "what was measured: it is reclaimed only when nothing else is left"),
    ]
    return Advice(tuple(lines), high, limit, low, wish.others_bytes, None)


def _of_model(wish: Wish, model: Model, lines: list[Line], left: int) -> Advice:
    """Limits and flags for llama-server with this model."""
    buffers = _buffers(model)
    fixed = model.file_bytes + buffers
    tokens = wish.tokens or _fitting(wish, model, int(left * REST_SHARE) - fixed)
    kv = model.kv_bytes(tokens * wish.parallel, wish.key_type, wish.value_type)
    lines += _need_lines(wish, model, tokens, kv, buffers)
    rest = fixed + kv
    if wish.measured_bytes is not None:
        rest = max(wish.measured_bytes, model.file_bytes)
        lines.append(Line("= measured instead", rest, "the peak of a real run, which counts in place of the estimate"))
    if rest > left * HIGH_SHARE:
        raise SizingError(_does_not_fit(wish, model, rest, left, tokens))
    spare = left * HIGH_SHARE - rest
    cache = min(MAX_CACHE_RAM_BYTES, int(spare / 2)) // (64 * MIB) * 64 * MIB
    high, limit = _limits(rest * 1.1 + 2 * cache, left)
    lines += [
        Line(
            "host prompt cache",
            cache,
            "--cache-ram: half of what is spare, at most 512M; can be given back",
        ),
        Line("memory_high", high, "at rest + 10 % + twice the prompt cache (checkpoints come on top of it)"),
        Line("memory_max", limit, f"memory_high / {HIGH_SHARE}"),
    ]
    low = min(model.file_bytes, high) // MIB * MIB
    lines.append(Line("memory_low", low, "the model file: weights are evicted only when nothing else is left"))
    flags = Flags(tokens, wish.parallel, cache, wish.key_type, wish.value_type)
    return Advice(tuple(lines), high, limit, low, wish.others_bytes, flags)


def _limits(high_bytes: float, left: int) -> tuple[int, int]:
    """memory_high, as far as there is room, and memory_max above it."""
    high = min(_rounded(high_bytes), int(left * HIGH_SHARE) // MIB * MIB)
    return high, min(_rounded(high / HIGH_SHARE), left // MIB * MIB)


def _need_lines(wish: Wish, model: Model, tokens: int, kv: int, buffers: int) -> list[Line]:
    heads = sum(model.kv_heads)
    if len(set(model.kv_heads)) == 1:
        shape = f"{len(model.kv_heads)} layers x {model.kv_heads[0]} KV heads"
    else:
        shape = f"{heads} KV heads in {len(model.kv_heads)} layers"
    a_token = model.kv_bytes(1, wish.key_type, wish.value_type)
    slots = f" x {wish.parallel} slots" if wish.parallel > 1 else ""
    how = (
        f"{shape} x ({model.key_length} {wish.key_type} + {model.value_length} {wish.value_type}) = {a_token} bytes a "
        f"token; x {tokens} tokens{slots}"
    )
    if model.sliding_window:
        how += f"; at most: some layers see {model.sliding_window} tokens only"
    return [
        Line("model file", model.file_bytes, "mapped, and read for every token"),
        Line("+ KV cache", kv, how),
        Line(
            "+ buffers",
            buffers,
            f"{PROGRAM_BYTES // MIB}M + {BATCH_ROWS} rows x {VALUES_A_ROW} x {model.embedding_length} x 4 + vocabulary "
            f"{model.vocabulary} x 16: a judgement, --measured replaces it",
        ),
        Line("= at rest", model.file_bytes + kv + buffers, "what the server holds when it has loaded"),
    ]


def _buffers(model: Model) -> int:
    return PROGRAM_BYTES + BATCH_ROWS * VALUES_A_ROW * model.embedding_length * 4 + model.vocabulary * 16


def _fitting(wish: Wish, model: Model, for_kv: int) -> int:
    """The longest context whose KV cache fits, of what the model was made for. Raises SizingError."""
    a_token = model.kv_bytes(1024, wish.key_type, wish.value_type) * wish.parallel / 1024
    trained = model.context_length or LEAST_CONTEXT
    fits = trained if a_token == 0 else int(max(for_kv, 0) / a_token)
    tokens = min(trained, fits)
    tokens = tokens if tokens == trained else tokens // CONTEXT_STEP * CONTEXT_STEP
    if tokens < min(LEAST_CONTEXT, trained):
        raise SizingError(
            f"cannot fit {model.name}: {model.file_bytes // MIB}M of weights leave {max(for_kv, 0) // MIB}M for the "
            f"KV cache, not even {LEAST_CONTEXT} tokens; take a smaller or more quantised model, or less beside it"
        )
    return tokens


def _does_not_fit(wish: Wish, model: Model, rest: int, left: int, tokens: int) -> str:
    room = int(left * HIGH_SHARE)
    return (
        f"cannot fit {model.name} with {tokens} tokens x {wish.parallel}: it holds {math.ceil(rest / MIB)}M at "
        f"rest, {math.ceil((rest - room) / MIB)}M more than the {room // MIB}M below memory_high; write a "
        "smaller --ctx-size, fewer slots, --cache-type-k q8_0 --cache-type-v q8_0, or take a smaller model"
    )


def _rounded(size: float) -> int:
    return math.ceil(size / MIB) * MIB
