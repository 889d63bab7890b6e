"""A broad except hides defects; where one is right, its line says why."""

import glob
import re

from tests.support.running import REPOSITORY

BROAD = re.compile(r"^\s*except (BaseException|Exception)\b[^#]*$|^\s*except:")


def test_every_broad_except_has_its_reason() -> None:
    """Beside it, in all of the package."""
    found = []
    for path in glob.glob(f"{REPOSITORY}/edgeguardd/**/*.py", recursive=True):
        with open(path) as file:
            found += [f"{path}:{number}" for number, line in enumerate(file, 1) if BROAD.match(line.rstrip("\n"))]
    assert found == []
