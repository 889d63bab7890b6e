#!/bin/sh
# Brings edgeguardd to many boxes over ssh: package, configuration, drop-in; proves that each is ready; writes Prometheus'
# list of them. Run again at any time: a box that has all of it already is only asked whether it is ready.
#
#     rollout.sh [-c CONFIGURATION] [-d DROP-IN] [-o TARGETS.json] [-p PORT] PACKAGE.deb BOXES
#
# BOXES: one a line, as ssh takes it (root@box1), then, where Prometheus knows the box by another name, that name.
# SUDO="sudo -n" for boxes whose user is not root. One box that fails stops no other; the exit status is 1 then.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,/^set -u/{s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
fail() { printf 'rollout: %s\n' "$*" >&2; exit 2; }

configuration='' drop_in='' output='' port=9464
while getopts c:d:o:p: option; do
    case $option in
        c) configuration=$OPTARG ;;
        d) drop_in=$OPTARG ;;
        o) output=$OPTARG ;;
        p) port=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 2 ] || usage
package=$1 boxes=$2
for file in "$package" "$boxes" ${configuration:+"$configuration"} ${drop_in:+"$drop_in"}; do
    [ -r "$file" ] || fail "cannot read $file: name a file that can be read"
done
case $port in '' | *[!0-9]*) fail "cannot use port $port: a number from 1 to 65535" ;; esac
version=$(dpkg-deb --field "$package" Version) || fail "cannot use $package: no Debian package; make one with 'make deb'"

# A box that is off, or hangs, is given up; none asks for a password in the middle of the night.
options='-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4'
work=$(mktemp -d) || fail "cannot make a temporary directory"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# What is said of a failure is the last line that a step wrote.
step() {
    "$@" >"$work/said" 2>&1 </dev/null && return 0
    printf 'FAILED: %s\n' "$(tail -n 1 "$work/said")"
    return 1
}
# shellcheck disable=SC2086  # several words each, on purpose
on() { box=$1; shift; ssh -n $options "$box" "$@"; }
# shellcheck disable=SC2086
to() { box=$1; shift; scp -q $options "$@" "$box:.edgeguardd-rollout/"; }
# shellcheck disable=SC2086,SC2029
apply() { ssh $options "$1" "${SUDO:-} sh -s -- .edgeguardd-rollout '$version'" <"$here/on-box.sh"; }

roll_out() {
    step on "$1" 'rm -rf .edgeguardd-rollout && mkdir -m 700 .edgeguardd-rollout' || return 1
    step on "$1" "dpkg-query --show --showformat='\${db:Status-Status} \${Version}\n' edgeguardd || true" || return 1
    if [ "$(tail -n 1 "$work/said")" != "installed $version" ]; then
        cp "$package" "$work/edgeguardd.deb" && step to "$1" "$work/edgeguardd.deb" || return 1
    fi
    if [ -n "$configuration" ]; then
        cp "$configuration" "$work/edgeguardd.toml" && step to "$1" "$work/edgeguardd.toml" || return 1
    fi
    if [ -n "$drop_in" ]; then
        cp "$drop_in" "$work/rollout.conf" && step to "$1" "$work/rollout.conf" || return 1
    fi
    apply "$1" >"$work/said" 2>&1 || { printf 'FAILED: %s\n' "$(tail -n 1 "$work/said")"; return 1; }
    tail -n 1 "$work/said"
}

all=0 failed='' listed=''
while read -r box name rest || [ -n "$box" ]; do
    case $box in '' | '#'*) continue ;; esac
    all=$((all + 1))
    case "$box${name:-}${rest:-}" in
        -* | *[!A-Za-z0-9@._:-]*) fail "cannot use the line '$box ${name:-} ${rest:-}' of $boxes: a box, and a name" ;;
    esac
    [ -z "${rest:-}" ] || fail "cannot use the line of $box in $boxes: a box and a name, no more"
    shown=${box#*@}
    listed="$listed${listed:+,}
  {\"targets\": [\"${name:-$shown}:$port\"], \"labels\": {\"box\": \"$shown\"}}"
    printf '%s: ' "$shown"
    roll_out "$box" || failed="$failed $shown"
done <"$boxes"
[ "$all" -gt 0 ] || fail "cannot find a box in $boxes: one a line"

# All of them, those that failed too: that one is away is what Prometheus is there to tell.
if [ -n "$output" ]; then
    { printf '[%s\n]\n' "$listed" >"$output.new" && mv "$output.new" "$output"; } || fail "cannot write $output"
fi
# shellcheck disable=SC2086
set -- $failed
printf '%s of %s ready%s\n' $((all - $#)) "$all" "${failed:+; failed:$failed}"
[ $# -eq 0 ]
