#!/bin/sh
# What rollout.sh has done on a box, as root: on-box.sh DIRECTORY VERSION. Changes only what differs, and restarts only then.
# The last line is what is told of the box.
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
directory=$1 version=$2
configuration=/etc/edgeguardd/edgeguardd.toml
drop_in=/etc/systemd/system/edgeguardd.service.d/rollout.conf
# Made before anything is put in place and removed after the restart: a run that is cut off is made up for by the next.
wanted=/etc/edgeguardd/.restart-wanted
said=''

installed() { dpkg-query --show --showformat='${db:Status-Status} ${Version}' edgeguardd 2>/dev/null || true; }
# Whether a file came along that is not yet in place.
differs() { [ -e "$directory/$1" ] && ! cmp -s "$directory/$1" "$2"; }
place() {
    mkdir -p "$(dirname "$2")"
    touch "$wanted"
    install -m 644 "$directory/$1" "$2.new"
    mv "$2.new" "$2"
}

if [ "$(installed)" != "installed $version" ]; then
    # Its name ends in .deb and has a slash in it: that makes it a file to apt, and no name.
    apt-get install --yes --no-install-recommends --allow-downgrades "./$directory/edgeguardd.deb" </dev/null
    said="installed $version, "
fi
if differs edgeguardd.toml "$configuration"; then
    edgeguardctl check-config "$directory/edgeguardd.toml"
    place edgeguardd.toml "$configuration"
    said="${said}configuration changed, "
fi
if differs rollout.conf "$drop_in"; then
    place rollout.conf "$drop_in"
    said="${said}drop-in changed, "
fi
if [ -e "$wanted" ]; then
    systemctl daemon-reload
    systemctl restart edgeguardd.service
    rm "$wanted"
fi
edgeguardctl health --wait 30
rm -rf "$directory"
printf '%sready\n' "$said"
