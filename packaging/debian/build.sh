#!/usr/bin/env bash
# Builds the Debian package from what is committed and changed here into .build/deb; prints its path at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { printf 'deb: %s\n' "$*" >&2; exit 1; }

missing=()
for pair in dh:debhelper dpkg-buildpackage:dpkg-dev lintian:lintian fakeroot:fakeroot; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair##*:}")
done
dpkg-query --show build-essential >/dev/null 2>&1 || missing+=(build-essential)
/usr/bin/python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
if [ "${#missing[@]}" -gt 0 ]; then
    command -v apt-get >/dev/null || fail "cannot build a Debian package without ${missing[*]}: build on Debian 12 or newer"
    [ "$(id -u)" = 0 ] || fail "cannot build without ${missing[*]}; run: sudo apt-get install ${missing[*]}"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; } \
        >/dev/null 2>&1 </dev/null || fail "cannot install ${missing[*]}; run: apt-get update && apt-get install ${missing[*]}"
fi

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' edgeguardd/__init__.py)
[ -n "$version" ] || fail "cannot find __version__ in edgeguardd/__init__.py"
version=${DEB_VERSION:-${version/.dev/~dev}}

work=.build/deb
rm -rf "$work"
mkdir -p "$work/source"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - | tar --extract --directory "$work/source"
cp -r packaging/debian "$work/source/debian"
rm -f "$work/source/debian/build.sh"
date=$(git log -1 --format=%cD)
sed -i "1s/(.*)/($version)/; s/^\( -- .*>  \).*/\1$date/; s/^  \* The version.*/  * Version $version;/; s/^    changed is/    what changed is/" "$work/source/debian/changelog"
(cd "$work/source" && dpkg-buildpackage --build=binary --no-sign >../build.log 2>&1) || {
    tail -n 40 "$work/build.log" >&2
    fail "cannot build the package: see above and $work/build.log"
}
lintian --fail-on error,warning "$work"/edgeguardd_*.deb
printf '%s\n' "$work"/edgeguardd_*.deb
