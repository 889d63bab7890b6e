"""edgeguardctl size: from RAM, a model file or a measured peak, and other services to limits and flags.

Must not: provision. Upstream: isolate.sizing. Downstream: edgeguardctl.
"""

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from edgeguardd.cli import common
from edgeguardd.core import systemdvalues
from edgeguardd.core.configkinds import quoted
from edgeguardd.core.confignames import check_service
from edgeguardd.errors import ConfigError

if TYPE_CHECKING:
    from edgeguardd.isolate.sizing.advice import Advice, Flags

_MIB = 1 << 20
_MAX_BYTES = 1 << 60
NEXT = f"""\
Next, as root, with the same arguments:

  edgeguardctl size … --toml >> {common.DEFAULT_CONFIG}
  edgeguardctl provision --dry-run"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "size",
        help="propose limits for a model or a measured run, and llama-server flags",
        description="From RAM, the header of a GGUF model and what else runs: memory_high, memory_max and "
        "llama-server's flags, with the arithmetic line by line. For any other server, from the peak of a real run "
        "(--measured). What --toml prints goes into edgeguardd.toml, for `edgeguardctl provision`.",
        epilog="Exit status: 0 it fits; 1 it does not, or the file is no model; 2 wrong usage.",
    )
    option = parser.add_argument
    option("model", metavar="MODEL", nargs="?", help="the .gguf file; of a split one its first part")
    option("--ram", metavar="SIZE", type=_ram, help="RAM of the box; without it, this machine's")
    option(
        "--others",
        metavar="SIZE",
        type=_size,
        help="what other services need; without it, what is in use here now (MemTotal - MemAvailable, less what the "
        "measured cgroup holds)",
    )
    option("--ctx-size", metavar="N", type=common.count, help="tokens of one slot; without it, as many as fit")
    option("--parallel", metavar="N", type=common.count, default=1, help="slots (default: 1)")
    option("--cache-type-k", metavar="TYPE", default="f16", help="type of the K cache (default: f16)")
    option("--cache-type-v", metavar="TYPE", default="f16", help="type of the V cache (default: f16)")
    option(
        "--measured",
        metavar="SIZE|CGROUP",
        help="peak of a real run: a size, or the cgroup's directory, whose memory.peak is read; without MODEL, all "
        "that is gone by",
    )
    option("--unit", metavar="UNIT", type=_unit, help="the server's unit (default: llama-server.service for a MODEL)")
    option("--toml", action="store_true", help="print only the configuration")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    if args.model is None and args.measured is None:
        args.usage_error("cannot size nothing: name a .gguf MODEL, or give the peak of a real run with --measured SIZE")
    from edgeguardd.isolate.sizing.advice import Wish, advise  # noqa: PLC0415 - other commands do without
    from edgeguardd.isolate.sizing.model import CACHE_TYPES, load  # noqa: PLC0415

    for kind in (args.cache_type_k, args.cache_type_v):
        if kind not in CACHE_TYPES:
            raise ConfigError([f"cannot size a cache of type {kind!r}: write one of {', '.join(CACHE_TYPES)}"])
    memory = _meminfo()
    ram = memory["MemTotal"] if args.ram is None else args.ram
    others = args.others
    if others is None:
        others = max(0, memory["MemTotal"] - memory["MemAvailable"] - _held(args.measured))
    wish = Wish(
        ram_bytes=ram,
        others_bytes=others,
        model=None if args.model is None else load(args.model),
        parallel=args.parallel,
        tokens=args.ctx_size,
        key_type=args.cache_type_k,
        value_type=args.cache_type_v,
        measured_bytes=None if args.measured is None else _measured(args.measured),
    )
    advice = advise(wish)
    # A name that provision refuses, as systemd knows no such unit: which server was measured is not known here.
    unit = args.unit or ("NAME.service" if wish.model is None else "llama-server.service")
    if args.toml:
        print(_toml(advice, unit), end="")
        return common.OK
    if wish.model is not None:
        print(f"{wish.model.name} ({wish.model.architecture})\n")
    for line in advice.lines:
        print(f"{line.what:<22} {line.size_bytes / _MIB:>9.1f}M  {line.how}")
    print(f"\nedgeguardd.toml:\n\n{_toml(advice, unit)}")
    if advice.flags is not None:
        print(f"llama-server:\n\n{_flags(advice.flags, args.model)}\n")
    print(NEXT)
    return common.OK


def _toml(advice: "Advice", unit: str) -> str:
    slice_ = (
        f'[[provision.slice]]\nname = "inference.slice"\nmemory_low = "{advice.low_bytes // _MIB}M"\n'
        f'memory_max = "{advice.max_bytes // _MIB}M"\n'
    )
    service = (
        f'\n[[provision.service]]\nname = {quoted(unit)}\nslice = "inference.slice"\n'
        f'memory_low = "{advice.low_bytes // _MIB}M"\nmemory_high = "{advice.high_bytes // _MIB}M"\n'
        f'memory_max = "{advice.max_bytes // _MIB}M"\nswap_max = 0\noom_group = true\n'
    )
    guarantee = advice.others_bytes // _MIB
    protected = f'\n[[provision.slice]]\nname = "protected.slice"\nmemory_min = "{guarantee}M"\n' if guarantee else ""
    return slice_ + service + protected


def _flags(flags: "Flags", model: str) -> str:
    words = ["llama-server", "--model", model, "--ctx-size", str(flags.tokens * flags.parallel)]
    words += ["--parallel", str(flags.parallel), "--cache-ram", str(flags.cache_ram_bytes // _MIB)]
    if (flags.key_type, flags.value_type) != ("f16", "f16"):
        words += ["--cache-type-k", flags.key_type, "--cache-type-v", flags.value_type]
    return shlex.join(words)


def _held(measured: str | None) -> int:
    """What the measured cgroup holds of its own now: it is in use, and by no other service."""
    held = 0
    try:
        with open(os.path.join(measured or "", "memory.stat")) as file:
            for line in file:
                name, _, figure = line.strip().partition(" ")
                held += int(figure) if name in {"anon", "shmem"} and figure.isascii() and figure.isdigit() else 0
    except OSError:
        return 0
    return held


def _measured(word: str) -> int:
    size = systemdvalues.size(word)
    if size is not None and 0 < size < _MAX_BYTES:
        return size
    for name in ("memory.peak", "memory.current"):
        try:
            with open(os.path.join(word, name)) as file:
                text = file.read(64).strip()
        except OSError:
            continue
        if text.isascii() and text.isdigit():
            return int(text)
    raise ConfigError([f"cannot use --measured {word!r}: neither a size such as 900M nor a cgroup with memory.peak"])


def _meminfo() -> dict[str, int]:
    found = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                fields = line.split()
                if len(fields) >= 2 and fields[1].isdigit():
                    found[fields[0].rstrip(":")] = int(fields[1]) * 1024
    except OSError as error:
        raise ConfigError([f"cannot read /proc/meminfo: {error.strerror}; mount procfs on /proc"]) from None
    if not {"MemTotal", "MemAvailable"} <= set(found):
        raise ConfigError(["cannot use /proc/meminfo: no MemTotal and MemAvailable; give --ram and --others"])
    return found


def _size(word: str) -> int:
    size = systemdvalues.size(word)
    if size is None or not 0 <= size < _MAX_BYTES:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: write bytes, or a number with K, M, G or T such as 8G")
    return size


def _ram(word: str) -> int:
    size = _size(word)
    if size == 0:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: a box has some RAM; leave it out for this machine's")
    return size


def _unit(word: str) -> str:
    try:
        check_service(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: {error}") from None
    return word
