"""Programs of Debian's that tests run as they are (proxies, Prometheus, libsystemd), unpacked in .build, not installed.

    python -m tests.support.programs      fetches what is missing, into .build/debian; quick when all is there

Must not: install packages, start services, touch the system's package lists; needs no root. Upstream: setup.sh.
Downstream: tests/component/test_proxies.py, tests/support/prometheus.py, tests/support/sdevent.py. What the system has
is used as it is.
"""

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOME = os.path.join(REPOSITORY, ".build", "debian")
ROOT = os.path.join(HOME, "root")
STAMP = os.path.join(HOME, "stamp")

# Each with the packages that it depends on and that are missing here.
PROXIES = ("nginx", "haproxy")
# Alone: what these packages depend on beside themselves is for managing certificates, and for pages to look at.
# promtool is a package of its own from Debian 13 on; before that it is in prometheus.
ALONE = ("caddy", "prometheus", "promtool", "prometheus-alertmanager")
# Other guards of memory, that the benchmarks run beside this one.
GUARDS = ("earlyoom", "nohang")
# The first with sd_event_add_memory_pressure(3) is 254; Debian 12 has 252, and 254 among its backports.
LIBRARY = ("libsystemd0", "libsystemd-dev")
BACKPORTS = {"bookworm": "bookworm-backports"}


def find(name: str) -> str | None:
    """The program's path; None: neither the system has it nor has it been fetched."""
    system = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return shutil.which(name, path=system) or shutil.which(name, path=f"{ROOT}/usr/sbin:{ROOT}/usr/bin")


def environment() -> dict[str, str]:
    """What a fetched program needs to find the libraries that were fetched with it; others take no harm."""
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(library_directories())}


def library_directories() -> list[str]:
    """Where fetched libraries are."""
    return sorted(glob.glob(f"{ROOT}/usr/lib/*-linux-*") + glob.glob(f"{ROOT}/lib/*-linux-*"))


def main() -> int:
    """Fetch. Returns the exit status."""
    if shutil.which("apt-get") is None:
        print("setup: no apt-get here: tests with nginx, HAProxy, Caddy, Prometheus and libsystemd are skipped by name")
        return 0
    mark = _mark()
    if os.path.exists(STAMP):
        with open(STAMP) as file:
            if file.read() == mark:
                return 0
    shutil.rmtree(HOME, ignore_errors=True)
    os.makedirs(f"{HOME}/archives/partial")
    os.makedirs(f"{HOME}/lists/partial")
    print(
        "setup: unpacking Debian packages into .build/debian, for tests alone: proxies, Prometheus, rivals, libsystemd"
    )
    try:
        _fetch()
    except subprocess.CalledProcessError as failed:
        print((failed.stdout or "")[-2000:], file=sys.stderr)
        print(f"setup: cannot fetch Debian packages: {' '.join(failed.cmd)} failed, see above", file=sys.stderr)
        print("setup: without them tests with proxies, Prometheus and libsystemd are skipped by name", file=sys.stderr)
        # Whoever is off the net may work on; a machine that is to show that all is well may not.
        return 1 if os.environ.get("CI") else 0
    for left in ("archives", "lists"):
        shutil.rmtree(f"{HOME}/{left}")
    with open(STAMP, "w") as file:
        file.write(mark)
    return 0


def _fetch() -> None:
    os.makedirs(f"{HOME}/sources")
    for path in glob.glob("/etc/apt/sources.list.d/*"):
        os.symlink(path, f"{HOME}/sources/{os.path.basename(path)}")
    release = _release()
    backports = BACKPORTS.get(release)
    if backports is not None:
        with open(f"{HOME}/sources/edgeguardd-tests.sources", "w") as file:
            file.write("".join(_sources(release, backports)))
    _apt("update")
    wanted = [name for name in PROXIES if find(name) is None]
    if wanted:
        _apt("install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    alone = [name for name in (*ALONE, *GUARDS) if find(name) is None and _known(name)]
    versions = [f"{name}/{backports}" if backports else name for name in LIBRARY]
    _apt("download", *alone, *versions)
    for package in glob.glob(f"{HOME}/archives/*.deb"):
        _run(["dpkg-deb", "--extract", package, ROOT])


def _apt(verb: str, *arguments: str) -> None:
    _run(["apt-get", "--quiet", *_options(), verb, *arguments])


def _options() -> list[str]:
    """Lists, archives and locks of our own; only which packages are installed is read from the system."""
    settings = {
        "Dir::Etc::sourceparts": f"{HOME}/sources",
        "Dir::State::lists": f"{HOME}/lists",
        "Dir::Cache": HOME,
        "Dir::Cache::archives": f"{HOME}/archives",
        "Debug::NoLocking": "true",
        # Nobody else's files may be read by the unprivileged user that apt would become.
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("--option", f"{name}={value}")]


def _run(argv: Sequence[str]) -> None:
    subprocess.run(
        argv,
        check=True,
        cwd=f"{HOME}/archives",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def _known(name: str) -> bool:
    shown = subprocess.run(["apt-cache", *_options(), "show", name], capture_output=True, check=False)
    return shown.returncode == 0 and bool(shown.stdout)


def _release() -> str:
    """The code name of the distribution, such as bookworm."""
    try:
        with open("/etc/os-release") as file:
            found = re.search(r"^VERSION_CODENAME=\"?(\w+)", file.read(), re.MULTILINE)
    except OSError:
        return ""
    return found.group(1) if found else ""


def _sources(release: str, wanted: str) -> Iterator[str]:
    """From where this machine has `release`, it has `wanted` as well."""
    for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]:
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        if path.endswith(".sources"):
            for stanza in re.split(r"\n\s*\n", text):
                if re.search(rf"^Suites:.*\b{release}(\s|$)", stanza, re.MULTILINE):
                    yield re.sub(r"^Suites:.*$", f"Suites: {wanted}", stanza.strip(), flags=re.MULTILINE) + "\n\n"
        elif path.endswith(".list"):
            for line in re.finditer(rf"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+{release}\s+(.*)$", text, re.MULTILINE):
                options, address, components = line.groups()
                signed = re.search(r"signed-by=(\S+)", options or "")
                yield f"Types: deb\nURIs: {address}\nSuites: {wanted}\nComponents: {components}\n"
                yield f"Signed-By: {signed.group(1)}\n\n" if signed else "\n"


def _mark() -> str:
    """Changes when this file does, or the system."""
    with open(__file__, "rb") as file:
        return hashlib.sha256(file.read() + _release().encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
