"""Who can reach a peer, and what its owner should know about that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from edgepeer.sockets import format_place, is_loopback
from edgepeer.transport.options import parse_address

__all__ = ["warn_of_reach"]

_log = logging.getLogger(__name__)

_OTHER: Final = {"0.0.0.0": ("IPv4", "::", "IPv6"), "::": ("IPv6", "0.0.0.0", "IPv4")}
"""All addresses of one kind, and of the other: nobody is let in by both."""


def warn_of_reach(listening: str, announced: Sequence[str], broker_host: str, *, sealed: bool = False) -> None:
    """Say so if a peer is open to the network, or closed to a fleet that is on one. `announced`: its addresses, as the
    others know them."""
    host, port = parse_address(listening)
    away = not is_loopback(broker_host)
    if is_loopback(host):
        if away:
            _log.warning(
                "listening on %s only: peers on other machines can't connect to this one; see --listen", listening
            )
        return
    if not sealed:
        _log.warning("listening on %s: the links between peers are not encrypted; see edgepeer join", listening)
    if away and all(is_loopback(parse_address(each)[0]) for each in announced):
        _log.warning(
            "listening on %s, but announced as %s only: peers on other machines can't connect to this one; %s",
            *(listening, ", ".join(announced), _remedy(host, port)),
        )


def _remedy(host: str, port: int) -> str:
    if host not in _OTHER:
        return "see --advertise"
    kind, other, other_kind = _OTHER[host]
    return (
        f"this machine has no address of {kind} that they could use: on a network of {other_kind}, --listen "
        f"{format_place(other, port)}; or see --advertise"
    )
