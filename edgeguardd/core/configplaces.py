"""Which targets name the same cgroup, as far as their words alone can tell.

Must not: look at a cgroup tree: the file may be checked on another machine, or before its units run. Upstream: config.
Downstream: configcheck. How globs and units are followed in a real tree is kernel.resolve's.
"""

import fnmatch
import re

from edgeguardd.core.config import TargetSpec


def shared_places(targets: tuple[TargetSpec, ...]) -> list[str]:
    """One sentence for each target that names, or takes in, the cgroup of one before it."""
    found = []
    first: dict[tuple[str | None, ...], str] = {}
    for spec in targets:
        name = first.setdefault((spec.path, spec.unit, spec.glob), spec.name)
        if name != spec.name:
            found.append(f'targets "{name}" and "{spec.name}" name the same cgroup; give it to one of them')
    return found + _by_unit_and_path(targets) + _by_glob(targets)


def _by_unit_and_path(targets: tuple[TargetSpec, ...]) -> list[str]:
    """A unit's cgroup has its name, in whatever slice it runs (systemd puts "_" before a few: cg_escape)."""
    units = {name: spec for spec in targets if spec.unit is not None for name in (spec.unit, "_" + spec.unit)}
    return [
        f'targets "{unit.name}" and "{spec.name}" seem to name the same cgroup, one by unit and one by path; '
        "take one of them out"
        for spec in targets
        if spec.path is not None and (unit := units.get(spec.path.rpartition("/")[2]))
    ]


def _by_glob(targets: tuple[TargetSpec, ...]) -> list[str]:
    places = [(spec, place) for spec in targets if (place := _usual_path(spec)) is not None]
    found = []
    for spec in targets:
        if spec.glob is not None:
            pattern = _pattern(spec.glob)
            found += [
                f'target "{spec.name}" matches {place}, which "{other.name}" names as well; '
                "write a narrower glob, or take one of them out"
                for other, place in places
                if _matches(pattern, place)
            ]
    return found


def _usual_path(spec: TargetSpec) -> str | None:
    """Where the cgroup is: known for a path and a slice (systemd.slice(5)), usual for a service; else None."""
    if spec.path is not None or spec.unit is None:
        return spec.path
    stem, _, suffix = spec.unit.rpartition(".")
    if suffix == "slice":
        parts = stem.split("-")
        return "".join(f"/{'-'.join(parts[:end])}.slice" for end in range(1, len(parts) + 1))
    return f"/system.slice/{spec.unit}" if suffix == "service" else None


def _pattern(glob: str) -> list[re.Pattern[str]]:
    """As kernel.resolve matches: component by component, a leading dot only by a dot."""
    return [re.compile(("" if part.startswith(".") else r"(?!\.)") + fnmatch.translate(part)) for part in _parts(glob)]


def _matches(pattern: list[re.Pattern[str]], path: str) -> bool:
    parts = _parts(path)
    return len(parts) == len(pattern) and all(map(re.Pattern.match, pattern, parts))


def _parts(path: str) -> list[str]:
    return path.split("/")[1:]
