#!/bin/sh
# Install edgepeer as a service on a Raspberry-Pi-class device. Run it again to upgrade: nothing is lost.
set -eu

usage() {
    cat <<'USAGE'
usage: install.sh [--trainer numpy|tensorflow] [--with-digits] [--with-broker] [--from DIR|PACKAGE] [--dry-run]

  --trainer numpy       NumPy alone (default): the built-in dense networks, about 55 MB of memory
  --trainer tensorflow  Keras and TensorFlow too: any Keras model, 64-bit systems only
  --with-digits         scikit-learn, for its data set of handwritten digits
  --with-broker         the embedded MQTT broker and its service
  --from DIR|PACKAGE    what to install: a checkout or a pip requirement; default: the checkout that this
                        script is in, else edgepeer from the package index
  --dry-run             say what would be done, do nothing

Puts a virtual environment into /opt/edgepeer, settings into /etc/edgepeer (once), units into
/etc/systemd/system. DESTDIR=DIR puts all of it below DIR and leaves systemd alone.
USAGE
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
# Everything that changes the device goes through here.
run() {
    say "+ $*"
    [ "$dry" = yes ] || "$@"
}

trainer=numpy digits=no broker=no source="" dry=no
while [ $# -gt 0 ]; do
    case $1 in
        --trainer) trainer=${2-}; shift ;;
        --from) source=${2-}; shift ;;
        --with-digits) digits=yes ;;
        --with-broker) broker=yes ;;
        --dry-run) dry=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    [ $# -gt 0 ] && shift
done
case $trainer in
    numpy | tensorflow) ;;
    *) fail "--trainer '$trainer': must be numpy or tensorflow" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR-}
home=$root/opt/edgepeer
settings=$root/etc/edgepeer
units=$root/etc/systemd/system
python=${PYTHON:-python3}
if [ -z "$source" ]; then
    if [ -f "$here/../pyproject.toml" ]; then source=$(dirname "$here"); else source=edgepeer; fi
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python: Python 3.11 or newer is needed (Debian 12, Raspberry Pi OS bookworm); PYTHON=... names another"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv: apt install python3-venv"
machine=$(uname -m)
if [ "$trainer" = tensorflow ]; then
    case $machine in
        x86_64 | aarch64) ;;
        *) fail "there is no TensorFlow for $machine: take a 64-bit system, or --trainer numpy" ;;
    esac
fi
if [ "$dry" = no ] && [ -z "$root" ]; then
    [ "$(id -u)" -eq 0 ] || fail "must run as root: sudo $0"
    command -v systemctl >/dev/null || fail "there is no systemd here; run edgepeer peer by other means"
fi

extras=""
[ "$trainer" = tensorflow ] && extras=$extras,tensorflow
[ "$digits" = yes ] && extras=$extras,digits
[ "$broker" = yes ] && extras=$extras,broker
extras=${extras#,}

say "edgepeer on $machine, trainer $trainer, from $source"
run mkdir -p "$home" "$settings" "$units"
[ -x "$home/bin/python" ] || run "$python" -m venv "$home"
run "$home/bin/python" -m pip install --quiet --upgrade pip
if [ -d "$source" ]; then
    # Built in a copy: a build leaves files behind, which the next one would pick up again.
    copy=/tmp/edgepeer-source
    if [ "$dry" = no ]; then
        copy=$(mktemp -d)
        trap 'rm -rf "$copy"' EXIT
    fi
    run cp -R "$source/edgepeer" "$source/pyproject.toml" "$source/README.md" "$source/LICENSE" "$copy"
    source=$copy
fi
run "$home/bin/python" -m pip install --quiet --upgrade "$source${extras:+[$extras]}"

# Settings are the user's: never written over. They may hold a password, so only root reads them.
[ -e "$settings/edgepeer.toml" ] || run install -m 600 "$here/edgepeer.toml" "$settings/edgepeer.toml"
run install -m 644 "$here/edgepeer-peer.service" "$units/edgepeer-peer.service"
[ "$broker" = no ] || run install -m 644 "$here/edgepeer-broker.service" "$units/edgepeer-broker.service"
if [ -z "$root" ]; then
    run systemctl daemon-reload
    # Does nothing to a service that does not run.
    run systemctl try-restart edgepeer-peer.service
    [ "$broker" = no ] || run systemctl try-restart edgepeer-broker.service
fi

say "done; what is left to you:"
say "  1. set broker, fabric and listen in $settings/edgepeer.toml"
[ "$broker" = no ] || say "  2. systemctl enable --now edgepeer-broker"
say "  3. systemctl enable --now edgepeer-peer; journalctl -fu edgepeer-peer"
