"""A reader who types what a page says, command by command, and compares what comes with what the page shows.

Must not: know a page. Upstream: pages, table, place. Downstream: component and kernel tests.
"""

import re
from collections.abc import Iterator

from tests.support.documents.pages import Block, Command, blocks, commands, where
from tests.support.documents.place import CONFIG, Place, Staying, has_the_shape
from tests.support.documents.table import FILES, OWN_DAEMON, Here, row_of
from tests.support.wait import eventually

# What stays shows the last of its lines when memory has been pressed for a while.
SHOWN_WITHIN_S = 60


def runs_here(page: str) -> bool:
    """Whether any of its commands is run by follow()."""
    return any(isinstance(row_of(page, command.text), Here) for command in commands(page))


def follow(page: str, directory: str, leave_out: tuple[str, ...] = ()) -> None:
    """Type the page in a place below this directory. Raises AssertionError with the line that is not as it says.

    `leave_out`: words of commands that another run of the page has seen to.
    """
    with Place(directory, None if page in OWN_DAEMON else CONFIG) as place:
        for name, text in {**FILES.get(page, {}), **dict(files(page))}.items():
            place.write(name, text)
        staying: list[tuple[Command, Staying]] = []
        for command in commands(page):
            row = row_of(page, command.text)
            if not set(leave_out).isdisjoint(command.text.split()):
                continue
            if isinstance(row, Here) and row.stays:
                staying.append((command, place.stay(command.text)))
            elif isinstance(row, Here):
                # What the page shows of the next one takes that those before have come so far.
                wait_for(staying)
                run(place, command, row)
        wait_for(staying)


def run(place: Place, command: Command, row: Here) -> None:
    """One that ends, or is ended."""
    done = place.run(command.text, forever=row.forever)
    assert done.returncode in row.statuses, f"{where(command)}: {command.text}\n{done.stdout}"
    assert done.stdout, f"{where(command)}: {command.text} says nothing"
    assert "Traceback" not in done.stdout, f"{where(command)}: {command.text}\n{done.stdout}"
    missing = has_the_shape(done.stdout, command.shown)
    assert missing is None, f"{where(command)}: shows {missing!r}, but prints\n{done.stdout}"


def wait_for(staying: list[tuple[Command, Staying]]) -> None:
    """Until each command that stays has printed what the page shows."""

    def lacking() -> list[str]:
        found = []
        for command, terminal in staying:
            assert not terminal.has_ended(), f"{where(command)}: {command.text} has ended\n{terminal.printed()}"
            if (missing := has_the_shape(terminal.printed(), command.shown)) is not None:
                found.append(f"{where(command)}: shows {missing!r}")
        return found

    try:
        eventually(lambda: not lacking(), SHOWN_WITHIN_S)
    except AssertionError as error:
        printed = [f"$ {command.text}\n{terminal.printed()}" for command, terminal in staying]
        raise AssertionError("\n".join([str(error), *lacking(), "what was printed:", *printed])) from None


def files(page: str) -> Iterator[tuple[str, str]]:
    """The files that a page prints: their first line is a comment that begins with their name."""
    for block in blocks(page, "toml", "ini", "yaml", "python"):
        if name := file_name(block):
            yield name, block.text


def file_name(block: Block) -> str | None:
    """What the block's first line calls it."""
    named = re.match(r"# ([\w./@-]+\.(?:toml|service|socket|slice|conf|ya?ml|py))\b", block.text)
    return named[1] if named else None
