"""Names of units: which are valid, what their parts are, where their drop-ins are looked for, which slice is above.

Must not: look into directories. Upstream: nothing. Downstream: unitfiles, specifiers, unit.
Sources: src/basic/unit-name.c, src/shared/dropin.c (unit_file_find_dirs), src/basic/unit-file.c; systemd.unit(5).
"""

import re

ROOT_SLICE = "-.slice"
SYSTEM_SLICE = "system.slice"
APP_SLICE = "app.slice"
SAMPLE_INSTANCE = "instance"  # stands for any instance where only a template is there
MAX_NAME_BYTES = 255  # UNIT_NAME_MAX

TYPES = ("service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope")
# A file of its own section, and controllers (systemd.resource-control(5)).
WITH_CGROUP = ("service", "socket", "mount", "swap", "slice", "scope")
ALIASABLE = ("service", "socket", "target", "device", "timer", "path")
TEMPLATABLE = ("service", "socket", "target", "timer", "path")

_VALID = re.compile(r"[0-9A-Za-z:\-_.\\@]+", re.ASCII)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2}))?|-", re.ASCII)
_SAFE = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz:_.")


def valid(name: str) -> bool:
    """Whether a unit can have this name: allowed characters, not too long, a known type behind the last dot."""
    stem, dot, suffix = name.rpartition(".")
    plausible = bool(dot and stem) and suffix in TYPES and len(name) <= MAX_NAME_BYTES
    return plausible and _VALID.fullmatch(name) is not None and not stem.startswith("@")


def type_of(name: str) -> str:
    """ "service" of "a.service"."""
    return name.rpartition(".")[2]


def is_template(name: str) -> bool:
    """ "a@.service"."""
    return name.rpartition(".")[0].partition("@")[1:] == ("@", "")


def instance_of(name: str) -> str | None:
    """ "x" of "a@x.service"; None of a name that is no instance."""
    return name.rpartition(".")[0].partition("@")[2] or None


def prefix_of(name: str) -> str:
    """ "a-b" of "a-b@x.service" and of "a-b.service"."""
    return name.rpartition(".")[0].partition("@")[0]


def template_of(name: str) -> str | None:
    """ "a@.service" of "a@x.service"; None when the name has no "@"."""
    return f"{prefix_of(name)}@.{type_of(name)}" if "@" in name.rpartition(".")[0] else None


def with_instance(name: str, instance: str | None) -> str:
    """ "a@x.service" of "a@.service" or "a@y.service" and "x"; the name itself without an instance."""
    return f"{prefix_of(name)}@{instance}.{type_of(name)}" if instance and "@" in name else name


def drop_in_directories(name: str) -> list[str]:
    """The directories, most specific first, that hold drop-ins for a name in each folder of the search path.

    "a-b@x.service": a-b@x.service.d, a-b@.service.d, a-.service.d, a-@x.service.d, a-@.service.d. "service.d" is not
    among them: it comes last of all folders.
    """
    found: list[str] = []
    while name not in found:
        found.append(name)
        template = template_of(name)
        if instance_of(name) is not None and template is not None:
            # The template's own prefixes come first, as systemd descends into it.
            found += [one for one in _without_suffix(drop_in_directories(template)) if one not in found]
        shorter = _shorter(name)
        if shorter is None:
            break
        name = shorter
    return [f"{one}.d" for one in found]


def slice_above(name: str) -> str | None:
    """The slice that holds this one: "a.slice" of "a-b.slice", "-.slice" of "a.slice", None of "-.slice"."""
    if name == ROOT_SLICE:
        return None
    above = name.removesuffix(".slice").rpartition("-")[0]
    return f"{above}.slice" if above else ROOT_SLICE


def valid_slice(name: str) -> bool:
    """Whether systemd loads a slice of this name: no dash at an end, no two in a row (slice_name_is_valid)."""
    stem = name.removesuffix(".slice")
    if not valid(name) or type_of(name) != "slice" or "@" in name:
        return False
    return name == ROOT_SLICE or not (stem.startswith("-") or stem.endswith("-") or "--" in stem)


def default_slice(name: str, *, user: bool) -> str:
    """The slice of a unit that names none: instances of a template share one (unit_set_default_slice)."""
    if instance_of(name) is not None:
        return f"{'app' if user else 'system'}-{escaped(prefix_of(name))}.slice"
    return APP_SLICE if user else SYSTEM_SLICE


def escaped(text: str) -> str:
    """unit_name_escape: what is not allowed in a name, and a dash, becomes \\xNN, a slash a dash."""
    head = "\\x2e" if text.startswith(".") else ""
    rest = text[1:] if head else text
    return head + "".join(
        "-" if char == "/" else char if char in _SAFE else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in rest
    )


def unescaped(text: str) -> str | None:
    """unit_name_unescape: the reverse; None for a broken escape."""
    broken = False

    def one(found: re.Match[str]) -> str:
        nonlocal broken
        if found[0] == "-":
            return "/"
        broken = broken or found[1] is None
        return chr(int(found[1] or "0", 16))

    plain = _ESCAPE.sub(one, text)
    return None if broken else plain


def _shorter(name: str) -> str | None:
    """The name with its prefix cut behind the last dash: "a-.service" of "a-b.service"; None when there is none.

    An instance keeps its instance; a template loses its "@", as in systemd.
    """
    prefix = prefix_of(name)
    # A dash at the end stays from the step before: cut it off, once.
    body = prefix[:-1] if prefix.endswith("-") else prefix
    cut = body.rfind("-")
    if cut <= 0:
        return None
    instance = instance_of(name)
    at = "" if instance is None else f"@{instance}"
    return f"{body[: cut + 1]}{at}.{type_of(name)}"


def _without_suffix(directories: list[str]) -> list[str]:
    return [one.removesuffix(".d") for one in directories]
