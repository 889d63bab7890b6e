r"""The inputs that are kept: one text file a part in corpus/, one input a line, escaped as Python's bytes are.

    {"type":"ping","id":"p"}\x00\xff

Must not: judge them. Upstream: the files. Downstream: guided, test_fuzz.
"""

import codecs
import os

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
# Longer ones say little more, and make the files large.
MAX_KEPT_BYTES = 8192
MAX_FILE_BYTES = 48 << 10


def load(part: str) -> list[bytes]:
    """The inputs of a part, in the file's order."""
    try:
        with open(_path(part), encoding="ascii") as file:
            return [unescaped(line.rstrip("\n")) for line in file if not line.startswith("#")]
    except FileNotFoundError:
        return []


def save(part: str, inputs: list[bytes]) -> None:
    """Write them, the shortest first, as far as the file's size goes."""
    os.makedirs(CORPUS, exist_ok=True)
    left = MAX_FILE_BYTES
    with open(_path(part), "w", encoding="ascii") as file:
        for data in sorted(set(inputs), key=lambda data: (len(data), data)):
            line = escaped(data)
            if len(data) <= MAX_KEPT_BYTES and left >= len(line):
                left -= len(line)
                file.write(line + "\n")


def escaped(data: bytes) -> str:
    """One line of printable ASCII."""
    text = codecs.escape_encode(data)[0].decode("ascii")
    return "\\x23" + text[1:] if text.startswith("#") else text


def unescaped(line: str) -> bytes:
    """The input of a line."""
    return bytes(codecs.escape_decode(line.encode("ascii"))[0])


def _path(part: str) -> str:
    return os.path.join(CORPUS, f"{part}.txt")
