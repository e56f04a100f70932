"""`edgepeer join`: make this device one of a fleet, by one pasted line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from edgepeer.cli.signals import run as run_async
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError
from edgepeer.settings import JoinSettings
from edgepeer.sockets import host_and_port

__all__ = ["VERB", "command"]

_LONGEST: Final = 512
_NEXT: Final = {
    "peer": "edgepeer peer --listen 0.0.0.0:7700 {}",
    "operator": "edgepeer train {}",
    "viewer": "edgepeer status {}",
    "broker": "edgepeer broker --listen 0.0.0.0:8883 {}",
}


def run(settings: JoinSettings) -> int:
    """Join, and say as whom."""
    from edgepeer.enrol.places import SERVICE_PORT, device_directory
    from edgepeer.enrol.strings import JoinString, hidden
    from edgepeer.trust.directory import is_joined

    directory: Path = (settings.dir or device_directory()).absolute()
    no_string = settings.string is None and not settings.stdin
    moved = no_string and settings.id is None and not settings.again and is_joined(directory)
    if settings.host is None or (no_string and not moved) or (settings.string is not None and settings.stdin):
        raise ConfigError("say where, and with which join string, as in: edgepeer join raspberrypi.local epj1-...")

    if any(hidden(given) != given for given in (settings.host, settings.id or "")):
        raise ConfigError("the host comes first, then the string, as in: edgepeer join raspberrypi.local epj1-...")
    string = None
    if not moved:
        # All of the line that `edgepeer fleet token` prints will do, too.
        given = sys.stdin.readline(_LONGEST) if settings.string is None else settings.string
        string = JoinString.parse(given.strip().rpartition(" ")[2])
    host, port = host_and_port(settings.host, SERVICE_PORT)
    try:
        from edgepeer.enrol.joining import follow, join
    except ImportError as error:
        raise ConfigError(f"join needs cryptography ({error}): pip install 'edgepeer[secure]'") from error
    if string is None:
        joined = run_async(follow(directory, host, port))
    else:
        joined = run_async(join(directory, host, port, string, name=settings.id, again=settings.again))
    where = joined.where
    if settings.json:
        import msgspec

        fields = {"fabric": where.fabric, "role": where.role, "id": where.id, "directory": str(directory)}
        print(msgspec.json.format(msgspec.json.encode({**fields, "changed": joined.anew}), indent=2).decode())
        return 0
    if string is None:
        found = "is now" if joined.anew else "still is"
        print(
            f"the fleet of {where.role} {where.id} {found} at {','.join(where.broker)}, its service at {where.service}"
        )
        return 0
    print(f"{'joined' if joined.anew else 'already in'} {where.fabric} as {where.role} {where.id}: {directory}")
    # A peer that counts its starts is known for the same device whatever its clock says.
    counts = where.role == "peer" and directory.name == device_directory().name
    found = f"--state-dir {directory.parent}" if counts else f"--fleet {directory}"
    print(f"next: {_NEXT[where.role].format(found)}")
    return 0


VERB = Verb(
    kind=JoinSettings,
    about="Make this device one of a fleet.\n\n"
    "HOST and STRING are what `edgepeer fleet token` has printed. The device makes a key, which never leaves it, and "
    "gets a certificate; nobody but the fleet's own service learns the secret in STRING. Again on the same device, it "
    "changes nothing. Without STRING, a device that is a member asks the service at HOST where its fleet is by now.",
    examples=[
        ("the line that `edgepeer fleet token` prints", "edgepeer join raspberrypi.local epj1-..."),
        ("from a file, so that no list of processes shows it", "edgepeer join raspberrypi.local --stdin < line"),
        ("as p7", "edgepeer join raspberrypi.local epj1-... --id p7"),
        ("the fleet has moved (edgepeer fleet move)", "edgepeer join 192.168.1.20"),
    ],
    run=run,
)


def command() -> click.Command:
    """The verb as click knows it; where, and the string, are arguments."""
    found = VERB.command()
    found.params = [
        click.Argument([parameter.name], metavar=parameter.name.upper(), required=False)
        if parameter.name in ("host", "string")
        else parameter
        for parameter in found.params
    ]
    return found
