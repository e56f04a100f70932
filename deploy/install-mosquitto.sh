#!/bin/sh
# Install Debian's mosquitto without starting it as a service. Says why where it can't.
set -eu
if ! command -v apt-get >/dev/null; then
    echo "mosquitto: no apt-get here; the tests that need the real broker will be skipped"
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "mosquitto: not root, and sudo asks for a password; the tests that need it will be skipped"
        exit 1
    fi
    as_root="sudo -n"
fi
log=$(mktemp)
# A service of our own would take port 1883: the policy keeps Debian from starting it.
if $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 sh -c \
    'apt-get update && apt-get install -y --no-install-recommends mosquitto' >"$log" 2>&1; then
    echo "mosquitto: installed"
else
    echo "mosquitto: could not be installed ($(tail -n 1 "$log")); the tests that need it will be skipped"
    exit 1
fi
