"""The numbers of the protocol. All times in seconds of the clock that `now` is read from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Generous by default: they decide when to give up, not how fast things go."""

    heartbeat_s: float = 1.0
    """A link on which nothing was sent for this long gets a Ping."""
    silence_s: float = 10.0
    """A link on which nothing was heard for this long is closed; a peer that has none for this long is gone."""
    stall_s: float = 300.0
    """A child that keeps a round waiting for this long, though it is alive and waits for nobody, is removed."""
    refused_s: float = 0.3
    """A peer whose link broke and whose presence on MQTT is cleared is gone after this long."""
    settle_s: float = 0.3
    """The first view is made when no new peer has appeared for this long ..."""
    settle_limit_s: float = 2.0
    """... but not later than this."""
    join_batch_s: float = 0.2
    """Changes to an idle fleet are collected for this long before a new view is made."""
    takeover_s: float = 3.0
    """Position p takes over p - 1 times this long after its parent was lost, if nobody before it has."""
    redial_min_s: float = 0.1
    """First pause between two attempts to connect; doubles up to ..."""
    redial_max_s: float = 2.0
    dial_back_s: float = 1.0
    """A parent connects to a child that has not connected to it for this long."""
    max_vector_bytes: int = 1 << 30
    """No vector of a round may be larger."""
    max_state_bytes: int = 4 << 30
    """No state that a neighbour hands over may be larger."""
    kept_results: int = 1
    """How many committed results a peer keeps for neighbours that missed the broadcast. Since a round needs all
    members, none of them is further behind than one; and the memory of a second one shows in the caches."""
    smallest_segment_bytes: int = 16 << 10
    """Segments of a vector are not cut smaller; a multiple of 8."""
    first_segment_bytes: int = 256 << 10
    """Size of segments on a link whose rate is not yet known; a multiple of 8."""
    state_segment_bytes: int = 256 << 10
    max_links: int = 256
    """How many peers may be connected at once, neighbours or not."""
