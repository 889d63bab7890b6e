"""The documents as values: pages, their blocks, and the commands in them with what they show.

The rule that every page keeps: an indented block, ```sh and ```console hold commands, the last with what they print;
everything else is in a fence with its language, ```text for diagrams and output alone.

Must not: run anything. Upstream: markdown-it. Downstream: every test of documents.
"""

import dataclasses
import functools
import itertools
import os
import re
import shlex

from markdown_it import MarkdownIt

from tests.support.running import REPOSITORY

# Where operators and contributors read; tests' own notes are not among it.
ROOTS = ("docs", "packaging", "systemd", ".github")
COMMANDS = frozenset({"", "sh", "console"})
# Others are shown and checked by their own tests, or only shown.
LANGUAGES = COMMANDS | {
    *("text", "python", "toml", "ini", "json", "yaml", "c", "dockerfile", "promql", "mermaid"),
    *("nginx", "haproxy", "caddyfile"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One block of a page: `language` is "" where it is indented, `line` that of its first line in the file."""

    page: str
    line: int
    language: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a reader types, without its comment, on one line where it goes on with a backslash; and what it shows."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()


def where(thing: Block | Command) -> str:
    """As an editor jumps to it."""
    return f"{thing.page}:{thing.line}"


def pages() -> list[str]:
    """Every document, from the repository's top."""
    found = [name for name in os.listdir(REPOSITORY) if name.endswith(".md")]
    for root in ROOTS:
        for directory, _, names in os.walk(os.path.join(REPOSITORY, root)):
            found += [os.path.relpath(os.path.join(directory, n), REPOSITORY) for n in names if n.endswith(".md")]
    return sorted(found)


@functools.cache
def text_of(page: str) -> str:
    """The whole page."""
    with open(os.path.join(REPOSITORY, page), encoding="utf-8") as file:
        return file.read()


@functools.cache
def blocks(page: str, *languages: str) -> list[Block]:
    """The page's blocks, in order; only those of the languages, where any are named."""
    return blocks_in(text_of(page), page, *languages)


def blocks_in(text: str, page: str, *languages: str) -> list[Block]:
    """As blocks(), of a text."""
    found = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in {"fence", "code_block"} and token.map is not None:
            language = token.info.split()[0] if token.info.split() else ("text" if token.type == "fence" else "")
            first = token.map[0] + (2 if token.type == "fence" else 1)
            found.append(Block(page, first, language, token.content))
    return [block for block in found if not languages or block.language in languages]


def headings(text: str) -> list[tuple[int, str]]:
    """Level and text of each heading, in order."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (int(token.tag[1]), inline.content)
        for token, inline in itertools.pairwise(tokens)
        if token.type == "heading_open"
    ]


@functools.cache
def anchors(text: str) -> list[str]:
    """The anchors that GitHub makes of the headings, in order; the second of a name gets -1."""
    made: list[str] = []
    seen: dict[str, int] = {}
    for _, heading in headings(text):
        # Of a link only its text counts; letters of any script, digits, _ and - stay.
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        made.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
    return made


def links(text: str) -> list[str]:
    """Where the links and images of a page lead, in order, as written."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                found.append(str(target))
    return found


@functools.cache
def commands(page: str) -> list[Command]:
    """All commands of the page, in order."""
    return [command for block in blocks(page) for command in commands_of(block)]


def commands_of(block: Block) -> list[Command]:
    """The commands of one block; none of a block that holds something else."""
    if block.language not in COMMANDS:
        return []
    typed: list[tuple[int, str, list[str]]] = []
    lines = iter(enumerate(block.text.splitlines(), block.line))
    for number, line in lines:
        if block.language == "console" and not line.startswith("$ "):
            if typed:
                typed[-1][2].append(line)
            continue
        entered = line.removeprefix("$ ") if block.language == "console" else line
        while not _ends(entered) and (follows := next(lines, None)) is not None:
            entered += f"\n{follows[1]}"
        if text := _plain(entered):
            typed.append((number, text, []))
    return [Command(block.page, number, text, tuple(shown)) for number, text, shown in typed]


def _ends(line: str) -> bool:
    """Whether the shell would begin here, and not wait for more."""
    if line.endswith("\\"):
        return False
    if heredoc := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", line):
        return bool(re.search(rf"^{heredoc[1]}$", line, re.MULTILINE))
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation that is still open
        return False
    last = {"for": "done", "while": "done", "until": "done", "if": "fi", "case": "esac"}.get(words[0] if words else "")
    return last is None or last in words


def _plain(text: str) -> str:
    """Without the comment at its end, and without the breaks that a backslash makes."""
    if "<<" not in text:
        text = re.sub(r"\s*\\\n\s*", " ", text)
    inside = ""
    for place, sign in enumerate(text):
        if sign == inside:
            inside = ""
        elif not inside and sign in "'\"":
            inside = sign
        elif (
            not inside
            and sign == "#"
            and text[max(0, place - 1) : place] in {"", " ", "\t"}
            and "\n" not in text[place:]
        ):
            return text[:place].strip()
    return text.strip()
