"""Text from strangers, made safe to print: no terminal escapes, no forged lines, bounded length.

Must not: know who wrote it or where it is printed. Upstream: nothing. Downstream: logs, cli, configkinds.
"""


def printable(text: str, max_chars: int) -> str:
    """The text with everything a terminal could act on escaped, cut to at most max_chars characters.

    Escaped are control characters (C0, DEL, C1), line and paragraph separators, bidirectional overrides and lone
    surrogates: all that str.isprintable() refuses. A cut text ends in "…".
    """
    cut = text[: max_chars + 1]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else _escape(char) for char in cut)
    return cut if len(cut) <= max_chars else cut[: max_chars - 1] + "…"


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
