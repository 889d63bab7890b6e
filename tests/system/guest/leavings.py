"""What an installation leaves behind: files, users, units, as they were before it and as they are after a purge.

Must not: look at what the tests or the machine's own life make. Upstream: the first test and the last one.
Downstream: the file system.
"""

import json
import os
import subprocess

MEMORY = "/var/tmp/eg-before.json"
PLACES = ("/etc", "/lib", "/opt", "/root", "/run", "/srv", "/usr", "/var")
# Thousands of files of other packages, looked at for nothing.
VAST = ("/usr/lib/modules", "/usr/lib/python3*", "/usr/lib/x86_64-linux-gnu", "/usr/share/perl*", "/usr/share/zoneinfo")
# The machine's own life, and the tests themselves.
OTHERS = (
    "/opt/edgeguardd-tests",
    "/root/.",
    "/run/adduser",
    "/run/log",
    "/run/systemd",
    "/run/udev",
    "/run/user",
    "/run/utmp",
    "/usr/share/mime",
    "/var/backups",
    "/var/cache",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/private",
    "/var/lib/systemd/random-seed",
    "/var/lib/systemd/timers",
    "/var/log",
    "/var/tmp",
)


def remember() -> None:
    """Write down how it is before the package comes; once."""
    if not os.path.exists(MEMORY):
        with open(MEMORY, "w") as file:
            json.dump(sorted(found()), file)


def new() -> list[str]:
    """What is there now, and was not before."""
    with open(MEMORY) as file:
        return sorted(found() - set(json.load(file)))


def found() -> set[str]:
    """Every file's path, units among them; users and groups as `user:NAME` and `group:NAME`."""
    skipped = [word for path in VAST for word in ("-path", path, "-prune", "-o")]
    argv = ["find", *PLACES, "-xdev", *skipped, "-print"]
    walk = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300).stdout.splitlines()
    names = {path for path in walk if not path.startswith(OTHERS)}
    for kind, database in (("user", "passwd"), ("group", "group")):
        with open(f"/etc/{database}") as file:
            names |= {f"{kind}:{line.split(':')[0]}" for line in file}
    return names
