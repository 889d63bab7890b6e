"""Where a unit's files are: its fragment, its aliases and its drop-ins, in a search path, as systemd finds them.

Must not: read what is in the files, beyond whether there is anything. Upstream: unitnames. Downstream: unit, cli.audit.
Sources: unit_file_build_name_map() and unit_file_find_fragment() in src/basic/unit-file.c, src/shared/dropin.c,
src/basic/conf-files.c, unit_load_fragment() in src/core/load-fragment.c.
"""

import errno
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.isolate import unitnames as names

# Where systemd looks, highest precedence first (systemd.unit(5), "System Unit Search Path").
SYSTEM_PATH = (
    *("/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient"),
    *("/run/systemd/generator.early", "/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system"),
    *("/run/systemd/system.attached", "/run/systemd/generator", "/usr/local/lib/systemd/system"),
    *("/lib/systemd/system", "/usr/lib/systemd/system", "/run/systemd/generator.late"),
)
USER_PATH = (
    *("~/.config/systemd/user.control", "~/.config/systemd/user", "/etc/xdg/systemd/user", "/etc/systemd/user"),
    *("/run/systemd/user", "~/.local/share/systemd/user", "/usr/local/share/systemd/user", "/usr/share/systemd/user"),
    *("/usr/local/lib/systemd/user", "/usr/lib/systemd/user"),
)
MAX_FILE_BYTES = 16 * 1024 * 1024  # no unit comes near it; an endless file named by mistake ends here
_FOLLOW_MAX = 8


class Found(Struct, frozen=True):
    """The files of one unit. `name` is what systemd calls it, `fragment` None when only drop-ins, or nothing, exist."""

    name: str
    aliases: tuple[str, ...]
    fragment: str | None
    drop_ins: tuple[str, ...]
    masked: bool = False
    notes: tuple[str, ...] = ()


class SearchPath:
    """Folders of unit files, highest precedence first, listed once. `root`: where links with absolute targets begin."""

    def __init__(self, folders: tuple[str, ...], root: str = "/") -> None:
        self._root = os.path.abspath(root)
        self._folders = tuple(
            dict.fromkeys(
                os.path.normpath(os.path.join(self._root, f.lstrip("/"))) if self._root != "/" else os.path.abspath(f)
                for f in folders
            )
        )
        self._entries = {folder: _listed(folder) for folder in self._folders}
        self._targets = self._name_map()
        self._aliases = self._reversed()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders, made absolute."""
        return self._folders

    def shown(self) -> str:
        """Where it looks, in words: systemd's own path is long, and known to systemd."""
        for usual, command in (
            (SYSTEM_PATH, "systemd-analyze unit-paths"),
            (USER_PATH, "systemd-analyze --user unit-paths"),
        ):
            if self._folders == tuple(os.path.abspath(os.path.expanduser(folder)) for folder in usual):
                return f"systemd's search path ({command})"
        return ":".join(self._folders)

    def units(self, types: tuple[str, ...]) -> list[str]:
        """The names of all units that have a file here, aliases left out; templates only as their instances."""
        found = {name for name, target in self._targets.items() if target.startswith("/")}
        for folder, entries in self._entries.items():
            for entry in entries:
                if entry.endswith((".wants", ".requires", ".upholds")):
                    found |= {name for name in _listed(f"{folder}/{entry}") if self._fragment(name) is not None}
        return sorted(n for n in found if names.valid(n) and names.type_of(n) in types and not names.is_template(n))

    def templates(self, types: tuple[str, ...]) -> list[str]:
        """The names of all templates."""
        return sorted(n for n in self._targets if names.is_template(n) and names.type_of(n) in types)

    def find(self, name: str) -> Found:
        """The files of the unit with this name, which must be valid and no template."""
        fragment = self._fragment(name)
        original = self._copied_from(name, fragment)
        if original is not None:
            return self.find(original)
        known = {name, *self._aliases.get(name, ())}
        own = name
        if fragment is not None and names.valid(base := os.path.basename(fragment)) and base != name:
            instance = names.instance_of(name)
            own = names.with_instance(base, instance)
            known |= {own, *(self._of_instance(alias, instance, base) for alias in self._aliases.get(base, ()))}
            known.discard("")
        copies = self._copied_links(own, fragment)
        aliases = tuple(sorted((known | set(copies)) - {own}))
        masked = fragment is not None and null_or_empty(fragment)
        notes = tuple(
            f"{path}: a copy of {fragment}, whose Alias= names it: taken for the alias link" for path in copies.values()
        )
        return Found(own, aliases, fragment, tuple(self._drop_ins(own, aliases)), masked, notes)

    def _name_map(self) -> dict[str, str]:
        """Name -> the absolute path of its file, or the name that it is an alias of."""
        found: dict[str, str] = {}
        for folder, entries in self._entries.items():
            for entry in entries:
                if entry in found or not names.valid(entry):
                    continue
                target = self._target(folder, entry)
                if target is not None:
                    found[entry] = target
        return found

    def _target(self, folder: str, entry: str) -> str | None:
        """What a directory entry stands for; None for a link that systemd refuses, or that points at itself."""
        path = f"{folder}/{entry}"
        try:
            link = os.readlink(path)
        except OSError:
            return path
        aim = os.path.join(self._root, link.lstrip("/")) if os.path.isabs(link) else os.path.join(folder, link)
        aim = os.path.normpath(aim)
        if not any(aim.startswith(known.rstrip("/") + "/") for known in self._folders):
            return path  # a linked unit file, or /dev/null
        name = os.path.basename(aim)
        return name if name != entry and _alias_allowed(entry, name) else None

    def _fragment(self, name: str) -> str | None:
        """The file of a name, through its aliases; an instance may stand on its template."""
        found = self._followed(name)
        template = names.template_of(name)
        if found is None and names.instance_of(name) is not None and template is not None:
            found = self._followed(template)
        return found

    def _followed(self, name: str) -> str | None:
        target = self._targets.get(name)
        for _ in range(_FOLLOW_MAX):
            if target is None or target.startswith("/"):
                return target
            template = names.template_of(target)
            target = self._targets.get(target) or (self._targets.get(template) if template else None)
        return None

    def _reversed(self) -> dict[str, list[str]]:
        """Name -> the names that lead to its file; for the file of a template those of an instance stand alone."""
        found: dict[str, list[str]] = {}
        for alias, target in self._targets.items():
            file = None if target.startswith("/") else self._followed(alias)
            if file is not None and not null_or_empty(file):
                name = names.with_instance(os.path.basename(file), names.instance_of(alias))
                found.setdefault(name, []).append(alias)
        return found

    def _of_instance(self, alias: str, instance: str | None, base: str) -> str:
        """An alias of a template as an alias of its instance; "" when that instance has a file of its own."""
        if instance is None or not names.is_template(alias):
            return alias
        one = names.with_instance(alias, instance)
        file = self._followed(one)
        return one if file is None or os.path.basename(file) == base else ""

    def _copied_links(self, name: str, fragment: str | None) -> dict[str, str]:
        """Aliases that were links until something copied the tree without them (an archive, a checkout).

        The file has the name that the unit's own Alias= gives it, and the same bytes: systemctl would have made a link.
        """
        if fragment is None:
            return {}
        content = contents(fragment)
        copies: dict[str, str] = {}
        for alias in _declared(content):
            path = self._targets.get(alias, "")
            other = alias != name and path.startswith("/") and path != fragment
            if other and _alias_allowed(alias, name) and contents(path) == content:
                copies[alias] = path
        return copies

    def _copied_from(self, name: str, fragment: str | None) -> str | None:
        """The unit whose alias link became the file of this name: its Alias= names the very file it stands in."""
        content = b"" if fragment is None else contents(fragment)
        declared = _declared(content)
        if name not in declared or os.path.basename(fragment or "") != name:
            return None
        others = (other for other in sorted(self._targets) if other not in declared and _alias_allowed(name, other))
        paths = ((other, self._targets[other]) for other in others)
        return next((other for other, path in paths if path.startswith("/") and contents(path) == content), None)

    def _drop_ins(self, name: str, aliases: tuple[str, ...]) -> list[str]:
        """The drop-ins in the order in which they count: by file name; of several with one name the most specific."""
        found: dict[str, str] = {}
        for directory in self._drop_in_directories(name, aliases):
            for entry in _listed(directory):
                if entry.endswith(".conf") and not entry.startswith("."):
                    found.setdefault(entry, f"{directory}/{entry}")
        return [found[entry] for entry in sorted(found, key=os.fsencode)]

    def _drop_in_directories(self, name: str, aliases: tuple[str, ...]) -> Iterator[str]:
        for one in (name, *aliases):
            below = names.drop_in_directories(one)
            for folder, entries in self._entries.items():
                yield from (f"{folder}/{directory}" for directory in below if directory in entries)
        wide = f"{names.type_of(name)}.d"
        yield from (f"{folder}/{wide}" for folder, entries in self._entries.items() if wide in entries)


def contents(path: str) -> bytes:
    """What a file holds, as far as a unit may go; b"" for one that cannot be read. Waits for no pipe."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            return file.read(MAX_FILE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def readable(path: str) -> bool:
    """Whether there is a regular file to be read at the end of all links."""
    return os.path.isfile(path) and os.access(path, os.R_OK)


def null_or_empty(path: str) -> bool:
    """Whether a unit file masks its unit: of no bytes, or /dev/null."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (
        stat.S_ISCHR(status.st_mode)
        or stat.S_ISBLK(status.st_mode)
        or (stat.S_ISREG(status.st_mode) and status.st_size == 0)
    )


def _listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG):
            return frozenset()
        raise


def _alias_allowed(alias: str, name: str) -> bool:
    """Whether a link with one name may point to the other (unit_validate_alias_symlink_and_warn)."""
    kind = names.type_of(alias)
    if not names.valid(name) or kind != names.type_of(name) or kind not in names.ALIASABLE:
        return False
    ours, theirs = names.instance_of(alias), names.instance_of(name)
    if "@" not in alias.rpartition(".")[0] or "@" not in name.rpartition(".")[0]:
        return ("@" in alias) == ("@" in name)
    return theirs is None or ours == theirs


def _declared(content: bytes) -> set[str]:
    """The names that Alias= gives."""
    lines = (line.strip() for line in content.split(b"\n"))
    given = (line.removeprefix(b"Alias=").split() for line in lines if line.startswith(b"Alias="))
    return {word.decode(errors="replace") for words in given for word in words}
