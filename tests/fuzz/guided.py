"""Fuzzing with a guide: atheris (libFuzzer) where it is installed, else seeded damage without one.

Must not: judge inputs (targets does). Upstream: child, kept, seeds. Downstream: __main__, the torture.
What is found new goes to a directory of its own; the least of it that covers the same is kept as text.
"""

import glob
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

from msgspec import Struct

from tests.fuzz import kept, seeds
from tests.fuzz.mutate import TOKENS

# What takes longer for one input, or more memory, is a finding.
MOST_INPUT_S = 20
MOST_MIB = 1024
MAX_INPUT_BYTES = 64 * 1024
# For the start, and for libFuzzer to end what it is at.
SPARE_S = 120
SHOWN_LINES = 40


class Outcome(Struct, frozen=True):
    """One run of one part. coverage: edges of the code that inputs have reached; None: nobody counted."""

    part: str
    inputs: int
    took_s: float
    coverage: int | None
    kept: int
    failure: str | None

    @property
    def sentence(self) -> str:
        """For people."""
        covered = "unguided" if self.coverage is None else f"{self.coverage} edges covered"
        crashes = "no crash" if self.failure is None else "A CRASH"
        return f"{self.part}: {self.inputs} inputs in {self.took_s:.0f} s, {covered}, {self.kept} kept, {crashes}"


def is_guided() -> bool:
    """Whether atheris is here."""
    return importlib.util.find_spec("atheris") is not None


def run(part: str, seconds: float, seed: int, *, keep: bool) -> Outcome:
    """Fuzz one part for so long, in a process of its own. keep: the corpus as text is written anew."""
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(f"{directory}/found")
        os.mkdir(f"{directory}/begin")
        for number, data in enumerate([*kept.load(part), *seeds.of(part)]):
            with open(f"{directory}/begin/{number:05}", "wb") as file:
                file.write(data)
        began = time.monotonic()
        status, said = _child(part, seconds, seed, directory)
        took_s = time.monotonic() - began
        failure = None if status == 0 else _failure(said, directory)
        if keep and is_guided() and failure is None:
            kept.save(part, _least(part, directory))
        inputs = _last(r"number_of_executed_units: (\d+)", said) or _last(r"^#(\d+)", said) or 0
        coverage = _last(r"cov: (\d+)", said) if is_guided() else None
        return Outcome(part, inputs, took_s, coverage, len(kept.load(part)), failure)


def _child(part: str, seconds: float, seed: int, directory: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.fuzz.child", part]
    command += _arguments(seconds, seed, directory) if is_guided() else [str(seconds), str(seed), directory]
    with open(f"{directory}/said", "w+b") as said:
        try:
            ended = subprocess.run(command, stdout=said, stderr=said, timeout=seconds + SPARE_S, check=False)
            status = ended.returncode
        except subprocess.TimeoutExpired:
            status = -1
        said.seek(0)
        return status, said.read().decode("utf-8", "replace")


def _arguments(seconds: float, seed: int, directory: str) -> list[str]:
    """libFuzzer's."""
    with open(f"{directory}/tokens", "w", encoding="ascii") as file:
        for token in TOKENS:
            if len(token) <= 64:
                file.write('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n')
    return [
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={MOST_INPUT_S}",
        f"-rss_limit_mb={MOST_MIB}",
        f"-artifact_prefix={directory}/crash-",
        f"-dict={directory}/tokens",
        "-print_final_stats=1",
        f"{directory}/found",
        f"{directory}/begin",
    ]


def _least(part: str, directory: str) -> list[bytes]:
    """Of all that is there, as few as cover the same."""
    merged, again = f"{directory}/merged", f"{directory}/again"
    os.mkdir(merged)
    with open(again, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tests.fuzz.child {part} "$@"\n')
    os.chmod(again, 0o700)
    merge = ["-merge=1", f"-max_len={kept.MAX_KEPT_BYTES}", merged, f"{directory}/begin", f"{directory}/found"]
    # libFuzzer calls itself for a merge, by the name that it was called by.
    subprocess.run(
        [sys.executable, "-m", "tests.fuzz.child", part, *merge],
        env={**os.environ, "EDGEGUARDD_FUZZ_AGAIN": again},
        capture_output=True,
        timeout=600,
        check=True,
    )
    found = []
    for path in glob.glob(f"{merged}/*"):
        with open(path, "rb") as file:
            found.append(file.read())
    return found


def _failure(said: str, directory: str) -> str:
    """The end of what it said, and the input as a line for the corpus."""
    lines = [line for line in said.splitlines() if not re.match(r"#\d+\t|INFO:", line)]
    found = "\n".join(lines[-SHOWN_LINES:])
    for path in glob.glob(f"{directory}/*-*"):
        with open(path, "rb") as file:
            found += f"\nthe input, as a line of the corpus: {kept.escaped(file.read())}"
    return found


def _last(pattern: str, said: str) -> int | None:
    found = re.findall(pattern, said, re.MULTILINE)
    return int(found[-1]) if found else None
