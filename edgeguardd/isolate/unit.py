"""Files of a unit -> the unit as systemd would load it: values in force, what was ignored and why, whether it loads.

Must not: judge. Upstream: unitfiles, unittext, settings. Downstream: effective, rules, cli.audit.
Sources: unit_load() in src/core/unit.c, service_verify() and service_add_extras() in src/core/service.c.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field, structs

from edgeguardd.isolate import checked, settings, unitkeys, unittext
from edgeguardd.isolate import unitnames as names
from edgeguardd.isolate.commands import IgnoredError, RefusedError
from edgeguardd.isolate.settingvalues import Place
from edgeguardd.isolate.unitfiles import Found, SearchPath, contents, readable
from edgeguardd.isolate.unittext import Assignment, Remark, UnitText

LOADED, MASKED, NOT_FOUND, BAD_SETTING, ERROR = "loaded", "masked", "not-found", "bad-setting", "error"
MAX_ECHO_CHARS = 120


class Unit(Struct, frozen=True):
    """One unit. `load_state` in systemd's words; `why` says what is wrong with one that does not load.

    `values` has every key of settings.SETTINGS; `set_at` says where those that were set got their value; `raw` is the
    last text given to each known key. `slices` are the units above it, from its own slice to -.slice; `ignored` is
    what systemd left out.
    """

    name: str
    kind: str
    found: Found
    load_state: str
    why: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    set_at: Mapping[str, Remark] = field(default_factory=dict)
    raw: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[Remark, ...] = ()
    texts: tuple[UnitText, ...] = ()
    slices: "tuple[Unit, ...]" = ()
    user: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The fragment and the drop-ins, in the order in which they count."""
        return tuple(text.file for text in self.texts)


class Machine(Struct, frozen=True):
    """What percentages and paths are relative to, and which systemd reads the files."""

    memory_bytes: int
    page_bytes: int = 4096
    version: int = unitkeys.OLDEST
    user: bool = False


class Loader:
    """Loads units from one search path; slices that several share are loaded once."""

    def __init__(self, path: SearchPath, machine: Machine) -> None:
        self._path = path
        self._machine = machine
        self._slices: dict[str, Unit] = {}

    def load(self, name: str) -> Unit:
        """The unit of this name, which must be valid and no template."""
        unit = self._without_slices(name)
        if unit.load_state != LOADED or unit.kind not in names.WITH_CGROUP:
            return unit
        above: list[Unit] = []
        current = slice_of(unit)
        while current is not None:
            if current not in self._slices:
                self._slices[current] = self._without_slices(current)
            above.append(self._slices[current])
            current = names.slice_above(current)
        return structs.replace(unit, slices=tuple(above))

    def _without_slices(self, name: str) -> Unit:
        found = self._path.find(name)
        kind = names.type_of(found.name)
        if found.masked:
            return Unit(found.name, kind, found, MASKED, "masked: systemd does not start it, and reads nothing of it")
        if found.fragment is None and kind not in ("slice", "scope"):
            return Unit(found.name, kind, found, NOT_FOUND, f"no file for it in {self._path.shown()}")
        if found.fragment is not None and not readable(found.fragment):
            why = f"cannot read {found.fragment}: no regular file behind it, or not allowed"
            return Unit(found.name, kind, found, NOT_FOUND, why)
        place = Place(
            *(found.name, self._machine.memory_bytes, self._machine.page_bytes, self._machine.user),
            *(found.fragment or "", self._machine.version),
        )
        merge = _Merge(place, kind)
        merge.take_all(found)
        state, why = merge.outcome(kind)
        return Unit(
            *(found.name, kind, found, state, why, merge.values, merge.set_at, merge.raw, tuple(merge.ignored)),
            *(tuple(merge.texts), (), self._machine.user),
        )


def slice_of(unit: Unit) -> str | None:
    """The slice that a unit is in; None for -.slice."""
    if unit.kind == "slice":
        return names.slice_above(unit.name)
    named: str | None = unit.values.get("Slice")
    return named or names.default_slice(unit.name, user=unit.user)


class _Merge:
    """The values of one unit, file after file."""

    def __init__(self, place: Place, kind: str) -> None:
        self._place = place
        self._sections = unitkeys.sections(kind)
        self._known = {section: unitkeys.known(section, place.version) for section in self._sections}
        self._spelt: dict[str, tuple[str, str]] = {}
        self.values: dict[str, Any] = {row.key: row.default for row in settings.SETTINGS}
        self.set_at: dict[str, Remark] = {}
        self.raw: dict[str, str] = {}
        self.ignored: list[Remark] = []
        self.texts: list[UnitText] = []
        self._fatal: tuple[str, str] | None = None

    def take_all(self, found: Found) -> None:
        """The fragment, where a fault is fatal, then the drop-ins, where it ends the file."""
        if found.fragment is not None:
            fatal = self._take(found.fragment)
            self._fatal = fatal
        for drop_in in found.drop_ins:
            self._take(drop_in)

    def outcome(self, kind: str) -> tuple[str, str]:
        """The load state, and why it is not loaded."""
        if self._fatal is not None:
            return self._fatal
        if kind == "service":
            if self.values["Type"] is None:
                self.values["Type"] = _type(self.values)
            refusal = next((why for wrong, why in _REFUSALS if wrong(self.values)), None)
            if refusal is not None:
                return BAD_SETTING, refusal
        if kind == "slice" and not names.valid_slice(self._place.unit):
            return ERROR, "not a name of a slice: a dash at an end, or two in a row"
        return LOADED, ""

    def _take(self, file: str) -> tuple[str, str] | None:
        text = unittext.parse(contents(file), file)
        self.texts.append(text)
        self.ignored += text.remarks
        for line, section in text.headers:
            if section not in self._sections and not section.startswith("X-"):
                self._say(file, line, f"unknown section [{section}], ignored with all in it")
        for assignment in text.assignments:
            try:
                self._assign(file, assignment)
            except RefusedError as why:
                sentence = f"{_shown(assignment)}: {why}"
                self._say(file, assignment.line, f"{sentence}; systemd reads the file no further")
                return BAD_SETTING, f"{file}:{assignment.line}: {sentence}"
        return (ERROR, f"{file}:{text.broken.line}: {text.broken.text}") if text.broken else None

    def _assign(self, file: str, assignment: Assignment) -> None:
        section, key, text = assignment.section, assignment.key, assignment.value
        if section not in self._sections or key.startswith("X-"):
            return
        if key not in self._known[section]:
            self._say(file, assignment.line, f"unknown key {key!r} in [{section}], ignored{self._hint(key)}")
            return
        self.raw[key] = text
        row = settings.BY_KEY.get(key)
        if row is None:
            wrong = checked.fault(key, text, self._place.version)
            if wrong is not None:
                self._say(file, assignment.line, f"{_shown(assignment)} ignored: {wrong}")
            return
        try:
            self.values[row.key] = row.parse(self.values[row.key], text, self._place)
        except IgnoredError as why:
            self._say(file, assignment.line, f"{_shown(assignment)} ignored: {why}")
            return
        self.set_at[row.key] = Remark(file, assignment.line, _shown(assignment))

    def _hint(self, key: str) -> str:
        """Where the key is known, or how it is written."""
        if not self._spelt:
            self._spelt = {one.lower(): (section, one) for section, keys in self._known.items() for one in keys}
        section, one = self._spelt.get(key.lower(), ("", ""))
        return f"; it is {one} in [{section}]" if one else ""

    def _say(self, file: str, line: int, text: str) -> None:
        self.ignored.append(Remark(file, line, text))


def _shown(assignment: Assignment) -> str:
    shown = f"{assignment.key}={assignment.value}"
    return shown if len(shown) <= MAX_ECHO_CHARS else shown[: MAX_ECHO_CHARS - 1] + "…"


def _type(values: Mapping[str, Any]) -> str:
    """The type of a service that names none (service_add_extras)."""
    if values["BusName"]:
        return "dbus"
    return "simple" if values["ExecStart"] else "oneshot"


def _nothing_to_run(values: Mapping[str, Any]) -> bool:
    return not values["ExecStart"] and values["SuccessAction"] == "none"


# What makes systemd refuse a service, in the order in which it looks (service_verify).
_REFUSALS: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (
        lambda v: _nothing_to_run(v) and not v["ExecStop"],
        "no ExecStart=, ExecStop= or SuccessAction=: systemd refuses it",
    ),
    (
        lambda v: _nothing_to_run(v) and v["Type"] != "oneshot",
        "no ExecStart=, which only Type=oneshot may do without: systemd refuses it",
    ),
    (
        lambda v: _nothing_to_run(v) and not v["RemainAfterExit"],
        "no ExecStart= and no RemainAfterExit=yes: systemd refuses it",
    ),
    (
        lambda v: len(v["ExecStart"]) > 1 and v["Type"] != "oneshot",
        "more than one ExecStart=, which only Type=oneshot may have: systemd refuses it",
    ),
    (
        lambda v: v["Type"] == "oneshot" and v["Restart"] in ("always", "on-success"),
        "Restart=always or on-success with Type=oneshot: systemd refuses it",
    ),
    (
        lambda v: v["Type"] == "oneshot" and v["ExitType"] == "cgroup",
        "ExitType=cgroup with Type=oneshot: systemd refuses it",
    ),
    (lambda v: v["Type"] == "dbus" and not v["BusName"], "Type=dbus without BusName=: systemd refuses it"),
    (
        lambda v: bool(v["PAMName"]) and v["KillMode"] not in ("control-group", "mixed"),
        "PAMName= with a KillMode= other than control-group and mixed: systemd refuses it",
    ),
)
