"""GGUF headers for tests: written here, byte by byte, so that no model has to be had.

Must not: use the code under test. Upstream: tests. Downstream: nothing.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
LLAMA: Mapping[str, object] = {
    "general.architecture": "llama",
    "general.name": "Test 7B",
    "llama.block_count": 32,
    "llama.context_length": 32768,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}


def text(word: str) -> bytes:
    """A string of the format."""
    data = word.encode()
    return struct.pack("<Q", len(data)) + data


def tensor(offset: int, dimensions: tuple[int, ...], kind: int) -> bytes:
    """A row of the table of tensors."""
    return text("t") + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def header(
    keys: Mapping[str, object], *tensors: bytes, version: int = 3, count: int | None = None, claimed: int | None = None
) -> bytes:
    """A whole header: numbers as u32, texts, tuples as arrays of u32, lists as arrays of texts, bytes as they are.

    Then the table of tensors. `count`, `claimed`: what it says of keys and tensors, if not what there is.
    """
    tables = len(tensors) if claimed is None else claimed
    parts = [b"GGUF", struct.pack("<IQQ", version, tables, len(keys) if count is None else count)]
    for key, value in keys.items():
        parts.append(text(key))
        match value:
            case str():
                parts.append(struct.pack("<I", 8) + text(value))
            case tuple():
                parts.append(struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value))
            case list():
                parts.append(struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value)))
            case bytes():
                parts.append(value)
            case _:
                parts.append(struct.pack("<II", 4, value))
    return b"".join([*parts, *tensors])


def model(folder: Path, keys: Mapping[str, object] = LLAMA, size: int = 4 * GIB) -> str:
    """A file model.gguf of that header and size (sparse)."""
    path = folder / "model.gguf"
    path.write_bytes(header(keys))
    os.truncate(path, max(size, len(header(keys))))
    return str(path)
