"""`systemctl restart UNIT`, waited for to its end and never for ever.

Must not: run a shell, look for a program in PATH, take a unit's name unchecked. Upstream: asyncio, systemctl.
Downstream: lastresort.
"""

import asyncio
import contextlib
import os
from typing import Final

from edgeguardd.core.confignames import check_unit
from edgeguardd.core.text import printable
from edgeguardd.errors import KernelError

SYSTEMCTL: Final = ("/usr/bin/systemctl", "/bin/systemctl")

# systemd gives a service 90 s to stop before it kills it (DefaultTimeoutStopSec, systemd-system.conf(5)).
WITHIN_S: Final = 100.0
MAX_ANSWER_CHARS: Final = 400

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


async def restart_unit(unit: str | None, places: tuple[str, ...] = SYSTEMCTL) -> str:
    """Restart the service; the name that was restarted. Raises KernelError with what systemctl says.

    Without --no-block, which would only say that a job was queued: the exit status tells what became of it. When the
    time is up systemctl is ended; the job goes on.
    """
    name, program = checked(unit), _program(places)
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *("restart", "--no-ask-password", "--", name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRONMENT,
        )
    except OSError as error:
        raise KernelError(f"cannot run {program}: {error.strerror}; let the daemon execute it") from None
    try:
        async with asyncio.timeout(WITHIN_S):
            _, answer = await process.communicate()
    except TimeoutError:
        raise KernelError(
            f"cannot say that {name} was restarted: not within {WITHIN_S:.0f} s, its job goes on; "
            "look at systemctl list-jobs"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    if process.returncode != 0:
        said = printable(answer.decode("utf-8", "replace").strip().replace("\n", " "), MAX_ANSWER_CHARS)
        raise KernelError(
            f"cannot restart {name}: systemctl ended with status {process.returncode} ({said}); "
            f"look at systemctl status {name}"
        )
    return name


def checked(unit: str | None) -> str:
    """The unit's name, if it is a service's. Raises KernelError."""
    if unit is None:
        raise KernelError("cannot restart it: no unit is named; name the target by unit, or set unit in the step")
    try:
        check_unit(unit)
    except ValueError as error:
        raise KernelError(f"cannot restart {printable(unit, MAX_ANSWER_CHARS)}: {error}") from None
    if not unit.endswith(".service"):
        raise KernelError(f"cannot restart {unit}: only a service can be restarted; name one")
    return unit


def _program(places: tuple[str, ...]) -> str:
    for place in places:
        if os.access(place, os.X_OK):
            return place
    raise KernelError(f"cannot restart units: there is no {places[0]}; choose another last resort on this machine")
