"""What systemd wants to know of a service (sd_notify(3)): ready, how it stands, that it lives, that it stops.

Nothing is said where nobody has asked, that is, without NOTIFY_SOCKET. The watchdog is fed by the event loop itself:
a loop that is stuck does not feed it, and systemd starts the service anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["notify", "ready", "tend_watchdog"]

_log = logging.getLogger(__name__)

_OFTEN: Final = 4
"""How often the watchdog is fed in the time after which it would bite."""


def notify(**facts: str) -> None:
    """Tell the service manager, if there is one: READY="1", STOPPING="1", STATUS="one line"."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    message = "\n".join(f"{name}={' '.join(value.split())}" for name, value in facts.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:  # a service manager that does not listen is no reason to fail
        _log.debug("NOTIFY_SOCKET %s: %s", address, error)


async def tend_watchdog() -> None:
    """Until cancelled: say that this process lives, if its service manager watches for that."""
    text, owner = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not (text.isdecimal() and int(text)) or owner not in ("", str(os.getpid())):
        return
    while True:
        notify(WATCHDOG="1")
        await asyncio.sleep(int(text) / 1e6 / _OFTEN)


@contextlib.asynccontextmanager
async def ready(status: str) -> AsyncIterator[None]:
    """A service is ready while the context is open, and stands so; then it stops."""
    notify(READY="1", STATUS=status)
    feeding = asyncio.create_task(tend_watchdog(), name="watchdog")
    try:
        yield
    finally:
        feeding.cancel()
        notify(STOPPING="1")
