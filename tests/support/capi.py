"""Builds programs on the C client, as a server's author would.

Must not: know what they do. Upstream: packaging/c. Downstream: tests of the C client, tests.fuzz.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

from tests.support.running import REPOSITORY

SOURCES = os.path.join(REPOSITORY, "packaging/c")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compilers() -> list[str]:
    """The C compilers that are here; one at least, since setup.sh installs it."""
    found = [name for name in ("gcc", "clang") if shutil.which(name)]
    return found or ["cc"]


def build(directory: str, program: str, options: Sequence[str] = (), compiler: str = "") -> str:
    """Compile a program with the client, warnings being errors; its path. `program` is in packaging/c, or absolute."""
    output = os.path.join(directory, os.path.basename(program).removesuffix(".c"))
    compiler = compiler or compilers()[0]
    argv = [compiler, *STRICT, *options, f"-I{SOURCES}", os.path.join(SOURCES, program)]
    done = subprocess.run(
        [*argv, os.path.join(SOURCES, "edgeguardd.c"), "-o", output], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return output
