"""`edgepeer fleet init`: founds a fleet."""

from __future__ import annotations

import getpass
import re
from typing import Final

from edgepeer.cli.fleet.home import home_of, needs, print_json
from edgepeer.cli.fleet.places import places_of, service_at, urls_of
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError, TrustError
from edgepeer.settings import FleetInitSettings, FleetSettings

__all__ = ["INIT"]

_DAY_S: Final = 86400.0


def init(settings: FleetInitSettings) -> int:
    """Found a fleet: its authority, its broker's and its first operator's certificates."""
    from edgepeer.enrol.places import SERVICE_PORT

    if settings.name is None or settings.broker is None:
        raise ConfigError(
            "say how it is called and where devices find its broker, as in: edgepeer fleet init greenhouse --broker "
            "raspberrypi.local"
        )
    brokers = places_of(settings.broker)
    urls = urls_of(brokers)
    service, service_port = service_at(settings.service or brokers[0][0])
    with needs():
        from edgepeer.enrol.household import Household
        from edgepeer.enrol.registrar import Registrar
    home = home_of(settings)
    registrar = Registrar.found(
        home, settings.name, broker=urls, service=service, lifetime_s=settings.lifetime * _DAY_S
    )
    try:
        household = Household(registrar, home)
        household.settle(settings.operator or _own_name())
    except TrustError as error:
        raise TrustError(f"{error}; the fleet is founded: the same command again makes what is missing") from None
    finally:
        registrar.close()
    port = brokers[0][1]
    if settings.json:
        fields = {"fabric": settings.name, "home": home, "broker": household.broker, "operator": household.operator}
        print_json({name: str(value) for name, value in fields.items()} | {"urls": urls, "service": service})
        return 0
    print(f"fleet {settings.name}: {home} (whoever can read it has the fleet: keep a copy, in a safe place)\n")
    print("its broker, here or with that directory copied to where it runs:")
    print(f"  edgepeer broker --listen 0.0.0.0:{port} --fleet {household.broker}")
    print(f"here, where devices come to join and to renew their certificates; they look for it at {service}:")
    listen = "" if service_port == SERVICE_PORT else f" --listen 0.0.0.0:{service_port}"
    print(f"  edgepeer fleet serve{listen}{_where(settings)}")
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
