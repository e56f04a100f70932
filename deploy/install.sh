#!/bin/sh
# Install edgepeer as a service on a Raspberry-Pi-class device. Run it again to upgrade: nothing is lost, and what does
# not start within a minute is taken back (versions.sh says how).
set -eu

usage() {
    cat <<'USAGE'
usage: install.sh [--trainer numpy|tensorflow] [--with-digits] [--with-broker] [--with-fleet]
                  [--from DIR|WHEEL|PACKAGE] [--wheels DIR] [--if-changed] [--dry-run]

  --trainer numpy       NumPy alone (default): the built-in dense networks, about 55 MB of memory; where TensorFlow
                        is installed, it is taken off
  --trainer tensorflow  Keras and TensorFlow too: any Keras model, 64-bit systems only
  --with-digits         scikit-learn, for its data set of handwritten digits
  --with-broker         the embedded MQTT broker and its service
  --with-fleet          the service that lets new devices into the fleet (edgepeer fleet serve)
  --from DIR|WHEEL|PACKAGE
                        what to install: a checkout, a wheel or a pip requirement; default: the checkout that
                        this script is in, else edgepeer from the package index
  --wheels DIR          take all packages from this directory: no network is needed
  --if-changed          do nothing if the same was installed last time
  --dry-run             say what would be done, do nothing

What was installed before stays in an upgrade: TensorFlow, scikit-learn and the broker need not be asked for again.
Puts a virtual environment into /opt/edgepeer/versions, the command into /usr/local/bin, settings into /etc/edgepeer
(once), units into /etc/systemd/system. DESTDIR=DIR puts all of it below DIR and leaves systemd alone, to try it.
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

trainer="" digits=no broker=no fleet=no source="" wheels="" changed=no dry=no
while [ $# -gt 0 ]; do
    case $1 in
        --trainer) trainer=${2:-none}; shift ;;
        --from | --wheels)
            case ${2-} in
                "" | -*) fail "$1 takes a value, such as a directory" ;;
            esac
            if [ "$1" = --from ]; then source=$2; else wheels=$2; fi
            shift ;;
        --with-digits) digits=yes ;;
        --with-broker) broker=yes ;;
        --with-fleet) fleet=yes ;;
        --if-changed) changed=yes ;;
        --dry-run) dry=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    [ $# -gt 0 ] && shift
done
case $trainer in
    "" | numpy | tensorflow) ;;
    *) fail "--trainer '$trainer': must be numpy or tensorflow" ;;
esac
[ -z "$wheels" ] || [ -d "$wheels" ] || fail "--wheels '$wheels': no such directory"

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR-}
home=$root/opt/edgepeer
settings=$root/etc/edgepeer
units=$root/etc/systemd/system
commands=$root/usr/local/bin
python=${PYTHON:-python3}
# What is installed already, as its last word says.
installed=$(sed 's/.* //' "$home/current/what" 2>/dev/null || true)
had() { case ,$installed, in *,$1,*) true ;; *) false ;; esac }
[ -n "$trainer" ] || if had tensorflow; then trainer=tensorflow; else trainer=numpy; fi
! had digits || digits=yes
! had broker || broker=yes
if [ -z "$source" ]; then
    if [ -f "$here/../pyproject.toml" ]; then source=$(dirname "$here"); else source=edgepeer; fi
fi
case $source in
    */* | *.whl) [ -e "$source" ] || fail "--from '$source': no such file" ;;
esac

version=$("$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) or print("python%d.%d" % sys.version_info[:2]))' 2>/dev/null) ||
    fail "$python: Python 3.11 or newer is needed (Debian 12, Raspberry Pi OS bookworm, or newer); PYTHON=... names another"
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

extras=secure
[ "$trainer" = tensorflow ] && extras=$extras,tensorflow
[ "$digits" = yes ] && extras=$extras,digits
[ "$broker" = yes ] && extras=$extras,broker

# What is installed, in one line: another one is another version. An environment is of one Python: with the next Debian's
# it finds nothing of what is in it.
if [ -d "$source" ]; then
    sum=$(cd "$source" && find edgepeer pyproject.toml -type f ! -name '*.pyc' -exec sha256sum {} + | sort | sha256sum)
elif [ -f "$source" ]; then
    sum=$(sha256sum "$source")
else
    sum=$source
fi
what="${sum%% *} $version $extras"
if [ "$changed" = yes ] && [ "$(cat "$home/current/what" 2>/dev/null || true)" = "$what" ] && [ ! -e "$home/trial" ]; then
    say "edgepeer is installed already: nothing to do"
    exit 0
fi

number=1
for each in "$home/versions/"*; do
    [ -e "$each" ] && [ "${each##*/}" -ge "$number" ] && number=$((${each##*/} + 1))
done
new=$home/versions/$number

say "edgepeer on $machine, trainer $trainer, from $source, as version $number"
run mkdir -p "$home/versions" "$settings" "$units" "$commands"
if [ "$dry" = no ]; then
    exec 9>"$home/lock"
    flock -n 9 || fail "another installation is at work ($home/lock)"
fi
# What an installation that was cut short has left; the units come last.
for each in "$home/versions/"*; do
    if [ -d "$each" ] && [ ! -d "$each/units" ]; then run rm -rf "$each"; fi
done
# Installed before there were versions: it is one of them, called 0, as long as it is needed.
if [ -x "$home/bin/edgepeer" ] && [ ! -L "$home/current" ]; then
    run mkdir -p "$home/units"
    for each in "$units"/edgepeer-*.service; do
        [ ! -e "$each" ] || run cp "$each" "$home/units"
    done
    run ln -sfn .. "$home/versions/0"
    run ln -sfn versions/0 "$home/current"
fi

temporary=""
undo() {
    [ -z "$temporary" ] || rm -rf "$temporary"
    # What is not in use now did not get so far, or was taken back.
    [ "$(readlink "$home/current" || true)" = "versions/$number" ] || rm -rf "$new"
}
[ "$dry" = yes ] || trap undo EXIT
trap 'exit 1' INT TERM HUP

run "$python" -m venv "$new"
if [ -d "$source" ]; then
    # Built in a copy: a build leaves files behind, which the next one would pick up again.
    copy=/tmp/edgepeer-source
    if [ "$dry" = no ]; then temporary=$(mktemp -d) copy=$temporary; fi
    run cp -R "$source/edgepeer" "$source/pyproject.toml" "$source/README.md" "$source/LICENSE" "$copy"
    source=$copy
fi
offline=""
[ -z "$wheels" ] || offline="--no-index --find-links $wheels"
# shellcheck disable=SC2086  # two words, or none
run "$new/bin/python" -m pip install --quiet --disable-pip-version-check $offline "${source}[$extras]"
# What was made for another machine, or is not whole, shows here.
run "$new/bin/edgepeer" version
if [ "$dry" = no ]; then
    printf '%s\n' "$what" >"$new/what"
    mkdir "$new/units.new"
    cp "$here"/edgepeer-*.service "$new/units.new"
    sync
    mv -T "$new/units.new" "$new/units"
fi

# Settings are the user's: never written over. They may hold a password, so only root reads them.
# A service is for others on the network: without a fleet it refuses to listen there, and says what to do.
fresh=no
if [ ! -e "$settings/edgepeer.toml" ]; then
    fresh=yes
    run install -m 600 "$here/edgepeer.toml" "$settings/edgepeer.toml.new"
    run sed -i '/^\[peer\]$/a listen = "0.0.0.0:7700"' "$settings/edgepeer.toml.new"
    [ "$fleet" = no ] ||
        run sed -i '/^\[broker\]$/a listen = "0.0.0.0:8883"\nfleet = "/var/lib/edgepeer-fleet/broker"' "$settings/edgepeer.toml.new"
    run mv -T "$settings/edgepeer.toml.new" "$settings/edgepeer.toml"
fi
place() {
    [ -e "$2" ] || run install -m "$3" "$1" "$2"
}
[ "$dry" = yes ] || rm -f "$home/versions.sh.new"
run install -m 755 "$here/versions.sh" "$home/versions.sh.new"
run mv -T "$home/versions.sh.new" "$home/versions.sh"
place "$here/edgepeer-rollback.service" "$units/edgepeer-rollback.service" 644
run mkdir -p "$units/multi-user.target.wants"
run ln -sfn ../edgepeer-rollback.service "$units/multi-user.target.wants/edgepeer-rollback.service"
if [ -e "$commands/edgepeer" ] && [ ! -L "$commands/edgepeer" ]; then
    say "$commands/edgepeer is there already, and not ours: left alone"
else
    run ln -sfn /opt/edgepeer/current/bin/edgepeer "$commands/edgepeer"
fi
before=$(readlink "$home/current" 2>/dev/null || true)
run "$home/versions.sh" try "$number" 9>&-
# Where they are not yet: those that are here were brought to their version just now.
place "$here/edgepeer-peer.service" "$units/edgepeer-peer.service" 644
[ "$broker" = no ] || place "$here/edgepeer-broker.service" "$units/edgepeer-broker.service" 644
[ "$fleet" = no ] || place "$here/edgepeer-fleet.service" "$units/edgepeer-fleet.service" 644
if [ -z "$root" ]; then run systemctl daemon-reload; fi

# The one before stays, to go back to by hand: versions.sh try N.
for each in "$home/versions/"*; do
    case ${each##*/} in
        "$number" | "${before#versions/}" | "*") ;;
        0) run rm -rf "$each" "$home/bin" "$home/include" "$home/lib" "$home/lib64" "$home/share" "$home/pyvenv.cfg" "$home/units" ;;
        *) run rm -rf "$each" ;;
    esac
done

say "done; what is left to you:"
if [ "$fleet" = yes ] && [ "$fresh" = no ] && ! grep -qs '/var/lib/edgepeer-fleet/broker' "$settings/edgepeer.toml"; then
    say "  0. $settings/edgepeer.toml was there before, and is yours: under [broker], put"
    say "         listen = \"0.0.0.0:8883\""
    say "         fleet = \"/var/lib/edgepeer-fleet/broker\""
fi
if [ "$fleet" = yes ]; then
    say "  1. edgepeer fleet init NAME --broker $(hostname).local"
    say "  2. systemctl enable --now edgepeer-fleet$([ "$broker" = no ] || printf ' edgepeer-broker')"
    say "  3. edgepeer fleet token, which prints the line that brings a device in"
else
    say "  1. the line that edgepeer fleet token prints where the fleet is looked after: edgepeer join ..."
    say "  2. systemctl enable --now edgepeer-peer; journalctl -fu edgepeer-peer"
fi
