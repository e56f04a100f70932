"""Who can reach a peer, and what its owner should know about that."""

from __future__ import annotations

import logging

from edgepeer.sockets import is_loopback
from edgepeer.transport.options import parse_address

__all__ = ["warn_of_reach"]

_log = logging.getLogger(__name__)


def warn_of_reach(listening: str, broker_host: str, *, sealed: bool = False) -> None:
    """Say so if a peer is open to the network, or closed to a fleet that is on one."""
    if not is_loopback(parse_address(listening)[0]):
        if not sealed:
            _log.warning("listening on %s: the links between peers are not encrypted; see edgepeer join", listening)
    elif not is_loopback(broker_host):
        _log.warning("listening on %s only: peers on other machines can't connect to this one; see --listen", listening)
