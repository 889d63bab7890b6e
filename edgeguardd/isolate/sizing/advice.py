"""RAM, model, other services -> limits and llama-server's flags, each with the line that it comes from.

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
    """What is asked for. tokens None: as many as fit. measured_bytes: what a run really needed at most."""

    ram_bytes: int
    others_bytes: int
    model: Model
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
    """What is proposed. `tokens`: of one slot; --ctx-size is that times `parallel`."""

    lines: tuple[Line, ...]
    tokens: int
    parallel: int
    cache_ram_bytes: int
    high_bytes: int
    max_bytes: int
    low_bytes: int
    others_bytes: int
    key_type: str
    value_type: str


def advise(wish: Wish) -> Advice:
    """Raises SizingError."""
    free = max(int(wish.ram_bytes * FREE_SHARE), LEAST_FREE_BYTES)
    left = wish.ram_bytes - wish.others_bytes - free
    lines = [
        Line("RAM", wish.ram_bytes, "all there is"),
        Line("- other services", -wish.others_bytes, "what must live beside the server"),
        Line("- kept free", -free, f"{FREE_SHARE:.0%} of the RAM, at least {LEAST_FREE_BYTES // MIB}M: kernel, logins"),
        Line("= left to the server", left, "memory_max is at most this"),
    ]
    buffers = _buffers(wish.model)
    fixed = wish.model.file_bytes + buffers
    tokens = wish.tokens or _fitting(wish, int(left * REST_SHARE) - fixed)
    kv = wish.model.kv_bytes(tokens * wish.parallel, wish.key_type, wish.value_type)
    lines += _need_lines(wish, tokens, kv, buffers)
    rest = fixed + kv
    if wish.measured_bytes is not None:
        rest = max(wish.measured_bytes, wish.model.file_bytes)
        lines.append(Line("= measured instead", rest, "the peak of a real run, which counts in place of the estimate"))
    if rest > left * HIGH_SHARE:
        raise SizingError(_does_not_fit(wish, rest, left, tokens))
    spare = left * HIGH_SHARE - rest
    cache = min(MAX_CACHE_RAM_BYTES, int(spare / 2)) // (64 * MIB) * 64 * MIB
    high = min(_rounded(rest * 1.1 + 2 * cache), int(left * HIGH_SHARE) // MIB * MIB)
    limit = min(_rounded(high / HIGH_SHARE), left // MIB * MIB)
    lines += [
        Line(
            "host prompt cache",
            cache,
            "--cache-ram: half of what is spare, at most 512M; can be given back",
        ),
        Line("memory_high", high, "at rest + 10 % + twice the prompt cache (checkpoints come on top of it)"),
        Line("memory_max", limit, f"memory_high / {HIGH_SHARE}"),
    ]
    low = min(wish.model.file_bytes, high) // MIB * MIB
    lines.append(Line("memory_low", low, "the model file: weights are evicted only when nothing else is left"))
    return Advice(
        *(tuple(lines), tokens, wish.parallel, cache, high, limit, low, wish.others_bytes),
        *(wish.key_type, wish.value_type),
    )


def _need_lines(wish: Wish, tokens: int, kv: int, buffers: int) -> list[Line]:
    model = wish.model
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


def _fitting(wish: Wish, for_kv: int) -> int:
    """The longest context whose KV cache fits, of what the model was made for. Raises SizingError."""
    model = wish.model
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


def _does_not_fit(wish: Wish, rest: int, left: int, tokens: int) -> str:
    room = int(left * HIGH_SHARE)
    return (
        f"cannot fit {wish.model.name} with {tokens} tokens x {wish.parallel}: it holds {math.ceil(rest / MIB)}M at "
        f"rest, {math.ceil((rest - room) / MIB)}M more than the {max(room, 0) // MIB}M below memory_high; write a "
        "smaller --ctx-size, fewer slots, --cache-type-k q8_0 --cache-type-v q8_0, or take a smaller model"
    )


def _rounded(size: float) -> int:
    return math.ceil(size / MIB) * MIB
