#!/bin/sh
# Runs in the guest of tests/bench/qemu.py: each line of `probes` is a measurement; what it says and what it found go to
# the second serial port. Then power off.
exec >/dev/ttyS1 2>&1 </dev/null
stty -F /dev/ttyS1 raw -echo 2>/dev/null
cd /opt/bench || poweroff -ff
export PYTHONPATH=/opt/bench/libraries:/opt/bench LC_ALL=C.UTF-8 HOME=/root
# Compiled once: on an emulated processor that takes longer than a daemon may take to start.
python3 -c 'import edgeguardd.daemon, edgeguardd.cli.edgeguardd, edgeguardd.client, tests.demo.server, tests.bench.staged'
while read -r module options; do
    rm -f /run/found
    # shellcheck disable=SC2086  options are words
    if python3 -m tests.bench.probes "$module" /run/found $options </dev/null; then
        printf 'found: %s\n' "$(cat /run/found)"
    else
        printf 'failed: %s, in the guest; see above\n' "$module"
    fi
done <probes
sync
poweroff -ff
