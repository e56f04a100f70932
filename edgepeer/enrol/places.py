"""Which directories and ports are meant where none is given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.printable import printable

__all__ = ["BROKER_PORT", "SERVICE_PORT", "device_directory", "format_place", "host_and_port", "registrar_home"]

SERVICE_PORT: Final = 7701
BROKER_PORT: Final = 8883
_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?\Z")


def device_directory() -> Path:
    """Of what `edgepeer join` makes: for root, where the service keeps its state."""
    return Path("/var/lib/edgepeer/fleet") if os.geteuid() == 0 else _data() / "edgepeer" / "fleet"


def registrar_home() -> Path:
    """Of what `edgepeer fleet init` makes."""
    return Path("/var/lib/edgepeer-fleet") if os.geteuid() == 0 else _data() / "edgepeer-fleet"


def _data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def host_and_port(text: str, port: int, setting: str = "host") -> tuple[str, int]:
    """What a user has called a place, in that setting, with the port that it has if none is said.

    Raises:
        ConfigError: it is none.
    """
    found = _PLACE.match(text)
    if found is None or (found[3] is not None and not 0 < int(found[3]) < 65536):
        raise ConfigError(f"{setting} = {printable(text)}: must be a host, or host:port")
    return found[1] or found[2], int(found[3] or port)


def format_place(host: str, port: int) -> str:
    """The same as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
