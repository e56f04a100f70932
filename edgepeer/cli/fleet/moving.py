"""`edgepeer fleet move`: lets devices look for the fleet elsewhere."""

from __future__ import annotations

from edgepeer.cli.fleet.home import print_json, registrar_of
from edgepeer.cli.fleet.places import places_of, service_at, urls_of
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError
from edgepeer.settings import FleetMoveSettings
from edgepeer.sockets import host_and_port

__all__ = ["MOVE"]


def move(settings: FleetMoveSettings) -> int:
    """Say where devices find the broker, and the service, from now on."""
    if settings.broker is None:
        raise ConfigError("say where its broker is by now, as in: edgepeer fleet move --broker 192.168.1.20")
    from edgepeer.enrol.places import SERVICE_PORT

    brokers = places_of(settings.broker)
    with registrar_of(settings) as (registrar, household):
        before, fabric = registrar.service, registrar.fabric
        service, _ = service_at(settings.service or _where_it_was(before, registrar.broker, brokers))
        urls = urls_of(brokers)
        changed = registrar.move(broker=urls, service=service)
        household.update()
    if settings.json:
        print_json({"fabric": fabric, "urls": urls, "service": service, "changed": changed})
        return 0
    print(f"fleet {fabric}: broker {','.join(urls)}, service {service}")
    print(
        f"a member that no broker lets in asks the service at {before} within five minutes, and changes over by itself"
    )
    if service != before:
        print("one that can't reach it there is told by this line on the device, whether its peer runs or not:")
        print(f"  edgepeer join {service.removesuffix(f':{SERVICE_PORT}')}")
    return 0


def _where_it_was(service: str, urls: tuple[str, ...], brokers: list[tuple[str, int]]) -> str:
    """The service's place of before, unless it may have moved with the broker.

    Raises:
        ConfigError: it may have.
    """
    host, port = host_and_port(service, None, "service")
    old = {place[0] for place in places_of(",".join(urls))}
    if host in old and host not in {place[0] for place in brokers}:
        raise ConfigError(
            f"service: devices look for `edgepeer fleet serve` at {service}, where the broker was: say --service "
            f"{brokers[0][0]}:{port} if it has moved, too, or --service {service} if it is there still"
        )
    return service


MOVE = Verb(
    kind=FleetMoveSettings,
    about="Let devices look for the fleet's broker elsewhere.\n\n"
    "Nobody needs to join again. Members that no broker lets in ask the service, so keep `edgepeer fleet serve` where "
    "it is until they have, or tell the devices where it is by now: edgepeer join HOST. Peers that run change over "
    "without a restart; to move with both brokers up, stop the old one when this has been said.",
    examples=[
        ("the machine of both has another address", "edgepeer fleet move --broker 10.0.0.9 --service 10.0.0.9:7701"),
        ("the broker alone has moved", "edgepeer fleet move --broker hub2.local --service hub1.local:7701"),
    ],
    run=move,
)
