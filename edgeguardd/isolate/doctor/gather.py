"""Reads what `edgeguardctl doctor` judges, below a root directory: "/" is this machine, any other a copy of one.

Must not: judge, change anything (files are opened for writing, and nothing is written), start a program, or wait.
Upstream: core.procfmt, core.kernelfmt, rivals, tree. Downstream: cli.doctor.
Files that are missing or cannot be read leave their fact unknown: a machine is examined as far as it can be.
"""

import errno
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterator

from edgeguardd.core import kernelfmt, procfmt
from edgeguardd.errors import FormatError
from edgeguardd.isolate.doctor.facts import Attempt, DaemonFacts, Facts, Swap
from edgeguardd.isolate.doctor.rivals import COMM_CHARS, RIVALS
from edgeguardd.isolate.doctor.tree import READ_BYTES, Tree

MAX_DEPTH = 3  # where a cgroup with memory files is looked for

# The words of the kernel command line that decide about memory; others may be private.
BOOT_OPTIONS = re.compile(r"(cgroup_|psi=|systemd\.(unified|legacy)|swapaccount=|cma=|mem=|zswap\.)")
BUILD_OPTIONS = ("CONFIG_MEMCG", "CONFIG_PSI", "CONFIG_PSI_DEFAULT_DISABLED", "CONFIG_PROC_EVENTS")
SYSCTLS = ("vm/panic_on_oom", "vm/oom_kill_allocating_task", "vm/overcommit_memory", "vm/swappiness")
BOOT_FILES = (
    "boot/firmware/cmdline.txt",
    "boot/cmdline.txt",
    "boot/armbianEnv.txt",
    "boot/orangepiEnv.txt",
    "boot/extlinux/extlinux.conf",
    "boot/firmware/extlinux/extlinux.conf",
    "etc/default/u-boot",
    "etc/default/grub",
)
CONTAINER_MARKS = ("run/systemd/container", ".dockerenv", "run/.containerenv")
SYSTEMD_LIBRARY = re.compile(r"libsystemd-shared-(\d{1,6})[.\-]")
SYSTEMD_DIRECTORIES = ("usr/lib/systemd", "lib/systemd")
NVMAP_CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"


def gather(
    root: str = "/",
    *,
    state_directory: str = "/var/lib/edgeguardd",
    cgroup_root: str | None = None,
    devices: tuple[str, ...] = (),
    daemon: DaemonFacts | None = None,
) -> Facts:
    """What is to be known of a machine. `devices`: kinds of the configured ones; `daemon`: what it answered."""
    tree = Tree(root)
    options = tuple(word for word in tree.words("proc/cmdline") or () if BOOT_OPTIONS.match(word))
    release = _release(tree)
    mounts = procfmt.mounts(tree.read("proc/self/mountinfo") or b"")
    cgroup_tree = cgroup_root or _cgroup_tree(tree, mounts.cgroup2)
    own = _own_cgroup(tree)
    sample = None if cgroup_tree is None else _sample(tree, cgroup_tree, own)
    return Facts(
        release=release,
        architecture=os.uname().machine if tree.root == "/" else None,
        boot_options=options,
        build_options=_build_options(tree, release),
        cgroup2=mounts.cgroup2,
        memory_v1=mounts.memory_v1,
        tree=cgroup_tree,
        tree_writable=cgroup_tree is None or not _read_only(tree, cgroup_tree),
        controllers=None if cgroup_tree is None else tree.words(f"{cgroup_tree}/cgroup.controllers"),
        enabled=None if cgroup_tree is None else tree.words(f"{cgroup_tree}/cgroup.subtree_control"),
        memory_on=_memory_on(tree),
        sample=None if sample is None or cgroup_tree is None else sample.removeprefix(cgroup_tree),
        sample_files=frozenset() if sample is None else frozenset(tree.names(sample)),
        own_cgroup=own,
        container=next((mark for mark in CONTAINER_MARKS if tree.there(mark)), None),
        psi=_psi(tree),
        memory_kb=_memory_kb(tree, "MemTotal"),
        swaps=_swaps(tree),
        sysctls={name: value for name in SYSCTLS if (value := tree.number(f"proc/sys/{name}")) is not None},
        systemd=_systemd(tree),
        board=tree.text("proc/device-tree/model"),
        compatible=_compatible(tree),
        l4t=_l4t(tree),
        nvmap=_nvmap(tree),
        boot_files=tuple(f"/{path}" for path in BOOT_FILES if tree.there(path)),
        running=_running(tree),
        hides_processes="hidepid=" in _proc_options(tree),
        user=_user(tree),
        capabilities=_capabilities(tree),
        read_events=None if sample is None else tree.attempt(f"{sample}/memory.events", os.O_RDONLY),
        write_high=None if sample is None else tree.attempt(f"{sample}/memory.high", os.O_WRONLY),
        score=tree.attempt("proc/self/oom_score_adj", os.O_WRONLY),
        kernel_log=tree.attempt("dev/kmsg", os.O_RDONLY),
        state_directory=_state_directory(tree, state_directory),
        open_files=_open_files(tree),
        inotify_instances=tree.number("proc/sys/fs/inotify/max_user_instances"),
        devices=devices,
        daemon=daemon,
    )


# cgroups


def _cgroup_tree(tree: Tree, mounted: tuple[str, ...]) -> str | None:
    """The v2 tree with the memory controller, else any."""
    with_memory = [point for point in mounted if "memory" in (tree.words(f"{point}/cgroup.controllers") or ())]
    return next(iter((*with_memory, *mounted)), None)


def _own_cgroup(tree: Tree) -> str | None:
    try:
        return procfmt.membership(tree.read("proc/self/cgroup") or b"").v2_path
    except FormatError:
        return None


def _sample(tree: Tree, cgroup_tree: str, own: str | None) -> str | None:
    """A cgroup with memory files, as a path below the root directory: the own one, else the first that is found."""
    candidates = _below(tree, cgroup_tree, MAX_DEPTH)
    if own is not None and ".." not in own.split("/"):
        candidates = itertools.chain((cgroup_tree + own.rstrip("/"),), candidates)
    for path in candidates:
        if tree.there(f"{path}/memory.events"):
            return path
    return None


def _below(tree: Tree, path: str, depth: int) -> Iterator[str]:
    children = [f"{path}/{name}" for name in tree.names(path) if os.path.isdir(tree.full(f"{path}/{name}"))]
    yield from children
    if depth > 1:
        for child in children:
            yield from _below(tree, child, depth - 1)


def _read_only(tree: Tree, cgroup_tree: str) -> bool:
    """Whether the tree is mounted read-only, as containers have it."""
    for line in (tree.text("proc/self/mountinfo") or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and fields[4] == cgroup_tree:
            return "ro" in fields[5].split(",")
    return False


def _memory_on(tree: Tree) -> bool | None:
    try:
        return procfmt.controllers(tree.read("proc/cgroups") or b"").memory_enabled
    except FormatError:
        return None


# The kernel


def _release(tree: Tree) -> str | None:
    """Kernels without CONFIG_SYSCTL say it in /proc/version only: "Linux version 6.1.90 (…"."""
    words = (tree.text("proc/version") or "").split()
    return tree.text("proc/sys/kernel/osrelease") or (
        words[2] if len(words) > 2 and words[:2] == ["Linux", "version"] else None
    )


def _build_options(tree: Tree, release: str | None) -> dict[str, str] | None:
    content = tree.read("proc/config.gz")
    try:
        text = None if content is None else gzip.GzipFile(fileobj=io.BytesIO(content)).read(READ_BYTES)
    except (OSError, EOFError, zlib.error):
        text = None
    if text is None and release is not None and "/" not in release:
        text = tree.read(f"boot/config-{release}")
    if text is None:
        return None
    found = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, value = line.removeprefix("# ").replace(" is not set", "=n").partition("=")
        if value and name in BUILD_OPTIONS:
            found[name] = value
    return found


def _psi(tree: Tree) -> str:
    """Built in and switched off answers EOPNOTSUPP, to the opening or to the reading (kernel/sched/psi.c)."""
    try:
        with open(tree.full("proc/pressure/memory"), "rb", buffering=0) as file:
            return "on" if b"total=" in file.read(4096) else "off"
    except OSError as error:
        return "off" if error.errno == errno.EOPNOTSUPP else "absent"


def _memory_kb(tree: Tree, key: str) -> int | None:
    try:
        return procfmt.meminfo(tree.read("proc/meminfo") or b"").values.get(key)
    except FormatError:
        return None


def _swaps(tree: Tree) -> tuple[Swap, ...] | None:
    content = tree.text("proc/swaps")
    if content is None:
        return None
    found = []
    for row in (line.split() for line in content.splitlines()[1:]):
        size_kb, used_kb = (_number(row, 2), _number(row, 3))
        if size_kb is not None and used_kb is not None:
            found.append(Swap(row[0], row[1], size_kb, used_kb))
    return tuple(found)


def _proc_options(tree: Tree) -> str:
    lines = (tree.text("proc/self/mountinfo") or "").splitlines()
    return next((line for line in lines if " /proc " in line and " - proc " in line), "")


# The system and the board


def _systemd(tree: Tree) -> int | None:
    """Told by the name of its private library: no program is started for it."""
    if not tree.there("run/systemd/system"):
        return 0
    architectures = [f"usr/lib/{name}/systemd" for name in tree.names("usr/lib") if name.endswith("-linux-gnu")]
    for directory in (*SYSTEMD_DIRECTORIES, *architectures):
        for name in tree.names(directory):
            if found := SYSTEMD_LIBRARY.match(name):
                return int(found[1])
    return None


def _compatible(tree: Tree) -> tuple[str, ...]:
    content = tree.read("proc/device-tree/compatible") or b""
    return tuple(part.decode(errors="replace") for part in content.split(b"\0") if part)


def _l4t(tree: Tree) -> str | None:
    """ "# R36 (release), REVISION: 4.3, …" -> "R36"."""
    found = re.match(r"#\s*(R\d+)\b", tree.text("etc/nv_tegra_release") or "")
    return found[1] if found else None


def _nvmap(tree: Tree) -> str | None:
    """Where this machine tells what GPU and cameras hold of its RAM."""
    if _memory_kb(tree, "NvMapMemUsed") is not None:
        return "/proc/meminfo"
    return f"/{NVMAP_CLIENTS}" if tree.read(NVMAP_CLIENTS) is not None else None


def _running(tree: Tree) -> tuple[str, ...] | None:
    """Which of the daemons that matter run; other processes are nobody's affair."""
    names = {tree.text(f"proc/{pid}/comm") for pid in tree.names("proc") if pid.isdecimal()}
    if not names:
        return None
    return tuple(rival.comm for rival in RIVALS if rival.comm[:COMM_CHARS] in names)


# Rights


def _number(words: list[str], place: int) -> int | None:
    """A word that is a whole number, and no other."""
    return kernelfmt.u64(words[place].encode(errors="replace")) if place < len(words) else None


def _status_line(tree: Tree, key: str) -> list[str]:
    lines = (tree.text("proc/self/status") or "").splitlines()
    return next((line.split()[1:] for line in lines if line.startswith(key + ":")), [])


def _user(tree: Tree) -> int | None:
    return _number(_status_line(tree, "Uid"), 1)


def _capabilities(tree: Tree) -> frozenset[int]:
    words = _status_line(tree, "CapEff")
    bits = int(words[0], 16) if words and re.fullmatch(r"[0-9a-fA-F]{1,16}", words[0]) else 0
    return frozenset(number for number in range(64) if bits >> number & 1)


def _open_files(tree: Tree) -> int | None:
    """The hard limit of open files, which the daemon raises its own to; None: not known, or none."""
    for line in (tree.text("proc/self/limits") or "").splitlines():
        if line.startswith("Max open files"):
            return _number(line.split(), 4)
    return None


def _state_directory(tree: Tree, path: str) -> Attempt:
    """Whether it can be written to, or made where it is not there yet."""
    place = path
    while not tree.there(place) and place.strip("/"):
        place = os.path.dirname(place)
    if os.access(tree.full(place), os.W_OK | os.X_OK):
        return Attempt(path)
    return Attempt(path, f"{place} cannot be written to")
