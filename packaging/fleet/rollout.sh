#!/bin/sh
# Brings edgeguardd to many boxes over ssh: package, configuration, drop-in; proves that each is ready; writes Prometheus'
# list of them. Run again at any time: a box that has all of it already is only asked whether it is ready.
#
#     rollout.sh [-c CONFIGURATION] [-d DROP-IN] [-o TARGETS.json] [-p PORT] PACKAGE.deb BOXES
#
# BOXES: one a line, USER@HOST or HOST (an IPv6 address in brackets; ports are ssh_config's), then, where Prometheus knows
# the box by another name, that name. SUDO="sudo -n" for boxes whose user is not root. What is given is checked before the
# first box is touched: exit status 2. One box that fails stops no other; the exit status is 1 then.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,/^set -u/{s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
fail() { printf 'rollout: %s\n' "$*" >&2; exit 2; }

configuration='' drop_in='' output='' port=9464
while getopts c:d:o:p: option; do
    [ "$option" = '?' ] && usage
    [ -n "$OPTARG" ] || fail "cannot use -$option: what it names is empty; leave it out, or name something"
    case $option in
        c) configuration=$OPTARG ;;
        d) drop_in=$OPTARG ;;
        o) output=$OPTARG ;;
        p) port=$OPTARG ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 2 ] || usage
package=$1 boxes=$2
for program in dpkg-deb ssh scp; do
    command -v "$program" >/dev/null || fail "cannot find $program: install dpkg and openssh-client"
done
for file in "$package" "$boxes" "$here/on-box.sh" ${configuration:+"$configuration"} ${drop_in:+"$drop_in"}; do
    [ -r "$file" ] && [ ! -d "$file" ] || fail "cannot read $file: name a file that can be read"
done
case $port in
    '' | 0* | *[!0-9]* | ??????*) port_is_one=false ;;
    *) [ "$port" -le 65535 ] && port_is_one=true || port_is_one=false ;;
esac
$port_is_one || fail "cannot use port $port: a number from 1 to 65535"
version=$(dpkg-deb --field "$package" Version) || fail "cannot use $package: no Debian package; make one with 'make deb'"
[ "$(dpkg-deb --field "$package" Package)" = edgeguardd ] || fail "cannot use $package: it is not edgeguardd's package"

# A box that is off, or hangs, is given up; none asks for a password in the middle of the night.
options='-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4'
work=$(mktemp -d) || fail "cannot make a temporary directory"
trap 'rm -rf "$work"' EXIT
# Copies: each box gets the same, whoever edits the files meanwhile, and a pipe can be read once only.
copy() { cat <"$1" >"$work/$2" || fail "cannot copy $1: see above"; }
copy "$package" edgeguardd.deb
copy "$boxes" boxes
[ -z "$configuration" ] || copy "$configuration" edgeguardd.toml
[ -z "$drop_in" ] || copy "$drop_in" rollout.conf

number=0
refuse() { fail "cannot use the line $number of $boxes: $*"; }
# A host's name or address. A line is not repeated where it may hold what a terminal acts on.
check_host() {
    case $1 in
        '') refuse "it names no host; write root@box1" ;;
        -*) refuse "$1 begins with a dash, which ssh takes for an option; write the host's name" ;;
        \[*:*\])
            inside=${1#\[}
            case ${inside%\]} in
                *[!A-Za-z0-9.:%_-]*) refuse "$1 is no IPv6 address; write [2001:db8::1]" ;;
            esac ;;
        *[][]*) refuse "$1 is no host; brackets are for an IPv6 address, [2001:db8::1]" ;;
        *:*:*) refuse "$1 is an IPv6 address; write it in brackets, [$1]" ;;
        *:*) refuse "$1 has a port; leave it out, and give ssh's port in ssh_config, Prometheus' with -p" ;;
        *[!A-Za-z0-9._-]*) refuse "$1 is no host name; write root@box1" ;;
    esac
}
check_line() {
    case "$box$name" in
        -*) refuse "it begins with a dash; a box, and a name" ;;
        *[!][A-Za-z0-9@._:%-]*) refuse "a character in it is in no host name; a box, and a name, plain line ends" ;;
    esac
    [ -z "$rest" ] || refuse "a box and a name, no more"
    case $box in @*) refuse "there is no user before the @; write root@box1" ;; esac
    case ${box#*@} in *@*) refuse "there is more than one @ in it; write root@box1" ;; esac
    check_host "${box#*@}"
    [ -z "$name" ] || check_host "$name"
}
# A host that was there before, with another user or in other letters, is one box all the same.
check_once() {
    key=$(printf '%s' "$2" | tr '[:upper:]' '[:lower:]')
    if grep -qxF -e "$key" "$work/$1"; then refuse "$2 is there twice; leave one out"; fi
    printf '%s\n' "$key" >>"$work/$1"
}

all=0 listed=''
: >"$work/hosts" && : >"$work/names" && : >"$work/checked"
while read -r box name rest || [ -n "$box" ]; do
    number=$((number + 1))
    case $box in '' | '#'*) continue ;; esac
    all=$((all + 1))
    check_line
    host=${box#*@}
    check_once hosts "$host"
    check_once names "${name:-$host}"
    shown=${host#\[} shown=${shown%\]}
    listed="$listed${listed:+,}
  {\"targets\": [\"${name:-$host}:$port\"], \"labels\": {\"box\": \"$shown\"}}"
    # scp takes an IPv6 address in brackets, ssh without.
    printf '%s %s %s\n' "$shown" "${box%"$host"}$shown" "$box" >>"$work/checked"
done <"$work/boxes"
[ "$all" -gt 0 ] || fail "cannot find a box in $boxes: one a line"

# All of them, those that fail too: that one is away is what Prometheus is there to tell. Hence it can be written first.
if [ -n "$output" ]; then
    case $output in -*) output=./$output ;; esac
    [ ! -d "$output" ] || fail "cannot write $output: it is a directory; name a file"
    (printf '[%s\n]\n' "$listed" >"$output.new" && mv "$output.new" "$output") || fail "cannot write $output: see above"
fi

ready=0 failed=''
summary() { printf '%s of %s ready%s\n' "$ready" "$all" "${failed:+; failed:$failed}"; }
trap 'echo "cut off"; summary; exit 130' HUP INT TERM

# What is said of a failure is the last line that a step wrote.
step() {
    "$@" >"$work/said" 2>&1 </dev/null && return 0
    printf 'FAILED: %s\n' "$(tail -n 1 "$work/said")"
    return 1
}
# shellcheck disable=SC2086  # several words each, on purpose
on() { ssh -n $options "$1" "$2"; }
# shellcheck disable=SC2086
to() { scp -q $options "$work/$2" "$1:.edgeguardd-rollout/"; }
# shellcheck disable=SC2086,SC2029
apply() { ssh $options "$1" "${SUDO:-} sh -s -- .edgeguardd-rollout '$version'" <"$here/on-box.sh"; }

# roll_out SSH-NAME SCP-NAME
roll_out() {
    step on "$1" 'rm -rf .edgeguardd-rollout && mkdir -m 700 .edgeguardd-rollout' || return 1
    step on "$1" "dpkg-query --show --showformat='\${db:Status-Status} \${Version}\n' edgeguardd || true" || return 1
    if [ "$(tail -n 1 "$work/said")" != "installed $version" ]; then step to "$2" edgeguardd.deb || return 1; fi
    if [ -n "$configuration" ]; then step to "$2" edgeguardd.toml || return 1; fi
    if [ -n "$drop_in" ]; then step to "$2" rollout.conf || return 1; fi
    apply "$1" >"$work/said" 2>&1 || { printf 'FAILED: %s\n' "$(tail -n 1 "$work/said")"; return 1; }
    tail -n 1 "$work/said"
}

while read -r shown for_ssh for_scp; do
    printf '%s: ' "$shown"
    if roll_out "$for_ssh" "$for_scp"; then ready=$((ready + 1)); else failed="$failed $shown"; fi
done <"$work/checked"
summary
[ "$ready" -eq "$all" ]
