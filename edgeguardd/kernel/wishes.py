"""What the configuration wants: each spec in force, the search behind it, and the targets that came of it.

    TargetSpec ─▶ a path, or a search by unit or glob ─▶ found, lost ─▶ roster: begin, move, drop

Must not: read memory files (sampler does), know peers. Upstream: resolve, tree. Downstream: targets.
"""

from collections.abc import Callable, Sequence

from edgeguardd.core.config import TargetSpec
from edgeguardd.errors import TargetError
from edgeguardd.kernel.cgroupfs import CgroupRoot, target_path
from edgeguardd.kernel.guarded import Guarded
from edgeguardd.kernel.names import found_name
from edgeguardd.kernel.resolve import Glob, Pattern, Search, Unit, rank
from edgeguardd.kernel.roster import Roster
from edgeguardd.kernel.tree import Tree

# Whoever makes cgroups that match a glob may make many.
_MAX_TURNED_AWAY = 4096


class _Wish:
    """One spec in force, the search behind it if it names no path, and the targets that came of it, by path."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self.search: Search | None = None
        self.searching = False
        self.targets: dict[str, Guarded] = {}


class Wishes:
    """All specs in force."""

    def __init__(
        self,
        root: CgroupRoot,
        tree: Tree,
        roster: Roster,
        on_fault: Callable[[str], None],
        on_note: Callable[[str], None],
    ) -> None:
        """`on_fault`: directories have to be polled until it is cured; `on_note`: nothing cures it."""
        self._root = root
        self._tree = tree
        self._roster = roster
        self._fault = on_fault
        self._note = on_note
        self._wishes: dict[str, _Wish] = {}
        # Found when there was no room, by name: they take the places of those that end.
        self._turned_away: dict[str, tuple[_Wish, str]] = {}
        roster.on_room = self._take_in

    def apply(self, specs: Sequence[TargetSpec]) -> None:
        """These and no others; what stays the same is not touched."""
        wanted = {spec.name: spec for spec in specs}
        for name, wish in list(self._wishes.items()):
            if name not in wanted or not _same_place(wish.spec, wanted[name]):
                self._withdraw(name)
        for spec in specs:
            known = self._wishes.get(spec.name)
            if known is None:
                self._fulfil(spec)
            elif known.spec != spec:
                known.spec = spec
                for target in list(known.targets.values()):
                    self._roster.judge_by(target, spec.policy)

    def close(self) -> None:
        """Search no more. The targets are the roster's to end."""
        for wish in self._wishes.values():
            if wish.search is not None:
                wish.search.close()
        self._wishes.clear()
        self._turned_away.clear()

    def _fulfil(self, spec: TargetSpec) -> None:
        wish = self._wishes[spec.name] = _Wish(spec)
        try:
            if spec.path is not None:
                self._add(wish, spec.name, target_path(spec.path))
                return
            pattern: Pattern = Glob(spec.glob or "/") if spec.unit is None else Unit(spec.unit)
        except TargetError as error:
            self._fault(str(error))
            return
        wish.searching = True
        wish.search = Search(
            self._root,
            self._tree,
            pattern,
            lambda path: self._found(wish, path, many=pattern.many),
            lambda path: self._lost(wish, path, many=pattern.many),
            self._fault,
            self._note,
        )
        wish.search.start()
        wish.searching = False
        if isinstance(pattern, Unit) and not pattern.many:
            self._add(wish, spec.name, _best(wish.search.matches) or pattern.usual_path)

    def _withdraw(self, name: str) -> None:
        wish = self._wishes.pop(name)
        if wish.search is not None:
            wish.search.close()
        self._turned_away = {name: waits for name, waits in self._turned_away.items() if waits[0] is not wish}
        for path in list(wish.targets):
            self._roster.drop(wish.targets.pop(path))

    def _found(self, wish: _Wish, path: str, *, many: bool) -> None:
        """A cgroup matches. Found after the first look, it has just been made.

        A unit is followed where it runs; the system's is it even while a user has one of that name.
        """
        if many:
            self._add(wish, found_name(path, f"{wish.spec.name}:"), path, fresh=not wish.searching)
            return
        for target in list(wish.targets.values()):
            runs = target.place is not None and target.place.present
            if path != target.path and (not runs or rank(path) < rank(target.path)):
                self._move(wish, target, path, fresh=True)

    def _lost(self, wish: _Wish, path: str, *, many: bool) -> None:
        target = wish.targets.get(path)
        if many:
            self._turned_away.pop(found_name(path, f"{wish.spec.name}:"), None)
        if target is None or wish.search is None:
            return
        if many:
            self._roster.drop(wish.targets.pop(path))
            return
        other = _best(wish.search.matches)
        if other is not None:
            self._move(wish, target, other, fresh=False)

    def _move(self, wish: _Wish, target: Guarded, path: str, *, fresh: bool) -> None:
        del wish.targets[target.path]
        wish.targets[path] = target
        self._roster.move(target, path, fresh=fresh)

    def _add(self, wish: _Wish, name: str, path: str, *, fresh: bool = False) -> None:
        taken = name in self._roster.targets
        if taken or self._roster.full:
            why = "the name is taken" if taken else f"max_targets = {self._roster.most} is reached"
            self._fault(f"cannot guard {name}: {why}; change it in the configuration")
            if not taken and len(self._turned_away) < _MAX_TURNED_AWAY:
                self._turned_away[name] = wish, path
            return
        target = self._roster.made(name, path, wish.spec.policy, dynamic=False)
        wish.targets[path] = target
        self._roster.begin(target, fresh=fresh)

    def _take_in(self) -> None:
        """There is room for some that there was none for."""
        for name, (wish, path) in list(self._turned_away.items()):
            if self._roster.full:
                return
            del self._turned_away[name]
            # A unit, which has the name of its spec, may run elsewhere by now.
            runs_in = _best(wish.search.matches) if wish.search is not None and name == wish.spec.name else None
            self._add(wish, name, runs_in or path)


def _same_place(old: TargetSpec, new: TargetSpec) -> bool:
    return (old.path, old.unit, old.glob) == (new.path, new.unit, new.glob)


def _best(paths: set[str]) -> str | None:
    """Of several cgroups of one unit (a user's and the system's) the one that is it."""
    return min(paths, key=rank, default=None)
