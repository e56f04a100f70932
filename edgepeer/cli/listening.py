"""What the user is told who opens a port to the network."""

from __future__ import annotations

import logging

__all__ = ["is_loopback", "warn_if_open"]

_log = logging.getLogger("edgepeer")


def is_loopback(listen: str) -> bool:
    """Whether the host of host:port can be reached from this machine only."""
    from ipaddress import ip_address

    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def warn_if_open(listen: str) -> None:
    """Say what listening beyond loopback means for now."""
    if not is_loopback(listen):
        _log.warning(
            "listening on %s, beyond this machine: links are not yet encrypted, and whoever reaches the port "
            "can read and disturb the training; use it on a network that you trust",
            listen,
        )
