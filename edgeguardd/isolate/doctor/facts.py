"""What `edgeguardctl doctor` knows of a machine: plain values, as read, with no opinion.

Must not: read or judge. Upstream: gather (fills it). Downstream: checks, boards, rivals; `doctor --json` prints it.
None says everywhere: it could not be learned.
"""

from msgspec import Struct


class Attempt(Struct, frozen=True):
    """Whether something can be done, tried with the rights of whoever asks. `why_not`: the system's words, or None."""

    path: str
    why_not: str | None = None


class Swap(Struct, frozen=True):
    """One line of /proc/swaps."""

    name: str
    kind: str
    size_kb: int
    used_kb: int


class DaemonFacts(Struct, frozen=True):
    """What a running edgeguardd answers. `faults`: sentences of the ways that failed; `off`: HTTP is switched off."""

    http: str | None = None
    off: bool = False
    version: str | None = None
    healthy: bool | None = None
    health_text: str = ""
    ready: bool | None = None
    http_fault: str | None = None
    socket: str = ""
    socket_fault: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """One machine at one moment.

    release         the kernel's, as uname -r has it
    boot_options    the words of the kernel command line that have to do with memory, in order
    build_options   of the kernel's configuration, those that matter here; None: it is kept nowhere
    cgroup2         where cgroup v2 is mounted; memory_v1: where the v1 memory controller is
    tree            the cgroup v2 tree that is looked at; controllers, enabled: of its root (cgroup.controllers and
                    cgroup.subtree_control)
    memory_on       the kernel's own word (/proc/cgroups); kernels without v1 leave the row out
    sample          a cgroup that has memory files, and their names: what this kernel can do
    own_cgroup      where the asking process lives
    psi             "on", "off" (built in and switched off at boot), "absent"
    systemd         its version; 0: it does not run here
    board           what the device tree calls the machine; compatible: what it is compatible with
    l4t             NVIDIA's release of a Jetson, such as "R36"
    boot_files      where kernel parameters can be set here
    running         the other daemons that run, by name; None: no process can be seen
    capabilities    effective, by number
    """

    release: str | None = None
    architecture: str | None = None
    boot_options: tuple[str, ...] = ()
    build_options: dict[str, str] | None = None
    cgroup2: tuple[str, ...] = ()
    memory_v1: tuple[str, ...] = ()
    tree: str | None = None
    tree_writable: bool = True
    controllers: tuple[str, ...] | None = None
    enabled: tuple[str, ...] | None = None
    memory_on: bool | None = None
    sample: str | None = None
    sample_files: frozenset[str] = frozenset()
    own_cgroup: str | None = None
    container: str | None = None
    psi: str = "absent"
    memory_kb: int | None = None
    swaps: tuple[Swap, ...] | None = None
    sysctls: dict[str, int] = {}
    systemd: int | None = None
    board: str | None = None
    compatible: tuple[str, ...] = ()
    l4t: str | None = None
    nvmap: str | None = None
    boot_files: tuple[str, ...] = ()
    running: tuple[str, ...] | None = None
    hides_processes: bool = False
    user: int | None = None
    capabilities: frozenset[int] = frozenset()
    read_events: Attempt | None = None
    write_high: Attempt | None = None
    score: Attempt | None = None
    kernel_log: Attempt | None = None
    state_directory: Attempt | None = None
    open_files: int | None = None
    inotify_instances: int | None = None
    devices: tuple[str, ...] = ()
    daemon: DaemonFacts | None = None
