"""`edgepeer fleet token` and `operator add`: the lines that let somebody in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgepeer.cli.fleet.home import print_json, registrar_of
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError
from edgepeer.settings import FleetOperatorSettings, FleetTokenSettings, seconds
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.enrol.registrar import Registrar
    from edgepeer.enrol.strings import JoinString

__all__ = ["OPERATOR", "TOKEN"]


def token(settings: FleetTokenSettings) -> int:
    """Print the line that brings a device in, or take one back."""
    with registrar_of(settings) as (registrar, _):
        if settings.withdraw is not None:
            gone = registrar.withdraw(settings.withdraw)
            if settings.json:
                print_json({"withdrawn": gone.id})
            else:
                print(f"token {gone.id} lets nobody in any more; who has come with it is in: edgepeer fleet list")
            return 0
        ttl_s = seconds(settings.ttl)
        string = registrar.token(role=Role(settings.role), name=settings.id, uses=settings.uses, ttl_s=ttl_s)
        many = "one device" if settings.uses == 1 else f"{settings.uses} devices"
        _print_token(registrar, string, f"lets {many} in, within {settings.ttl}", as_json=settings.json)
    return 0


def operator(settings: FleetOperatorSettings) -> int:
    """Print the line that brings an operator in."""
    if settings.name is None:
        raise ConfigError("say who, as in: edgepeer fleet operator add bob")
    with registrar_of(settings) as (registrar, household):
        string = registrar.token(role=Role.OPERATOR, name=settings.name, ttl_s=seconds(settings.ttl))
        household.update()
        said = f"makes whoever pastes it operator {settings.name}, within {settings.ttl}"
        _print_token(registrar, string, said, as_json=settings.json)
    return 0


def _print_token(registrar: Registrar, string: JoinString, said: str, *, as_json: bool) -> None:
    from edgepeer.enrol.places import SERVICE_PORT

    place = registrar.service.removesuffix(f":{SERVICE_PORT}")
    line = f"edgepeer join {place} {string.text()}"
    if as_json:
        print_json({"host": place, "string": string.text(), "token": string.token.hex(), "command": line})
        return
    if sys.stdout.isatty():
        print(f"This line {said}; whoever has it can use it:\n", file=sys.stderr)
    print(line, flush=True)


TOKEN = Verb(
    kind=FleetTokenSettings,
    about="Print the line that brings a device in.",
    examples=[
        ("for one device, within the hour", "edgepeer fleet token"),
        ("for fifty, within a day", "edgepeer fleet token --uses 50 --ttl 24h"),
        ("for the device that is to be called p7", "edgepeer fleet token --id p7"),
        ("somebody has seen one that is still good", "edgepeer fleet token --withdraw a4d721ad"),
    ],
    run=token,
)
OPERATOR = Verb(
    kind=FleetOperatorSettings,
    about="Print the line that makes somebody an operator, who may start and stop jobs.",
    examples=[("bob", "edgepeer fleet operator add bob")],
    run=operator,
)
