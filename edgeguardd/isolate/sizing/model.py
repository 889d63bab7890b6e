"""What a model needs: its file, its layers, the bytes of KV cache a token takes.

Must not: decide on limits (advice does). Upstream: gguf. Downstream: advice, cli.size.
"""

import os
import re
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from edgeguardd.isolate.sizing.gguf import GgufError, Value, read

# Bytes a number: block formats of ggml store 32 numbers and a scale (ggml-common.h).
CACHE_TYPES = {
    "f32": Fraction(4),
    "f16": Fraction(2),
    "bf16": Fraction(2),
    "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32),
    "q4_1": Fraction(20, 32),
    "q4_0": Fraction(18, 32),
    "iq4_nl": Fraction(18, 32),
}
_MAX_LAYERS = 4096
_MAX_FIGURE = 1 << 24
_MAX_FILES = 1000
# Keys of what models without attention have instead (Mamba, RWKV); gguf/constants.py of gguf-py.
_RECURRENT = ("ssm.", "wkv.")
_ARCHITECTURE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class Model(Struct, frozen=True):
    """What a header and its file say. `kv_heads`: of each layer. sliding_window None: each layer sees all tokens."""

    name: str
    architecture: str
    file_bytes: int
    context_length: int
    embedding_length: int
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    vocabulary: int
    sliding_window: int | None = None

    def kv_bytes(self, tokens: int, key_type: str, value_type: str) -> int:
        """The KV cache of so many tokens."""
        each = self.key_length * CACHE_TYPES[key_type] + self.value_length * CACHE_TYPES[value_type]
        return int(sum(self.kv_heads) * each * tokens)


def load(path: str) -> Model:
    """Raises GgufError."""
    found = read(path)
    architecture = found.get("general.architecture")
    if not isinstance(architecture, str) or not _ARCHITECTURE.fullmatch(architecture):
        raise GgufError(f"cannot size {path}: its header names no architecture; is it a model?")
    own = _Keys(path, found, architecture)
    layers = own.number("block_count", _MAX_LAYERS, least=1)
    heads, kv_heads = own.heads(layers)
    embedding = own.number("embedding_length", _MAX_FIGURE, least=1)
    usual = embedding // max(*heads, 1)
    name = found.get("general.name")
    window = own.number("attention.sliding_window", _MAX_FIGURE, 0)
    return Model(
        name=name if isinstance(name, str) and name else os.path.basename(path),
        architecture=architecture,
        file_bytes=_file_bytes(path, found),
        context_length=own.number("context_length", 1 << 40, least=1),
        embedding_length=embedding,
        kv_heads=kv_heads,
        key_length=own.number("attention.key_length", _MAX_FIGURE, usual),
        value_length=own.number("attention.value_length", _MAX_FIGURE, usual),
        vocabulary=_count(found.get("tokenizer.ggml.tokens.count")),
        sliding_window=window or None,
    )


class _Keys:
    """The keys of one architecture, each within bounds."""

    def __init__(self, path: str, found: Mapping[str, Value], architecture: str) -> None:
        self._path = path
        self._found = found
        self._architecture = architecture

    def number(self, key: str, limit: int, default: int | None = None, least: int = 0) -> int:
        """One number from least to limit."""
        value = self._found.get(f"{self._architecture}.{key}", default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= limit:
            raise self._fault(key, "missing" if value is None else "no plain number, or out of bounds")
        return value

    def heads(self, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Heads and KV heads of each layer. Only recurrent models have layers without attention, and say 0."""
        heads = self._each("attention.head_count", layers)
        kv_heads = self._each("attention.head_count_kv", layers, heads)
        recurrent = any(
            key.startswith(tuple(f"{self._architecture}.{one}" for one in _RECURRENT)) for key in self._found
        )
        if any(own < kv for own, kv in zip(heads, kv_heads, strict=True)) or (not any(heads) and not recurrent):
            raise self._fault("attention.head_count", "less than its KV heads" if any(kv_heads) else "0")
        return heads, kv_heads

    def _each(self, key: str, layers: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One number a layer: written once for all, or as an array."""
        value = self._found.get(f"{self._architecture}.{key}")
        if value is None and default is not None:
            return default
        values = value if isinstance(value, tuple) else (value,) * layers
        if len(values) < layers or not all(
            isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _MAX_FIGURE for one in values
        ):
            raise self._fault(key, "missing" if value is None else "not one plain number a layer")
        return tuple(int(one) for one in values if isinstance(one, int))[:layers]

    def _fault(self, key: str, what: str) -> GgufError:
        return GgufError(
            f"cannot size {self._path}: {self._architecture}.{key} of its header is {what}; get the file anew"
        )


def _file_bytes(path: str, found: Mapping[str, Value]) -> int:
    """The file, and its other parts if it is split (NAME-00001-of-00003.gguf)."""
    parts = _count(found.get("split.count"))
    name = _PART.fullmatch(os.path.basename(path))
    if parts <= 1:
        return os.stat(path).st_size
    if name is None or parts > _MAX_FILES or int(name[3]) != parts:
        raise GgufError(f"cannot size {path}: it is one of {parts} parts; name one, as NAME-00001-of-{parts:05d}.gguf")
    total = 0
    for number in range(1, parts + 1):
        part = os.path.join(os.path.dirname(path), f"{name[1]}-{number:05d}-of-{parts:05d}.gguf")
        try:
            total += os.stat(part).st_size
        except OSError as error:
            raise GgufError(f"cannot size {path}: part {part}: {error.strerror}; get all {parts} parts") from None
        if number != int(name[2]):
            # Each has a table of its own tensors.
            read(part)
    return total


def _count(value: Value | None) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
