"""Builds xstate_preload.so, without which linux.uml panics on CPUs with a large register state.

Must not: fail where no compiler is; most CPUs need no shim. Upstream: xstate_preload.c. Downstream: runner, setup.sh.
"""

import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xstate_preload.c")
CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(SOURCE))))
# What the guest prints when the shim was needed and missing (arch/x86/um, 6.1: userspace() in skas/process.c).
SYMPTOM = "ptrace set fp regs failed"
REMEDY = "this CPU's register state needs a small shim that wants a C compiler: apt-get install gcc libc6-dev"


def built(directory: str | None = None) -> str | None:
    """The path of the shim, compiled if it is missing or older than its source; None where it cannot be."""
    directory = directory or os.path.join(CHECKOUT, ".build")
    library = os.path.join(directory, "xstate_preload.so")
    try:
        if os.path.getmtime(library) >= os.path.getmtime(SOURCE):
            return library
    except FileNotFoundError:
        pass
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    try:
        os.makedirs(directory, exist_ok=True)
        # Compiled beside its place and renamed: two test runs at once never see half a library.
        scratch = tempfile.mkdtemp(dir=directory)
    except OSError:
        return None
    try:
        fresh = os.path.join(scratch, "shim.so")
        command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", fresh, SOURCE]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
            return None
        os.replace(fresh, library)
    finally:
        shutil.rmtree(scratch)
    return library


if __name__ == "__main__":
    sys.stdout.write(f"{built() or REMEDY}\n")
