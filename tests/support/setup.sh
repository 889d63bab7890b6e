#!/usr/bin/env bash
# Brings a checkout to where `make demo` and `make test` run: system packages, .venv, the shim for user-mode Linux, and
# the proxies and libraries that tests run as Debian has them, unpacked in .build. Says what it installs. Quick when all
# is there. As root it installs Debian packages; otherwise it prints the one line to run. Needs nothing but git, make and
# bash to begin with.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=.venv
stamp=$venv/setup-stamp
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# The newest Python that is new enough and can make virtual environments; tried by running it, because version
# managers put names on PATH that refuse to run.
python() {
    local name
    for name in python3.15 python3.14 python3.13 python3.12 python3.11 python3; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
}

linux_uml() { have linux.uml || [ -x /usr/bin/linux.uml ] || [ -n "${LINUX_UML:-}" ]; }

# What shows the page in tests; the names that tests/support/browser.py knows.
browser() { have chromium || have chromium-browser || have chromium-headless-shell || have google-chrome; }

missing_packages() {
    # Its own loading of unit files is compared with the audit's.
    [ -x /usr/lib/systemd/systemd ] || [ -x /lib/systemd/systemd ] || echo systemd
    [ -n "$(python)" ] || echo python3 python3-venv
    browser || echo chromium fonts-dejavu-core
    if [ "$(uname -m)" = x86_64 ]; then
        linux_uml || echo user-mode-linux
    fi
    have cc || echo gcc libc6-dev
}

install_packages() {
    local wanted
    read -r -d '' -a wanted < <(missing_packages && printf '\0') || true
    [ "${#wanted[@]}" -gt 0 ] || return 0
    have apt-get || fail "cannot install ${wanted[*]}: no apt-get here; install what they stand for and run again"
    [ "$(id -u)" = 0 ] || fail "cannot install without root; run: sudo apt-get install ${wanted[*]}"
    say "installing Debian packages: ${wanted[*]}"
    local log
    log=$(mktemp)
    if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${wanted[@]}"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "cannot install ${wanted[*]}: see above; run: apt-get update && apt-get install ${wanted[*]}"
    fi
    rm -f "$log"
}

fingerprint() { cat pyproject.toml tests/support/setup.sh | sha256sum; }

make_venv() {
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    local chosen
    chosen=$(python)
    [ -n "$chosen" ] || fail "cannot find Python 3.11 or newer with venv: Debian 12 or newer has it"
    say "making $venv with $("$chosen" --version) and installing edgeguardd with its development tools into it"
    "$chosen" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -qq --editable '.[dev]' </dev/null
    fingerprint >"$stamp"
}

make_shim() {
    [ "$(uname -m)" = x86_64 ] || return 0
    "$venv/bin/python" -m tests.support.uml.preload >/dev/null
}

fetch_programs() { "$venv/bin/python" -m tests.support.programs; }

install_packages
make_venv
make_shim
fetch_programs
