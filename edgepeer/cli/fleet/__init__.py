"""`edgepeer fleet`: who is of a fleet.

founding.py   init
admitting.py  token, operator add
listing.py    list
changing.py   evict, rotate-ca
moving.py     move
serving.py    serve
telling.py    how the fleet hears of what has changed
home.py       the authority on this machine, for all of them
places.py     where broker and service are, as init and move are told
"""

from __future__ import annotations

from typing import Any, Final

import click

from edgepeer.cli.fleet.admitting import OPERATOR, TOKEN
from edgepeer.cli.fleet.changing import EVICT, ROTATE
from edgepeer.cli.fleet.founding import INIT
from edgepeer.cli.fleet.listing import LIST
from edgepeer.cli.fleet.moving import MOVE
from edgepeer.cli.fleet.serving import SERVE
from edgepeer.cli.verb import Verb

__all__ = ["VERBS", "command"]

VERBS: Final[tuple[Verb[Any], ...]] = (INIT, TOKEN, LIST, EVICT, MOVE, OPERATOR, ROTATE, SERVE)
_ARGUMENTS: Final = {("fleet-init", "name"), ("fleet-evict", "member"), ("fleet-operator-add", "name")}


def command() -> click.Group:
    """`edgepeer fleet` with its verbs."""
    group = click.Group(name="fleet", help="Say who is of a fleet, and who is not any more.", no_args_is_help=True)
    for verb in VERBS:
        one = verb.command()
        one.params = [
            click.Argument([parameter.name], metavar=parameter.metavar, required=False)
            if (verb.kind.verb, parameter.name) in _ARGUMENTS
            else parameter
            for parameter in one.params
        ]
        if verb is OPERATOR:
            operators = click.Group(name="operator", help="Let operators in.", no_args_is_help=True)
            operators.add_command(one, name="add")
            group.add_command(operators)
        else:
            group.add_command(one, name=verb.kind.verb.removeprefix("fleet-"))
    return group
