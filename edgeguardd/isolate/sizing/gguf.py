"""The header of a GGUF file: its metadata, as far as a KV cache's size stands on it, and whether its tensors are there.

Must not: read tensors' data, or trust a length. Upstream: nothing. Downstream: sizing.model.
Format: ggml/docs/gguf.md of the ggml project. Version 1 (32-bit lengths, 2023) is refused, big-endian files too.
"""

import io
import math
import os
import stat
import struct
from collections.abc import Mapping
from typing import BinaryIO, Final

from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError

Value = int | float | bool | str | tuple["int | float | bool", ...]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_KEYS: Final = 65536
MAX_KEY_BYTES: Final = 65535
# The longest seen are chat templates of some 30 KB; a vocabulary has 262,144 words and as many merges.
MAX_TEXT_BYTES: Final = 1 << 24
MAX_ITEMS: Final = 1 << 24
MAX_TENSORS: Final = 65536
MAX_HEADER_BYTES: Final = 1 << 28
# An array that is one number a layer is kept; longer ones are counted.
MAX_KEPT_ITEMS: Final = 4096
_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<?", 10: "<Q", 11: "<q", 12: "<d"}

ALIGNMENT_KEY: Final = "general.alignment"
DEFAULT_ALIGNMENT_BYTES: Final = 32
# ggml has 4 (GGML_MAX_DIMS).
_MAX_DIMENSIONS = 8
# enum ggml_type -> numbers a block, bytes a block (ggml.h, ggml-common.h; GGML_QUANT_SIZES of gguf-py).
_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}


class GgufError(EdgeguardError):
    """No GGUF file, a cut one, or one that says impossible things."""


def read(path: str) -> Mapping[str, Value]:
    """The metadata: key -> value; of an array that is long or of texts, "KEY.count" -> its length.

    Raises GgufError, also when the file ends before the tensors do that its table names.
    """
    shown = printable(path, 4096)
    try:
        # O_NONBLOCK: a FIFO of that name must not hang the command.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise GgufError(f"cannot read {shown}: it is not a regular file; name a .gguf file")
            return _Reader(file, shown, os.fstat(file.fileno()).st_size).whole()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise GgufError(f"cannot read {shown}: {why}; name a .gguf file that can be read") from None


class _Reader:
    """One reading, from the start of the file on."""

    def __init__(self, file: BinaryIO, shown: str, size_bytes: int) -> None:
        self._file = file
        self._shown = shown
        self._size_bytes = size_bytes
        self._left = min(size_bytes, MAX_HEADER_BYTES)

    def whole(self) -> dict[str, Value]:
        """The metadata of a file that has all its tensors."""
        tensors, found = self._metadata()
        end = self._tensors_end(tensors, found)
        if end > self._size_bytes:
            raise GgufError(
                f"cannot use {self._shown}: it is cut: its tensors end at {end} bytes, it has {self._size_bytes}; "
                "get it anew"
            )
        return found

    def _metadata(self) -> tuple[int, dict[str, Value]]:
        """The number of tensors, and the keys."""
        if self._take(4) != MAGIC:
            raise GgufError(f"cannot read {self._shown} as GGUF: it does not begin with GGUF; name a .gguf file")
        version = self._number(4)
        if version not in VERSIONS:
            raise self._fault(f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are known")
        tensors, count = self._number(8), self._number(8)
        if count > MAX_KEYS:
            raise self._fault(f"it claims {count} keys")
        found: dict[str, Value] = {}
        for _ in range(count):
            key = self._text(MAX_KEY_BYTES)
            self._value(key, self._number(4), found)
        return tensors, found

    def _tensors_end(self, count: int, found: Mapping[str, Value]) -> int:
        """Where the data of the last tensor ends; 0 without any, as in the first part of some split models."""
        if count > MAX_TENSORS:
            raise self._fault(f"it claims {count} tensors")
        alignment = found.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT_BYTES)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._fault(f"{ALIGNMENT_KEY} is no number above 0")
        last = total = 0
        for _ in range(count):
            offset, size = self._tensor()
            total += size
            last = max(last, offset + size)
        data_at = -(-self._file.tell() // alignment) * alignment
        # No two of them share bytes, whatever their offsets say.
        return data_at + max(last, total) if count else 0

    def _tensor(self) -> tuple[int, int]:
        """One row of the table: offset in the data, and bytes; 0 of a type that is not known."""
        self._text(MAX_KEY_BYTES)
        dimensions = self._number(4)
        if dimensions > _MAX_DIMENSIONS:
            raise self._fault(f"a tensor claims {dimensions} dimensions")
        numbers = math.prod(self._number(8) for _ in range(dimensions))
        a_block, block_bytes = _BLOCKS.get(self._number(4), (1, 0))
        return self._number(8), numbers // a_block * block_bytes

    def _value(self, key: str, kind: int, found: dict[str, Value]) -> None:
        if kind == _STRING:
            found[key] = self._text(MAX_TEXT_BYTES)
        elif kind == _ARRAY:
            self._array(key, found)
        else:
            found[key] = self._scalar(kind)

    def _array(self, key: str, found: dict[str, Value]) -> None:
        kind, count = self._number(4), self._number(8)
        if count > MAX_ITEMS:
            raise self._fault(f"{printable(key, 60)} claims {count} items")
        found[f"{key}.count"] = count
        if kind == _STRING:
            for _ in range(count):
                self._skip(self._length(MAX_TEXT_BYTES))
        elif kind in _FORMATS and count <= MAX_KEPT_ITEMS:
            found[key] = tuple(self._scalar(kind) for _ in range(count))
        elif kind in _FORMATS:
            self._skip(struct.calcsize(_FORMATS[kind]) * count)
        else:
            raise self._fault(f"{printable(key, 60)} is an array of type {kind}, which is not known")

    def _scalar(self, kind: int) -> "int | float | bool":
        form = _FORMATS.get(kind)
        if form is None:
            raise self._fault(f"it has a value of type {kind}, which is not known")
        number: int | float | bool = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _text(self, limit: int) -> str:
        return self._take(self._length(limit)).decode("utf-8", "replace")

    def _length(self, limit: int) -> int:
        length = self._number(8)
        if length > limit:
            raise self._fault(f"it claims a text of {length} bytes")
        return length

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, size: int) -> bytes:
        self._spend(size)
        data = self._file.read(size)
        if len(data) < size:
            raise self._fault("it is cut")
        return data

    def _skip(self, size: int) -> None:
        self._spend(size)
        self._file.seek(size, io.SEEK_CUR)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._fault("it is cut, or its header never ends")

    def _fault(self, what: str) -> GgufError:
        return GgufError(f"cannot use the header of {self._shown}: {what}; get the file anew")
