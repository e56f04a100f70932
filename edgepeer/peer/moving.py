"""Notices when this machine gets other addresses: another lease, another router, an interface that comes up later.

Those that a life began with stay in its views, where they tell it from others. Where it listens by now is said beside
them, in its presence, and tried first by whoever dials it (whereabouts.py).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Final

from edgepeer.sockets import is_loopback
from edgepeer.transport.options import advertised, parse_address

__all__ = ["LOOK_EVERY_S", "follow_addresses", "may_move"]

LOOK_EVERY_S: Final = 10.0

_log = logging.getLogger(__name__)


def may_move(listening: str) -> bool:
    """Whether a listener that is bound to `listening` (host:port) takes connections to whatever addresses there are."""
    return ipaddress.ip_address(parse_address(listening)[0]).is_unspecified


async def follow_addresses(
    listening: str, began: tuple[str, ...], moved: Callable[[tuple[str, ...]], None], *, every_s: float = LOOK_EVERY_S
) -> None:
    """Look at the machine's addresses for ever.

    Args:
        listening: what the listener is bound to, host:port.
        began: what it was reached under when this peer's life began, most promising first.
        moved: hears under what it is reached now, each time that this is another; () is `began` again.
        every_s: the pause between two looks, in seconds.
    """
    said = began
    while True:
        await asyncio.sleep(every_s)
        try:
            found = advertised(listening)
        except OSError:
            continue
        # A machine that is cut off for a moment keeps what it had: nobody can reach it, and it may be the same again.
        if found != said and not all(is_loopback(parse_address(each)[0]) for each in found):
            said = found
            _log.info("others can reach this peer at %s now", ", ".join(found))
            moved(() if found == began else found)
