"""Names of peers, fabrics and generations: what is allowed, and how a device keeps its own."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NewType

import msgspec

from edgepeer.errors import ConfigError, PeerError
from edgepeer.given import open_regular
from edgepeer.lasting import sync_directory
from edgepeer.processes import os_reason
from edgepeer.readable import readable

__all__ = [
    "UNHEARD",
    "Generation",
    "Identity",
    "Lineage",
    "PeerId",
    "check_fabric",
    "check_peer_id",
    "generation_order",
    "keep_generation",
    "load_identity",
    "next_life",
]

_log = logging.getLogger(__name__)

PeerId = NewType("PeerId", str)
"""Random, kept for the life of a device, never reused. Safe in an MQTT topic and in a file name."""

_JOINS = 1 << 11
"""So many times a millisecond a process may join again and not come to the number of a later start."""
_LATEST_S = 4_000_000_000
"""2096: a clock that says later than that does not count. From 2109 on nobody took its number for a life's."""
_LIVES = 1 << 53
"""Nobody takes such a number, or a larger one."""
_STARTS = 1 << 36
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
"""What a disk may say today, and not tomorrow: no setting is wrong, and whoever starts services tries again. A card
that has failed to write is read-only until it is mounted anew."""
UNHEARD: Final = "; where that is behind, a fleet does not hear it"
"""What may become of a life that is numbered by the clock alone."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who a peer is, and which of its lives this is."""

    peer_id: PeerId
    incarnation: int
    """Grows at every start, and by one whenever the peer joins again, so that no two lives have the same."""
    known: Generation | None = None
    """The newest generation that the device was in."""


@readable
class Generation(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A beginning. Of two, the later in this order counts: whoever meets one stops what it did in an earlier one.

    More founders count more, so that a fleet that was cut off does not give way to one newcomer who never heard of it.
    """

    counter: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1
    """One more than that of the newest generation that its founder had heard of."""
    founders: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    """How many were in its first view."""
    nonce: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    """Tells it from all others: a fingerprint of its founding lives, which begin nothing twice."""

    def __str__(self) -> str:
        return f"{self.counter}-{self.nonce:08x}"

    @classmethod
    def after(cls, known: Generation | None, lives: Sequence[tuple[str, int]]) -> Generation:
        """The one that these lives, as (peer, incarnation), begin, who know of that one."""
        counter = min(known.counter + 1, 2**31 - 1) if known is not None else 1
        return cls(counter, len(lives), zlib.crc32(f"{counter};{known};{lives}".encode()))


@readable
class Lineage(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What a run's rounds are counted in: only within one are states after rounds of the same number the same. Of two
    the later in this order counts."""

    generation: Generation
    begun: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """Which beginning of the run in that generation (`View.plain_round`); 0: of a checkpoint that does not say it."""


def generation_order(name: str) -> tuple[int, str]:
    """What sorts generations by their names, oldest first; no name comes before all."""
    counter, _, _ = name.partition("-")
    return (int(counter) if counter else 0, name)


def check_peer_id(text: str) -> PeerId:
    """Return `text` as a peer id, or raise ConfigError."""
    if not _NAME.match(text):
        raise ConfigError(f"peer id {text!r}: allowed are 1 to 63 letters, digits, '.', '_' and '-'")
    return PeerId(text)


def check_fabric(text: str) -> str:
    """Return `text` as a fabric name, or raise ConfigError."""
    if not _NAME.match(text):
        raise ConfigError(f"fabric {text!r}: allowed are 1 to 63 letters, digits, '.', '_' and '-'")
    return text


def load_identity(state_dir: Path | None, peer_id: str | None = None) -> Identity:
    """The identity kept in `state_dir`, with its incarnation counted up; a fresh one where there is none.

    Without a state directory the identity lives as long as the process. Of what a loss of power has spoilt only the
    peer's name is missed: where that is known, the clock numbers this start; what generation the device was in, the
    view says that is kept beside it, and the others. So whoever is told who it is, as members of fleets are, starts.

    Raises:
        ConfigError: the directory can't be used, holds another peer's identity than `peer_id`, or one that is damaged,
            where `peer_id` does not say whose.
        PeerError: its disk is full, or broken.
    """
    wanted = check_peer_id(peer_id) if peer_id is not None else None
    if state_dir is None:
        return Identity(peer_id=wanted or PeerId(secrets.token_hex(8)), incarnation=next_life(0))
    path = state_dir / "identity"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        kept, starts, last = _kept_identity(path, wanted)
        if wanted is not None and kept != wanted:
            raise ConfigError(f"state_dir {state_dir}: belongs to peer {kept!r}, not {wanted!r}")
        if not 0 <= starts < _STARTS:  # nobody has started it as often
            starts = 0
        incarnation = max(starts + 1 << 16, next_life(last))
        _write_atomically(path, f"{kept} {starts + 1} {incarnation}\n")
        known = _kept_generation(state_dir / "generation")
    except OSError as error:
        which = f"{error.filename}: " if error.filename not in (None, str(state_dir)) else ""
        line = f"state_dir {state_dir}: can't keep the identity there: {which}{os_reason(error)}"
        if error.errno in _PASSING:
            raise PeerError(f"{line}; not started, for each start must be counted") from error
        raise ConfigError(line) from error
    except ValueError as error:
        raise ConfigError(f"state_dir {state_dir}: can't keep the identity there: {error}") from error
    return Identity(peer_id=kept, incarnation=incarnation, known=known)


def next_life(last: int) -> int:
    """The incarnation of a life that begins now, after that one; 0: none is known of."""
    if last >= _LIVES:  # kept by a build that believed any clock; nobody knows of that life
        last = 0
    now = time.time()
    # The clock may stand anywhere after a start; and what was kept may have been lost, and the count with it.
    return max(last + _JOINS, int((now if 0 <= now < _LATEST_S else 0) * 1000) * _JOINS)


def keep_generation(state_dir: Path | None, generation: Generation) -> None:
    """Remember that the device was in that generation: one that it begins later comes after it.

    Raises:
        OSError: it can't be written.
    """
    if state_dir is not None:
        text = f"{generation.counter} {generation.founders} {generation.nonce}\n"
        _write_atomically(state_dir / "generation", text)


def _kept_identity(path: Path, wanted: PeerId | None) -> tuple[PeerId, int, int]:
    """Who is kept there, how often it has started, and the number of its last life; a new one if nobody is.

    Raises:
        ValueError: it is damaged, and `wanted` does not say whose it was.
    """
    new = wanted or PeerId(secrets.token_hex(8))
    if not path.exists():
        return new, 0, 0
    fields = _read(path).split()
    if not fields and wanted is None:
        _log.warning("%s is empty: this device is a new peer, %s", path, new)
        return new, 0, 0
    name = PeerId(fields[0]) if fields and _NAME.match(fields[0]) else None
    if name is not None:
        with contextlib.suppress(IndexError, ValueError):
            return name, int(fields[1]), int(fields[2]) if len(fields) > 2 else 0
    if wanted is not None and name in (None, wanted):
        _log.warning("%s is damaged: this start of %s is numbered by the clock alone%s", path, wanted, UNHEARD)
        return wanted, 0, 0
    if name is not None:
        raise ValueError(f"{path} is damaged: write {name} 0 into it, and no more")
    raise ValueError(
        f"{path} is damaged, and does not begin with a peer id: write the peer's id and 0 into it; or delete it, and "
        "the device is a new peer"
    )


def _kept_generation(path: Path) -> Generation | None:
    if not path.exists():
        return None
    try:
        counter, founders, nonce = map(int, _read(path).split())
        return msgspec.convert((counter, founders, nonce), Generation)
    except ValueError:  # msgspec's are, too
        _log.warning("%s is damaged, and counts no more: the last view, and the others, tell the generation", path)
        return None


def _read(path: Path) -> str:
    with open_regular(path) as file:
        return file.read().decode(errors="replace")


def _write_atomically(path: Path, text: str) -> None:
    # A device that loses power here must find the old identity or the new one, never half of one; and after it the new
    # one: else, without a clock, its next life would have the number of this one.
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
