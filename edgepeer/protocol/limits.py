"""The numbers of the protocol. All times in seconds of the clock that `now` is read from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds within which timeouts adapt to what is measured, and sizes. None needs to be tuned."""

    heartbeat_min_s: float = 0.05
    """While rounds are short, a link on which nothing was sent for this long gets a Ping ..."""
    heartbeat_s: float = 1.0
    """... and for this long while there are none."""
    silence_s: float = 3.0
    """A link on which nothing was heard for this long is closed, whatever was measured; a peer that cannot be reached
    on any path for this long is gone."""
    stall_s: float = 300.0
    """A child that keeps a round waiting for this long, though it is alive and waits for nobody, is removed."""
    refused_s: float = 0.2
    """A peer whose machine says that it is not there, or whose link broke and whose presence on MQTT is cleared, is
    gone after this long without any path."""
    relay_after_s: float = 0.15
    """The broker is tried as a path when no neighbour has found one for this long."""
    settle_s: float = 0.3
    """The first view is made when no new peer has appeared for this long ..."""
    settle_limit_s: float = 2.0
    """... but not later than this."""
    found_s: float = 2.0
    """Who comes later in the order begins a generation so many times this later, if nobody before it has."""
    anew_s: float = 10.0
    """A view of which nobody answers for this long is taken to be over ..."""
    anew_run_s: float = 30.0
    """... and one that works on the run that is wanted, for this long."""
    join_batch_s: float = 0.2
    """Changes to an idle fleet are collected for this long before a new view is made."""
    takeover_s: float = 0.5
    """Position p takes over p - 1 times this long after its parent was lost, if nobody before it has."""
    poll_s: float = 0.25
    """Who wants to take over asks again after this long."""
    penalty_s: float = 2.0
    """A peer that was lost again waits this long before it is let in again; doubles each time up to ..."""
    penalty_limit_s: float = 32.0
    """... this: well within the minute that a program waits to be let in, by default."""
    redial_min_s: float = 0.1
    """First pause between two attempts to connect; doubles up to ..."""
    redial_max_s: float = 1.0
    dial_back_s: float = 0.5
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
    state_window_bytes: int = 2 << 20
    """So much of a state is on its way at most, and of several neighbours who take one at once each begins with its
    share: what goes behind it does not wait for all, and the broker takes only so much at a time (`fabric/relay.py`): a
    state that is larger would never get through it."""
    tunnel_bytes: int = 1 << 20
    """What goes through a neighbour goes in pieces of at most this size; a multiple of 8."""
    relay_bytes: int = 56 << 10
    """What goes through the broker goes in pieces of at most this size; a multiple of 8. With what is around it that is
    less than 64 KiB, which brokers take: of longer packets some end the connection (`fabric/outbox.py`)."""
    max_links: int = 256
    """How many peers may be connected at once, neighbours or not."""
