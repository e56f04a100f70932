"""A device's identity, where it has joined a fleet: loads `cryptography` then, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgepeer.errors import ConfigError

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["load_trust"]


def load_trust(fleet: Path | None) -> Identity | None:
    """The identity in that directory; None: there is no fleet.

    Raises:
        ConfigError: it can't be used; Expired: its certificate has expired.
    """
    if fleet is None:
        return None
    try:
        from edgepeer.trust.identity import Identity
    except ImportError as error:
        raise ConfigError(f"fleet = {fleet}: needs cryptography ({error}): pip install 'edgepeer[secure]'") from error
    return Identity.load(fleet)
