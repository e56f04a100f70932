"""Which directories and ports are meant where none is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["BROKER_PORT", "SERVICE_PORT", "device_directory", "registrar_home"]

SERVICE_PORT: Final = 7701
BROKER_PORT: Final = 8883


def device_directory() -> Path:
    """Of what `edgepeer join` makes: for root, where the service keeps its state."""
    return Path("/var/lib/edgepeer/fleet") if os.geteuid() == 0 else _data() / "edgepeer" / "fleet"


def registrar_home() -> Path:
    """Of what `edgepeer fleet init` makes."""
    return Path("/var/lib/edgepeer-fleet") if os.geteuid() == 0 else _data() / "edgepeer-fleet"


def _data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
