"""`make mutate`: mutmut plants faults in what decides; a table of how many the tests saw, and those that they did not.

Must not: work in the checkout, whose files the faults would be planted beside. Upstream: [tool.mutmut] in
pyproject.toml. Downstream: mutmut. Exits with 1 when fewer than WANTED were seen.
"""

import collections
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLACE = os.path.join(ROOT, ".build", "mutation")
COPIED = ("edgeguardd", "tests", "docs", "packaging", "systemd", "pyproject.toml")
WANTED = 0.90
SHOWN = 4000
# A fault that makes a test hang or die is seen as well as one that makes it fail.
SEEN = frozenset({"killed", "timeout", "suspicious", "segfault"})


def main() -> int:
    """Run all of it; the exit status."""
    for name in COPIED:
        target = os.path.join(PLACE, name)
        if os.path.isdir(os.path.join(ROOT, name)):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(os.path.join(ROOT, name), target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(os.path.join(ROOT, name), target)
    mutmut = [sys.executable, "-m", "mutmut"]
    ran = subprocess.run(
        [*mutmut, "run", *sys.argv[1:]],
        cwd=PLACE,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode:
        print(f"cannot plant faults: mutmut ended with status {ran.returncode}; it said last:\n{ran.stdout[-SHOWN:]}")
        return 1
    listed = subprocess.run(
        [*mutmut, "results", "--all", "true"], cwd=PLACE, check=True, capture_output=True, text=True
    )
    verdicts = [tuple(line.strip().rsplit(": ", 1)) for line in listed.stdout.splitlines() if ": " in line]
    return report([(name, verdict) for name, verdict in verdicts if verdict != "not checked"])


def report(verdicts: list[tuple[str, str]]) -> int:
    """Print the table and what was not seen; 1 if that was too much, or nothing was planted."""
    planted: collections.Counter[str] = collections.Counter()
    seen: collections.Counter[str] = collections.Counter()
    for name, verdict in verdicts:
        module = ".".join(name.split(".")[1:3])
        planted[module] += 1
        seen[module] += verdict in SEEN
    print("| module | faults planted | seen by a test | share |\n|---|---|---|---|")
    for module in sorted(planted):
        print(f"| {module} | {planted[module]} | {seen[module]} | {seen[module] / planted[module]:.1%} |")
    share = seen.total() / planted.total() if planted else 0.0
    print(f"| all | {planted.total()} | {seen.total()} | {share:.1%} |")
    unseen = [f"{name} ({verdict})" for name, verdict in verdicts if verdict not in SEEN]
    print("\nnot seen, to be looked at with `mutmut show NAME` in .build/mutation:", *unseen, sep="\n  ")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
