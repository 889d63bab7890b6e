"""The process that fuzzes one part: under atheris where it is, else with seeded damage.

    python -m tests.fuzz.child PART -OPTION …               libFuzzer's own options and directories
    python -m tests.fuzz.child PART SECONDS SEED DIRECTORY  without atheris

Must not: import anything of edgeguardd before the instruments are there. Upstream: atheris, targets.
Downstream: guided.
"""

import glob
import os
import sys
import time


def _guided(part: str, arguments: list[str]) -> None:
    import atheris  # noqa: PLC0415  is not there for every machine

    with atheris.instrument_imports(include=["edgeguardd"]):
        from tests.fuzz import targets  # noqa: PLC0415  has to be imported under the instruments
    itself = os.environ.get("EDGEGUARDD_FUZZ_AGAIN", sys.argv[0])
    atheris.Setup([itself, *arguments], targets.PARTS[part])
    atheris.Fuzz()


def _unguided(part: str, seconds: float, seed: int, directory: str) -> None:
    from tests.fuzz.mutate import Mutator  # noqa: PLC0415  imports edgeguardd
    from tests.fuzz.targets import PARTS  # noqa: PLC0415

    corpus = []
    for path in sorted(glob.glob(f"{directory}/begin/*")):
        with open(path, "rb") as file:
            corpus.append(file.read())
    mutator, until, number = Mutator(corpus, seed), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        number += 1
        data = mutator.damaged()
        with open(f"{directory}/crash-input", "wb") as file:
            file.write(data)
        PARTS[part](data)
    os.unlink(f"{directory}/crash-input")
    print(f"#{number}")


def main() -> None:
    """See above."""
    part, *arguments = sys.argv[1:]
    if arguments[0].startswith("-"):
        _guided(part, arguments)
    else:
        seconds, seed, directory = arguments
        _unguided(part, float(seconds), int(seed), directory)


if __name__ == "__main__":
    main()
