"""Where devices find a fleet's broker and its service, as `edgepeer fleet init` and `move` are told."""

from __future__ import annotations

import re

from edgepeer.errors import ConfigError
from edgepeer.fabric.address import MAX_BROKERS
from edgepeer.printable import printable
from edgepeer.sockets import format_place, host_and_port

__all__ = ["places_of", "service_at", "urls_of"]


def places_of(broker: str) -> list[tuple[str, int]]:
    """Host and port of each broker.

    Raises:
        ConfigError: there is something else.
    """
    from edgepeer.enrol.places import BROKER_PORT

    given = [re.sub(r"^mqtts://|/$", "", each.strip()) for each in broker.split(",")]
    if (plain := next((each for each in given if "://" in each), None)) is not None:
        raise ConfigError(f"broker = {printable(plain)}: must be a host, host:port, or mqtts://host:port")
    if len(given) > MAX_BROKERS:
        raise ConfigError(f"broker: {len(given)} addresses, at most {MAX_BROKERS}")
    return [host_and_port(each, BROKER_PORT, "broker") for each in given]


def urls_of(places: list[tuple[str, int]]) -> tuple[str, ...]:
    """The same, as members keep it."""
    return tuple(f"mqtts://{format_place(*place)}" for place in places)


def service_at(place: str) -> tuple[str, int]:
    """host:port, and the port by itself.

    Raises:
        ConfigError: it is no place.
    """
    from edgepeer.enrol.places import SERVICE_PORT

    host, port = host_and_port(place, SERVICE_PORT, "service")
    return format_place(host, port), port
