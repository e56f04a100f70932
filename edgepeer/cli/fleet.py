"""`edgepeer fleet`: who is of a fleet. Founds one, lets devices in, lists and evicts them, rotates its authority."""

from __future__ import annotations

import asyncio
import getpass
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from edgepeer.cli.signals import run as run_async
from edgepeer.cli.signals import run_until_stopped
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError, EdgepeerError
from edgepeer.notify import ready
from edgepeer.settings import (
    FleetEvictSettings,
    FleetInitSettings,
    FleetListSettings,
    FleetOperatorSettings,
    FleetRotateSettings,
    FleetServeSettings,
    FleetSettings,
    FleetTokenSettings,
    seconds,
)
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.enrol.household import Household
    from edgepeer.enrol.registrar import Issued, Registrar
    from edgepeer.enrol.strings import JoinString
    from edgepeer.trust.identity import Identity

__all__ = ["VERBS", "command"]

_log = logging.getLogger(__name__)

_HOUSEKEEPING_S: Final = 2.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_SOON_S: Final = 30 * _DAY_S


def _home(settings: FleetSettings) -> Path:
    from edgepeer.enrol.places import registrar_home

    return (settings.home or registrar_home()).absolute()


@contextmanager
def _needs() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"fleet needs cryptography ({error}): pip install 'edgepeer[secure]'") from error


@contextmanager
def _registrar(settings: FleetSettings) -> Iterator[tuple[Registrar, Household]]:
    """The fleet's authority, and the members here."""
    with _needs():
        from edgepeer.enrol.household import Household
        from edgepeer.enrol.registrar import Registrar
    home = _home(settings)
    registrar = Registrar.open(home)
    try:
        yield registrar, Household(registrar, home)
    finally:
        registrar.close()


def _print_json(fields: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode())


# -- init ------------------------------------------------------------------------------------------------------


def init(settings: FleetInitSettings) -> int:
    """Found a fleet: its authority, its broker's and its first operator's certificates."""
    from edgepeer.enrol.places import BROKER_PORT, SERVICE_PORT, format_place, host_and_port

    if settings.name is None or settings.broker is None:
        raise ConfigError(
            "say how it is called and where devices find its broker, as in: edgepeer fleet init greenhouse --broker "
            "raspberrypi.local"
        )
    given = (re.sub(r"^mqtts://|/$", "", each.strip()) for each in settings.broker.split(","))
    brokers = [host_and_port(each, BROKER_PORT, "broker") for each in given]
    urls = tuple(f"mqtts://{format_place(*place)}" for place in brokers)
    service = settings.service or format_place(brokers[0][0], SERVICE_PORT)
    with _needs():
        from edgepeer.enrol.household import Household
        from edgepeer.enrol.registrar import Registrar
    home = _home(settings)
    registrar = Registrar.found(
        home, settings.name, broker=urls, service=service, lifetime_s=settings.lifetime * _DAY_S
    )
    try:
        household = Household(registrar, home)
        household.settle(settings.operator or _own_name())
    finally:
        registrar.close()
    port = brokers[0][1]
    if settings.json:
        fields = {"fabric": settings.name, "home": home, "broker": household.broker, "operator": household.operator}
        _print_json({name: str(value) for name, value in fields.items()} | {"urls": urls, "service": service})
        return 0
    print(f"fleet {settings.name}: {home} (whoever can read it has the fleet: keep a copy, in a safe place)\n")
    print("its broker, here or with that directory copied to where it runs:")
    print(f"  edgepeer broker --listen 0.0.0.0:{port} --fleet {household.broker}")
    print(f"here, where devices come to join and to renew their certificates; they look for it at {service}:")
    print(f"  edgepeer fleet serve{_where(settings)}")
    print("for each device, a line to be pasted there:")
    print(f"  edgepeer fleet token{_where(settings)}")
    print("and then:")
    print(f"  edgepeer train --fleet {household.operator}")
    return 0


def _where(settings: FleetSettings) -> str:
    return "" if settings.home is None else f" --home {settings.home.absolute()}"


def _own_name() -> str:
    try:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", getpass.getuser()).strip("-._")[:48]
    except (OSError, KeyError):
        name = ""
    return name or "admin"


# -- token, operator add ---------------------------------------------------------------------------------------


def token(settings: FleetTokenSettings) -> int:
    """Print the line that brings a device in."""
    with _registrar(settings) as (registrar, _):
        ttl_s = seconds(settings.ttl)
        string = registrar.token(role=Role(settings.role), name=settings.id, uses=settings.uses, ttl_s=ttl_s)
        many = "one device" if settings.uses == 1 else f"{settings.uses} devices"
        _print_token(registrar, string, f"lets {many} in, within {settings.ttl}", as_json=settings.json)
    return 0


def operator(settings: FleetOperatorSettings) -> int:
    """Print the line that brings an operator in."""
    if settings.name is None:
        raise ConfigError("say who, as in: edgepeer fleet operator add bob")
    with _registrar(settings) as (registrar, household):
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
        _print_json({"host": place, "string": string.text(), "token": string.token.hex(), "command": line})
        return
    if sys.stdout.isatty():
        print(f"This line {said}; whoever has it can use it:\n", file=sys.stderr)
    print(line, flush=True)


# -- list ------------------------------------------------------------------------------------------------------


def list_members(settings: FleetListSettings) -> int:
    """Show the members, and the tokens that are good."""
    from edgepeer.trust.clock import certain_time, date

    now = certain_time()
    with _registrar(settings) as (registrar, _):
        members, tokens, newest = registrar.members(), registrar.tokens(), registrar.newest_authority
        fabric = registrar.fabric
    rows: list[dict[str, object]] = [
        {
            "id": each.holder.id,
            "role": str(each.holder.role),
            "name": each.holder.common_name,
            "serial": f"{each.holder.serial:x}",
            "issued": each.holder.issued,
            "expires": each.ends,
            "token": each.token,
            "state": _state(each, newest, now),
        }
        for each in members
    ]
    if settings.json:
        open_tokens = [
            {"token": good.id, "role": str(good.role), "id": good.name, "uses": good.left, "expires": good.ends}
            for good in tokens
        ]
        _print_json({"fabric": fabric, "members": rows, "tokens": open_tokens})
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"fleet {fabric}: {sum(not each.evicted for each in members)} members", title_justify="left")
    for column in ("name", "role", "since", "until", "came with", "state"):
        table.add_column(column)
    for each in members:
        holder, state = each.holder, _state(each, newest, now)
        looks = {"member": "green", "evicted": "red", "expired": "red"}.get(state, "yellow")
        dates = date(holder.issued), date(each.ends)
        table.add_row(holder.common_name, holder.role, *dates, each.token or "", Text(state, style=looks))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for good in tokens:
        many = "one device" if good.left == 1 else f"{good.left} devices"
        minutes = max(1, round((good.ends - now) / 60))
        whom = f" as {good.name}" if good.name else ""
        print(f"token {good.id} lets {many} in{whom}, {good.role}, for another {_duration(minutes)}")
    return 0


def _state(each: Issued, newest: int, now: float) -> str:
    if each.evicted:
        return "evicted"
    if each.ends < now:
        return "expired"
    if each.authority != newest:
        return "has the old authority's certificate"
    if each.ends - now < min(_SOON_S, (each.ends - each.holder.issued) / 6):
        return "expires soon, and has not renewed"
    return "member"


def _duration(minutes: int) -> str:
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"


# -- evict, rotate-ca ------------------------------------------------------------------------------------------


def evict(settings: FleetEvictSettings) -> int:
    """Throw a member out, and tell the fleet."""
    if settings.member is None:
        raise ConfigError("say whom, as in: edgepeer fleet evict p7")
    with _registrar(settings) as (registrar, household):
        holders, tokens = registrar.evict(settings.member)
        told = _tell(household, settings.timeout)
    if settings.json:
        out = [f"{holder.serial:x}" for holder in holders]
        _print_json({"evicted": settings.member, "serials": out, "tokens": tokens, "told": told is None})
        return 0
    serials, count = ", ".join(f"{holder.serial:x}" for holder in holders), "counts" if len(holders) == 1 else "count"
    print(f"evicted {holders[0].common_name}: certificate {serials} {count} no more")
    for each in tokens:
        print(f"token {each}, with which it came in, lets nobody else in")
    print(f"if the broker is a mosquitto: restart it, with {household.revoked} as its crlfile")
    _say_told(told)
    return 0


def rotate(settings: FleetRotateSettings) -> int:
    """Begin to use a new authority, or end the use of the old one."""
    with _registrar(settings) as (registrar, household):
        late: list[str] = []
        if settings.finish:
            late = registrar.finish(force=settings.force)
        else:
            registrar.rotate()
        told = _tell(household, settings.timeout)
    if settings.json:
        _print_json({"finished": settings.finish, "left_out": late, "told": told is None})
        return 0
    if settings.finish:
        print("the old authority counts no more")
        if late:
            print(f"must join again: {', '.join(late)}")
    else:
        print("a new authority issues certificates; members take one as soon as they hear of it")
        print("when `edgepeer fleet list` shows nobody with the old one's: edgepeer fleet rotate-ca --finish")
    _say_told(told)
    return 0


def _tell(household: Household, timeout: float) -> str | None:
    """Bring the newest list to the broker; why not, if it isn't."""
    return run_async(_bring(household.update(), timeout))


async def _bring(members: list[Identity], timeout: float) -> str | None:
    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.topics import Group
    from edgepeer.following.observe import observe

    operated = next((each for each in members if each.holder.role is Role.OPERATOR), None)
    if operated is None:
        return "the operator of this machine is one no more"
    where = operated.where
    try:
        broker = BrokerAddress.parse(",".join(where.broker))
        async with observe(
            broker, where.fabric, lambda _: None, interests=Group.KEPT, timeout=timeout, identity=operated
        ) as client:
            client.clear_outdated()
            return None if await client.spread(timeout) else f"the broker did not confirm within {timeout:g} s"
    except EdgepeerError as error:
        return str(error)


def _say_told(why_not: str | None) -> None:
    if why_not is None:
        print("the fleet has been told")
    else:
        print(f"edgepeer: not told yet: {why_not}", file=sys.stderr)
        print("edgepeer: `edgepeer fleet serve` tells it, and whoever renews its certificate", file=sys.stderr)


# -- serve -----------------------------------------------------------------------------------------------------


def serve(settings: FleetServeSettings) -> int:
    """Let devices in and renew certificates until SIGTERM or Ctrl-C."""
    with _registrar(settings) as (registrar, household):
        return run_until_stopped(lambda stop: _serve(settings, registrar, household, stop))


async def _serve(settings: FleetServeSettings, registrar: Registrar, household: Household, stop: asyncio.Event) -> None:
    from edgepeer.enrol.service import EnrolmentService

    host, _, port = settings.listen.rpartition(":")
    async with EnrolmentService(registrar, host.strip("[]"), int(port)) as service:
        print(f"enrolment of fleet {registrar.fabric} ready at {service.address}", flush=True)
        async with asyncio.TaskGroup() as tasks:
            house = tasks.create_task(_keep_house(registrar, household))
            async with ready(f"listens on {service.address}"):
                await stop.wait()
            house.cancel()


async def _keep_house(registrar: Registrar, household: Household) -> None:
    """Until cancelled: what another process evicts, the members here and the fleet are told; and they renew."""
    loop = asyncio.get_running_loop()
    seen, untold, again_at, pause = b"", False, 0.0, _HOUSEKEEPING_S
    while True:
        try:
            signed = await asyncio.to_thread(lambda: registrar.evictions)
            if signed != seen or loop.time() >= again_at:
                untold, seen = untold or (bool(seen) and signed != seen), signed
                members = await asyncio.to_thread(household.update)
                if untold:
                    why_not = await _bring(members, _HOUSEKEEPING_S)
                    untold = why_not is not None
                    pause = min(2 * pause, _HOUR_S) if untold else _HOUSEKEEPING_S
                    _log.warning("not told yet: %s", why_not) if untold else _log.info("the fleet has been told")
                again_at = loop.time() + (pause if untold else _HOUR_S)
        except EdgepeerError as error:
            _log.error("%s", error)
            again_at = loop.time() + _HOUR_S
        await asyncio.sleep(_HOUSEKEEPING_S)


# -- the verbs -------------------------------------------------------------------------------------------------

INIT = Verb(
    kind=FleetInitSettings,
    about="Found a fleet.\n\n"
    "Makes the fleet's authority, and the certificates of its broker and of its first operator. Whoever can read the "
    "directory can let anybody in: it belongs on one machine that you trust, and in a backup. Again with the same "
    "NAME, it makes what is missing.",
    examples=[
        ("a fleet whose broker runs on raspberrypi.local", "edgepeer fleet init greenhouse --broker raspberrypi.local"),
        ("with two brokers", "edgepeer fleet init greenhouse --broker hub1.local,hub2.local"),
    ],
    run=init,
)
TOKEN = Verb(
    kind=FleetTokenSettings,
    about="Print the line that brings a device in.",
    examples=[
        ("for one device, within the hour", "edgepeer fleet token"),
        ("for fifty, within a day", "edgepeer fleet token --uses 50 --ttl 24h"),
        ("for the device that is to be called p7", "edgepeer fleet token --id p7"),
    ],
    run=token,
)
LIST = Verb(
    kind=FleetListSettings,
    about="List the members, and the tokens that are good.",
    examples=[
        ("who is in", "edgepeer fleet list"),
        ("for a script: how many are there?", "edgepeer fleet list --json | jq '.members | length'"),
    ],
    run=list_members,
)
EVICT = Verb(
    kind=FleetEvictSettings,
    about="Throw a member out: a device that was lost, say.\n\n"
    "Its certificates count no more, at any peer that hears of it, and none is renewed. Tokens with which it came in "
    "let nobody else in.",
    examples=[("the device p7", "edgepeer fleet evict p7"), ("the operator bob", "edgepeer fleet evict @bob")],
    run=evict,
)
OPERATOR = Verb(
    kind=FleetOperatorSettings,
    about="Print the line that makes somebody an operator, who may start and stop jobs.",
    examples=[("bob", "edgepeer fleet operator add bob")],
    run=operator,
)
ROTATE = Verb(
    kind=FleetRotateSettings,
    about="Replace the fleet's authority, in two steps, while it trains.\n\n"
    "First a new one issues certificates, and both count; members take one as soon as they hear of it, for which "
    "`edgepeer fleet serve` must run. When all have one, --finish drops the old authority.",
    examples=[
        ("begin", "edgepeer fleet rotate-ca"),
        ("end, when `edgepeer fleet list` shows nobody with the old one's", "edgepeer fleet rotate-ca --finish"),
    ],
    run=rotate,
)
SERVE = Verb(
    kind=FleetServeSettings,
    about="Let devices in that have a token, and renew certificates.\n\n"
    "Training never needs it: it may be off but for the time in which devices join, and now and then for a while in "
    "the months in which certificates are to be renewed.",
    examples=[("on the machine where `edgepeer fleet init` was run", "edgepeer fleet serve")],
    run=serve,
)
VERBS: Final[tuple[Verb[Any], ...]] = (INIT, TOKEN, LIST, EVICT, OPERATOR, ROTATE, SERVE)
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
