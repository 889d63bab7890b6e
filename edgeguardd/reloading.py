"""What a reload says before it is in force: what only a restart can change, and that no target is left.

Must not: refuse or change anything; a configuration that can be read is obeyed. Upstream: core.config. Downstream:
daemon.
"""

from edgeguardd.core.config import Config
from edgeguardd.logs import get_logger

# What only a restart can change, beside some of the socket's, the gate's and the pressure watches'.
AT_START = ("http", "log", "cgroup_root", "max_targets", "recorder", "kernel_log", "delays", "state_directory")

log = get_logger()


def tell(started_with: Config, old: Config, new: Config, path: str | None) -> None:
    """One line each. `path`: the file, None where there is none."""
    kept = _needs_restart(started_with, new)
    if kept:
        log.warning("restart_needed", settings=kept)
    if old.targets and not new.targets:
        # An editor, or a copy onto a full disk, leaves an empty file, which is a valid one.
        log.warning(
            "no_targets_left",
            targets=0,
            was=len(old.targets),
            configuration=path,
            remedy="if that is not meant, write the [[target]] tables again and reload",
        )


def _needs_restart(old: Config, new: Config) -> list[str]:
    """The settings that differ and that only a restart can change."""
    changed = [name for name in AT_START if getattr(old, name) != getattr(new, name)]
    if old.pressure_watches != new.pressure_watches:
        changed.append("pressure_watch")
    changed += [f"gate.{n}" for n in ("agent_port", "agent_address") if getattr(old.gate, n) != getattr(new.gate, n)]
    socket = [name for name in ("path", "mode", "group") if getattr(old.socket, name) != getattr(new.socket, name)]
    return changed + [f"socket.{name}" for name in socket]
