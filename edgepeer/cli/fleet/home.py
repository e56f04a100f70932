"""The fleet's authority on this machine, as every verb of `edgepeer fleet` finds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeer.errors import ConfigError
from edgepeer.settings import FleetSettings

if TYPE_CHECKING:
    from edgepeer.enrol.household import Household
    from edgepeer.enrol.registrar import Registrar

__all__ = ["home_of", "needs", "print_json", "registrar_of"]


def home_of(settings: FleetSettings) -> Path:
    """Where it lives, or is to live."""
    from edgepeer.enrol.places import registrar_home

    return (settings.home or registrar_home()).absolute()


@contextmanager
def needs() -> Iterator[None]:
    """Says so where what is imported here is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"fleet needs cryptography ({error}): pip install 'edgepeer[secure]'") from error


@contextmanager
def registrar_of(settings: FleetSettings) -> Iterator[tuple[Registrar, Household]]:
    """The fleet's authority, and the members here."""
    with needs():
        from edgepeer.enrol.household import Household
        from edgepeer.enrol.registrar import Registrar
    home = home_of(settings)
    registrar = Registrar.open(home)
    try:
        yield registrar, Household(registrar, home)
    finally:
        registrar.close()


def print_json(fields: object) -> None:
    """For scripts."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode())
