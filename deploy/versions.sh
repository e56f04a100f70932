#!/bin/sh
# Which of the installed versions of edgepeer runs. install.sh uses it, and edgepeer-rollback.service at boot.
#
#   versions.sh try N     switch to version N; back to the one before unless its services are ready in time
#   versions.sh restore   end a trial that was cut short: back to the version before
#
# /opt/edgepeer/versions/N/ is a virtual environment, with its units in units/; /opt/edgepeer/current is a link to one of
# them. While the file /opt/edgepeer/trial is there, the current version has not shown yet that it works, and the file
# names the one that did. It is on the disk before anything is switched, and goes when the new version is ready. So a
# device that loses power in between starts with what has worked. A version runs with its own units or older ones.
set -eu

root=${DESTDIR-}
home=$root/opt/edgepeer
units=$root/etc/systemd/system
systemctl=${SYSTEMCTL-systemctl}
[ -z "$root" ] || [ -n "${SYSTEMCTL-}" ] || systemctl=: # below another root there is nothing to start
services="edgepeer-broker edgepeer-fleet edgepeer-peer"

say() { printf '%s\n' "$*"; }
fail() {
    printf 'versions.sh: %s\n' "$*" >&2
    exit 1
}

# Make version $1 the one that the next start takes.
link() {
    ln -sfn "versions/$1" "$home/current.new"
    mv -T "$home/current.new" "$home/current"
}

# Give systemd the units of version $1. A unit that this device does not have yet is not installed here.
place_units() {
    for unit in "$home/versions/$1/units/"*.service; do
        name=${unit##*/}
        if [ -e "$unit" ] && [ -e "$units/$name" ] && ! cmp -s "$unit" "$units/$name"; then
            cp "$unit" "$units/$name.new"
            mv -T "$units/$name.new" "$units/$name"
        fi
    done
    sync
    $systemctl daemon-reload
}

# Start anew what runs ($1); fails if one of them is not ready in time, as its unit says.
restart() {
    for service in $1; do
        $systemctl restart "$service.service" || return 1
    done
}

running() {
    for service in $services; do
        case $($systemctl is-active "$service.service" || true) in
            active | activating | reloading) printf '%s ' "$service" ;;
        esac
    done
}

restore() {
    [ -e "$home/trial" ] || return 0
    previous=$(cat "$home/trial")
    [ -x "$home/versions/$previous/bin/edgepeer" ] || fail "version $previous, which was in use before, is gone from $home/versions"
    # In this order: at no time is a program run by a unit that is newer than itself.
    place_units "$previous"
    link "$previous"
    sync
    rm -f "$home/trial"
    sync
    say "edgepeer: version $previous is in use again"
}

try() {
    new=$1
    [ -x "$home/versions/$new/bin/edgepeer" ] || fail "there is no version $new in $home/versions"
    restore # of a trial that was cut short
    trap '' HUP INT TERM # a lost connection must not end a trial
    up=$(running)
    if [ -L "$home/current" ] && [ -n "$up" ]; then
        previous=$(readlink "$home/current")
        printf '%s\n' "${previous#versions/}" >"$home/trial.new"
        sync
        mv -T "$home/trial.new" "$home/trial"
        sync
    fi
    link "$new"
    sync
    place_units "$new"
    [ -e "$home/trial" ] || return 0
    say "edgepeer: version $new is on trial: $up"
    if restart "$up"; then
        rm -f "$home/trial"
        sync
        say "edgepeer: version $new is ready"
        return 0
    fi
    restore
    # shellcheck disable=SC2086  # one word for each
    logs="journalctl$(printf ' -u %s' $up)"
    restart "$up" || fail "version $new was not ready in time, and ${previous#versions/} isn't either: $logs"
    fail "version $new was not ready in time, ${previous#versions/} runs again; $logs says why"
}

case ${1-} in
    try) try "${2:?which version}" ;;
    restore) restore ;;
    *)
        say "usage: versions.sh try N | restore" >&2
        exit 2
        ;;
esac
