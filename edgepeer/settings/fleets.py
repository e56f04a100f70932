"""Settings of `edgepeer join` and the verbs of `edgepeer fleet`, as in `model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from edgepeer.errors import ConfigError
from edgepeer.settings.model import VerbSettings
from edgepeer.settings.types import Address as _Address
from edgepeer.settings.types import Listen as _Listen
from edgepeer.settings.types import LogLevel as _LogLevel
from edgepeer.settings.types import Name as _Name
from edgepeer.settings.types import Text as _Text
from edgepeer.settings.types import says as _says

__all__ = [
    "FleetEvictSettings",
    "FleetInitSettings",
    "FleetListSettings",
    "FleetMoveSettings",
    "FleetOperatorSettings",
    "FleetRotateSettings",
    "FleetServeSettings",
    "FleetSettings",
    "FleetTokenSettings",
    "JoinSettings",
    "seconds",
]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_Time = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,5}[smhd]$",
        extra={"allowed": "a number and s, m, h or d, such as 90s, 30m, 24h or 7d", "metavar": "TIME"},
    ),
]


def seconds(time: str) -> float:
    """What a time such as 24h is."""
    return float(int(time[:-1]) * _UNITS[time[-1]])


class JoinSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer join`."""

    verb: ClassVar[str] = "join"

    log_level: _LogLevel = "warning"
    host: Annotated[
        _Text | None, _says("Where `edgepeer fleet serve` runs; 7701 is the port if none is given.", metavar="HOST")
    ] = None
    string: Annotated[
        _Text | None, _says("What `edgepeer fleet token` has printed, epj1-...", secret=True, metavar="STRING")
    ] = None
    stdin: Annotated[
        bool, _says("Read STRING from standard input, so that nobody sees it in the list of processes.")
    ] = False
    dir: Annotated[
        Path | None,
        _says(
            "Directory for what makes this device a member; for root /var/lib/edgepeer/fleet, else one below "
            "~/.local/share.",
            metavar="DIR",
        ),
    ] = None
    id: Annotated[
        _Name | None,
        _says("This device's name; without it as the token says, as in the state directory, or its host name."),
    ] = None
    again: Annotated[bool, _says("Leave the fleet that this device is in for this one.")] = False
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetSettings(VerbSettings, frozen=True, kw_only=True):
    """What every verb of `edgepeer fleet` understands."""

    log_level: _LogLevel = "warning"
    home: Annotated[
        Path | None,
        _says(
            "Directory of the fleet's authority; for root /var/lib/edgepeer-fleet, else one below ~/.local/share.",
            metavar="DIR",
        ),
    ] = None


class FleetInitSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet init`."""

    verb: ClassVar[str] = "fleet-init"
    apart: ClassVar[tuple[str, ...]] = ("broker",)

    name: Annotated[_Name | None, _says("The fleet's name, which is also its fabric's.", metavar="NAME")] = None
    broker: Annotated[
        _Text | None,
        _says(
            "Where devices find the broker: a host, or mqtts://host:port; several with commas between.", metavar="HOST"
        ),
    ] = None
    service: Annotated[
        _Address | None,
        _says(
            "Where devices find `edgepeer fleet serve`, if not at port 7701 of the broker's host.",
            allowed="host:port",
            metavar="HOST:PORT",
        ),
    ] = None
    operator: Annotated[_Name | None, _says("The first operator's name; yours here if not given.")] = None
    lifetime: Annotated[
        Annotated[int, Meta(ge=1, le=3650)], _says("Days that a certificate counts, of which the last third renews it.")
    ] = 365
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetTokenSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet token`."""

    verb: ClassVar[str] = "fleet-token"

    id: Annotated[_Name | None, _says("Only for a device of this name; without it, devices say theirs.")] = None
    role: Annotated[Literal["peer", "viewer", "broker"], _says("What who comes with it may be.")] = "peer"
    uses: Annotated[Annotated[int, Meta(ge=1, le=4096)], _says("How many devices it lets in.")] = 1
    ttl: Annotated[_Time, _says("For how long.")] = "1h"
    withdraw: Annotated[
        _Text | None,
        _says("Instead, let the token of this id, as in `edgepeer fleet list`, let nobody in any more.", metavar="ID"),
    ] = None
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetListSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet list`."""

    verb: ClassVar[str] = "fleet-list"

    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetEvictSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet evict`."""

    verb: ClassVar[str] = "fleet-evict"

    member: Annotated[
        _Text | None, _says("Whom: p7 is a peer, @bob an operator, viewer:eve a viewer.", metavar="ID")
    ] = None
    timeout: Annotated[Annotated[float, Meta(gt=0, le=600)], _says("Seconds to wait for the broker.")] = 5.0
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetMoveSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet move`."""

    verb: ClassVar[str] = "fleet-move"
    apart: ClassVar[tuple[str, ...]] = ("broker",)

    broker: Annotated[
        _Text | None,
        _says(
            "Where devices find the broker from now on: a host, or mqtts://host:port; several with commas between.",
            metavar="HOST",
        ),
    ] = None
    service: Annotated[
        _Address | None,
        _says(
            "Where devices find `edgepeer fleet serve` from now on, if that is not where it was.",
            allowed="host:port",
            metavar="HOST:PORT",
        ),
    ] = None
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetOperatorSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet operator add`."""

    verb: ClassVar[str] = "fleet-operator-add"

    name: Annotated[_Name | None, _says("The operator's name.", metavar="NAME")] = None
    ttl: Annotated[_Time, _says("For how long the join string is good.")] = "1h"
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False


class FleetRotateSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet rotate-ca`."""

    verb: ClassVar[str] = "fleet-rotate-ca"

    finish: Annotated[bool, _says("Drop the old authority, now that all members have the new one's certificates.")] = (
        False
    )
    force: Annotated[
        bool,
        _says("Drop it all the same: who has none must join again, and newcomers take up no job of before."),
    ] = False
    timeout: Annotated[Annotated[float, Meta(gt=0, le=600)], _says("Seconds to wait for the broker.")] = 5.0
    json: Annotated[bool, _says("Print one JSON object, for scripts.")] = False

    def __post_init__(self) -> None:
        if self.force and not self.finish:
            raise ConfigError("force: only with --finish, whose hesitation it overrides; without, a rotation begins")


class FleetServeSettings(FleetSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer fleet serve`."""

    verb: ClassVar[str] = "fleet-serve"

    log_level: _LogLevel = "info"
    listen: Annotated[_Listen, _says("Where devices come to join and to renew their certificates.")] = "0.0.0.0:7701"
