"""A small program linked to libsystemd: what any service built on sd-event does about memory pressure.

Must not: know the daemon. Upstream: programs (where libsystemd is). Downstream: tests/component/test_pressure_watch.py.
"""

import ctypes
import os
import shutil
import subprocess

from tests.support import programs

MISSING = "no libsystemd of at least 254 (sd_event_add_memory_pressure), or no C compiler: run make setup"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sdevent_program.c")


def library() -> str | None:
    """The directory of a libsystemd that can watch memory pressure, its header beside it; None: there is none."""
    if shutil.which("cc") is None or not os.path.exists(f"{programs.ROOT}/usr/include/systemd/sd-event.h"):
        return None
    for directory in programs.library_directories():
        path = f"{directory}/libsystemd.so.0"
        if os.path.exists(path) and hasattr(ctypes.CDLL(path), "sd_event_add_memory_pressure"):
            return directory
    return None


def environment() -> dict[str, str]:
    """What the program needs to run."""
    return {"LD_LIBRARY_PATH": library() or ""}


def built(directory: str) -> str:
    """The program, compiled and linked there."""
    path = os.path.join(directory, "sdevent")
    include = f"{programs.ROOT}/usr/include"
    argv = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-isystem{include}", SOURCE, "-o", path]
    subprocess.run([*argv, f"-L{library()}", "-lsystemd"], check=True)
    return path
