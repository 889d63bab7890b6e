"""Which texts can be a path, a cgroup, a unit, a name: one check each, ValueError("what is wrong; remedy").

Must not: look whether the thing exists. Upstream: nothing. Downstream: configtable.
"""

import difflib
import ipaddress
import re
import signal

from edgeguardd.core.configkinds import quoted

# sun_path holds 108 bytes with its closing NUL (unix(7)).
MAX_SOCKET_PATH_BYTES = 107
MAX_UNIT_CHARS = 255  # systemd's UNIT_NAME_MAX, less its closing NUL
MAX_COMM_BYTES = 15
MAX_GID = 2**32 - 2  # 2^32 - 1 means "no group" to the kernel
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")

_UNIT = re.compile(
    r"(?:[A-Za-z0-9:_.-]|\\x[0-9a-f]{2})+(?:@(?:[A-Za-z0-9:_.-]|\\x[0-9a-f]{2})+)?\.(service|slice|scope)"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,63}")
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")


def check_absolute(path: str) -> None:
    """Refuse what is no plain absolute path below the root."""
    if not path.startswith("/"):
        raise ValueError('the path is not absolute; begin it with "/"')
    if not path.isprintable():
        raise ValueError("the path holds control characters; take them out")
    if any(part in {"", ".", ".."} for part in path[1:].split("/")):
        raise ValueError('the path has an empty, "." or ".." part; write it out plainly, without a "/" at the end')


def check_socket_path(path: str) -> None:
    """A path that bind(2) takes."""
    check_absolute(path)
    length = len(path.encode())
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"a socket path has at most {MAX_SOCKET_PATH_BYTES} bytes and this one has {length}; choose a shorter one"
        )


def check_cgroup_path(path: str) -> None:
    """A cgroup's path as /proc/PID/cgroup shows it."""
    if path == "/":
        raise ValueError("the root cgroup has no limit and no memory.events; name a cgroup below it")
    if path.startswith("/sys/fs/cgroup/"):
        raise ValueError(f"paths are below the cgroup root already; write {quoted(path[len('/sys/fs/cgroup') :])}")
    check_absolute(path)


def check_cgroup_glob(pattern: str) -> None:
    """A cgroup path with at least one wildcard."""
    check_cgroup_path(pattern)
    if not any(char in pattern for char in "*?["):
        raise ValueError("there is no *, ? or [ in it; write it as path instead")


def check_unit(unit: str) -> None:
    """A systemd unit that has a cgroup of its own."""
    if unit == "-.slice":
        raise ValueError("the root slice has no limit of its own; name a unit below it")
    if "@." in unit:
        raise ValueError('a template has no cgroup; name an instance such as "llama@main.service"')
    if len(unit) > MAX_UNIT_CHARS or not _UNIT.fullmatch(unit):
        raise ValueError(
            "it is no name of a .service, .slice or .scope; write it as `systemctl status` shows it, "
            "\"-\" in a path escaped as '\\x2d'"
        )


def check_name(name: str) -> None:
    """The name of a target or a rule: what the protocol, the log and metric labels call it."""
    if name == "self":
        raise ValueError('"self" is what a subscriber calls the cgroup it lives in; choose another name')
    if not _NAME.fullmatch(name):
        raise ValueError("a name is 1 to 64 letters, digits and _ . : @ - and begins with a letter or digit; change it")


def check_device(name: str) -> None:
    """A device's name, in the log and metric labels."""
    if not _NAME.fullmatch(name):
        raise ValueError("a name is 1 to 64 letters, digits and _ . : @ - and begins with a letter or digit; change it")


def check_service(unit: str) -> None:
    """A systemd unit that can be restarted as one: slices only hold others, scopes are not systemd's to start."""
    check_unit(unit)
    if not unit.endswith(".service"):
        raise ValueError("only a .service can be restarted; name the one that runs the server")


def check_executable(path: str) -> None:
    """A program's path, as the kernel has it."""
    check_absolute(path)
    if path.endswith(" (deleted)"):
        raise ValueError('" (deleted)" is how the kernel marks a replaced file, and no part of its path; leave it out')


def check_comm(comm: str) -> None:
    """A process's name as the kernel keeps it: TASK_COMM_LEN, 16 bytes with the closing NUL."""
    raw = comm.encode()
    if not raw or "\n" in comm:
        raise ValueError("a process's name is 1 to 15 bytes of one line; write it as /proc/PID/comm shows it")
    if len(raw) > MAX_COMM_BYTES:
        kept = raw[:MAX_COMM_BYTES].decode(errors="ignore")
        raise ValueError(f"the kernel keeps {MAX_COMM_BYTES} bytes of a name; write {quoted(kept)} if that is meant")


def check_signal(name: str) -> None:
    """A signal's name, as kill(1) lists it with SIG in front."""
    known = list(signal.Signals.__members__)
    if name in known:
        return
    near = difflib.get_close_matches(name[:20].upper(), known, n=1, cutoff=0.5)
    raise ValueError(f'there is no such signal; write "{near[0] if near else "SIGTERM"}", as `kill -l` lists it')


def check_group(group: str) -> None:
    """A group's name or number, as chown takes it."""
    if not _GROUP.fullmatch(group) or (group.isdigit() and int(group) > MAX_GID):
        raise ValueError('it is no name or number of a group; write one from /etc/group, such as "edgeguardd"')


def check_address(address: str) -> None:
    """An address to listen on."""
    if address == "localhost":
        return
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError('it is no IP address; write "127.0.0.1", "::1" or "localhost", the port by itself') from None
    if parsed.is_multicast or parsed == _BROADCAST:
        raise ValueError('it is an address of many machines; write one of this machine\'s own, or "127.0.0.1"')
    if isinstance(parsed, ipaddress.IPv6Address):
        _check_ipv6(parsed)


def _check_ipv6(address: ipaddress.IPv6Address) -> None:
    """Refuse what bind() answers with EINVAL whatever interfaces there are, ipv6(7)."""
    if address.ipv4_mapped is not None:
        raise ValueError(f'it is an IPv4 address in IPv6 form; write "{address.ipv4_mapped}"')
    if address.is_link_local and address.scope_id is None:
        raise ValueError(f'a link-local address needs its interface; write "{address}%eth0", as `ip link` names it')
