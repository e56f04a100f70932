"""What follows from the fleet that a device has joined: fabric, broker and name, where they aren't given; and what
contradicts it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edgepeer.errors import ConfigError
from edgepeer.processes import os_reason
from edgepeer.settings.fields import Setting
from edgepeer.settings.model import VerbSettings
from edgepeer.trust.directory import JOIN_AGAIN, Whereabouts, is_begun, is_joined
from edgepeer.trust.names import Role

__all__ = ["with_membership"]

_UNDER_STATE: Final = "fleet"
_TO_BE: Final = {
    Role.PEER: "on the device, `edgepeer join HOST STRING` makes one",
    Role.BROKER: "`edgepeer fleet init` has said where one is",
    Role.OPERATOR: "`edgepeer fleet operator add NAME` lets one in",
}
_ROLES: Final = {
    "peer": (Role.PEER,),
    "broker": (Role.BROKER,),
    "train": (Role.OPERATOR,),
    "status": (Role.OPERATOR, Role.VIEWER, Role.PEER),
}


def with_membership(
    kind: type[VerbSettings], settings: Mapping[str, Setting], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The values, with what the fleet's directory adds: the one that is given, or that of a peer's state directory.

    Raises:
        ConfigError: the directory can't be used, or says something else.
    """
    if "fleet" not in settings:
        return dict(values)
    directory: Path | None = values.get("fleet")
    if directory is None:
        state: Path | None = values.get("state_dir")
        if state is None:
            return dict(values)
        directory = state / _UNDER_STATE
        try:
            joined, begun = is_joined(directory), is_begun(directory)
        except OSError as error:
            raise ConfigError(f"state_dir = {state}: can't look into it: {os_reason(error)}") from None
        if not begun:
            return dict(values)
        if not joined:
            # Alone, without a fleet, it would be open to anybody, and its own fleet would look for it.
            raise ConfigError(
                f"state_dir = {state}: {directory} holds a part of what a member of a fleet needs, not all: "
                f"{JOIN_AGAIN}; or, if it is to be in no fleet, delete {directory}"
            )
    if values.get("insecure"):
        raise ConfigError(f"insecure: the device is one of a fleet ({directory}): leave one of them out")
    where = Whereabouts.read(directory)
    if where.role not in _ROLES[kind.verb]:
        needed = " or ".join(_ROLES[kind.verb])
        remedy = _TO_BE[_ROLES[kind.verb][0]]
        raise ConfigError(
            f"fleet = {directory}: is of {where.role} {where.id}, but {kind.verb} needs {needed}: {remedy}"
        )
    broker = values.get("broker", ",".join(where.broker))
    if "broker" in settings and not all(
        url.strip().startswith("mqtts://") for url in broker.split(",") if "://" in url
    ):
        shown = settings["broker"].shown(broker)
        raise ConfigError(f"broker = {shown}: a fleet ({directory}) needs mqtts://, so that nobody else can listen")
    result = {"broker": ",".join(where.broker), "fabric": where.fabric, **values, "fleet": directory}
    if "peer_id" in settings:
        result["peer_id"] = values.get("peer_id") or where.id
    for name, own in (("fabric", where.fabric), ("peer_id", where.id)):
        if name in settings and result[name] != own:
            raise ConfigError(f"{name} = {result[name]}: the fleet in {directory} says {own}: leave it out")
    return {name: value for name, value in result.items() if name in settings}
