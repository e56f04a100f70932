"""The fleet that an emulation's peers are members of: its authority lives in this process, and ends with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeer.emulation.home import fleet_home
from edgepeer.errors import ConfigError
from edgepeer.settings import EmulateSettings
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["EmulatedMembers", "found"]


@dataclass(frozen=True, kw_only=True)
class EmulatedMembers:
    """Who is in it."""

    peers: dict[str, Path]
    """The directory of each peer's identity."""
    broker: Identity
    operator: Identity
    """Whose job it is."""


@contextlib.contextmanager
def found(settings: EmulateSettings, names: Sequence[str]) -> Iterator[EmulatedMembers | None]:
    """A new fleet, if one is wanted.

    Raises:
        ConfigError: a broker that runs already can't be one of it, or cryptography isn't installed.
    """
    if not settings.secure:
        yield None
        return
    if settings.broker not in ("embedded", "mosquitto"):
        raise ConfigError(
            f"secure: broker = {settings.broker} is of no fleet that is made for this run: leave it out, or choose "
            "embedded or mosquitto"
        )
    try:
        from edgepeer.trust.founding import Founder
        from edgepeer.trust.identity import Identity
    except ImportError as error:
        raise ConfigError(f"secure: needs cryptography ({error}): pip install 'edgepeer[secure]'") from error
    with fleet_home() as home:
        founder = Founder(home, settings.fabric)
        yield EmulatedMembers(
            peers={name: founder.member(name) for name in names},
            broker=Identity.load(founder.member("broker", Role.BROKER)),
            operator=Identity.load(founder.member("emulator", Role.OPERATOR)),
        )
