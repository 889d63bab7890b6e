"""The own merge against systemd itself: the same files, loaded by both, have the same values in force.

The number of random units is EDGEGUARDD_FUZZ_UNITS (default 150); 5000 take two minutes.
"""

import json
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.isolate import livecgroup
from edgeguardd.isolate.effective import effective
from edgeguardd.isolate.unit import Loader, Machine
from edgeguardd.isolate.unitfiles import SearchPath
from tests.support import systemdload, unitmaker

CASES = Path(__file__).parents[1] / "cases/units"
COUNT = int(os.environ.get("EDGEGUARDD_FUZZ_UNITS", "150"))
# A link that is a copy in the collection, as an archive leaves it: systemd would take it for a unit of its own.
LINKS = {"44-alias-dropins": ("etc/llm.service", "../lib/ollama.service")}


def machine() -> Machine:
    """This one."""
    memory = livecgroup.memory_bytes()
    assert memory is not None
    return Machine(memory, os.sysconf("SC_PAGESIZE"), systemdload.version())


def ours(loader: Loader, name: str) -> dict[str, Any]:
    """The own merge in the keys of systemdload."""
    unit = loader.load(name)
    shown = effective(unit)
    if shown["load_state"] != "loaded":
        return {"name": unit.name, "load_state": shown["load_state"]}
    return {
        "name": unit.name,
        "fragment": unit.found.fragment,
        "drop_ins": list(unit.found.drop_ins),
        "aliases": list(unit.found.aliases),
        **shown,
    }


def differences(loader: Loader, name: str, theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> systemd's and our value, where they differ."""
    own = ours(loader, name)
    return {key: (there, own.get(key)) for key, there in theirs.items() if own.get(key) != there}


@pytest.mark.parametrize("sidecar", sorted(CASES.glob("[0-9]*.json")), ids=lambda path: path.stem)
def test_a_collected_unit_is_merged_as_by_systemd(sidecar: Path) -> None:
    """All that both know of it."""
    case = json.loads(sidecar.read_text())
    with systemdload.folder() as place:
        shutil.copytree(sidecar.with_suffix(""), f"{place}/case")
        if sidecar.stem in LINKS:
            link, target = LINKS[sidecar.stem]
            os.unlink(f"{place}/case/{link}")
            os.symlink(target, f"{place}/case/{link}")
        folders = tuple(os.path.normpath(f"{place}/case/{one}") for one in case["search_path_order"])
        theirs = systemdload.loaded([case["unit"]], folders)[case["unit"]]
        assert differences(Loader(SearchPath(folders), machine()), case["unit"], theirs) == {}


def test_random_values_are_taken_and_ignored_as_by_systemd() -> None:
    """Each setting with spellings that are right, wrong, and nearly right."""
    chance = random.Random(20261130)  # noqa: S311
    with systemdload.folder() as place:
        sources = {name: unitmaker.service(chance) for name in unitmaker.names(chance, COUNT)}
        for name, text in sources.items():
            Path(place, unitmaker.file_of(name)).write_text(text)
        compare(sources, (place,))


def test_random_bytes_are_read_as_by_systemd() -> None:
    """Continuations, comments, line ends of every kind, marks, broken headers."""
    chance = random.Random(20261201)  # noqa: S311
    with systemdload.folder() as place:
        sources = {f"u{number}.service": unitmaker.raw(chance) for number in range(COUNT)}
        for name, data in sources.items():
            Path(place, name).write_bytes(data)
        compare(sources, (place,))


@pytest.mark.parametrize("seed", range(max(4, COUNT // 30)))
def test_random_trees_are_found_as_by_systemd(seed: int) -> None:
    """Fragments, aliases, masks and drop-ins in three folders."""
    chance = random.Random(seed)  # noqa: S311
    with systemdload.folder() as place:
        folders = unitmaker.tree(chance, place)
        compare(dict.fromkeys(unitmaker.asked(chance), ""), folders)


def compare(sources: Mapping[str, object], folders: tuple[str, ...]) -> None:
    """Load all of them with both."""
    found = systemdload.loaded(list(sources), folders)
    loader = Loader(SearchPath(folders), machine())
    wrong = {}
    for name, source in sources.items():
        theirs = found.get(name, {"load_state": "not-found"})
        different = differences(loader, name, theirs)
        if different:
            wrong[name] = (different, source)
    assert wrong == {}
