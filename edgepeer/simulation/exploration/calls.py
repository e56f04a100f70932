"""What the application of one life does in coded rounds, piece by piece: each when the explorer says so.

    piece                          | what it does
    -------------------------------+------------------------------------------------------------------------------
    a call begins                  | it takes part, of nothing computed yet; or otherwise than the rest (`OTHER_CALLS`)
    the round goes on in a view    | it says again what it has computed, of the slots that it has there
    the round is closed            | it encodes what it was asked for
    it has brought a plain vector, | it wants the code again
    and no code                    |
    a chunk is computed            | it says so

The last of these comes when nothing else is to be done, since it is what takes time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import numpy as np

from edgepeer.coding.computed import ComputedChunks
from edgepeer.coding.scheme import CodingScheme
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.node import Node

__all__ = ["OTHER_CALLS", "CodedCalls", "chunk", "contribution", "is_sum"]

OTHER_CALLS: Final = ("plain", "uncoded", "recode")
"""How a call may be unlike those of the others: with a vector as it is; the same, and the owner wants no code until it
has brought that; with chunks of another code."""


def contribution(peer: PeerId, number: int, size: int) -> ev.FloatVector:
    """What a peer brings to a round that is not coded. From a sum of these it can be read who is in it, and in which
    round."""
    return np.array([number * 16.0 ** int(peer[1:])] * size, dtype="<f8")


def chunk(chunk: int, number: int, size: int) -> ev.FloatVector:
    """A chunk of a round. From a sum it can be read likewise which are in it."""
    return np.array([number * 16.0**chunk] * size, dtype="<f8")


def is_sum(outcome: fx.RoundCommitted, blocks: int) -> bool:
    """Whether an outcome is the sum over what it says, each once.

    Of a coded round that is not exact, that can be told where chunks are in it as a whole or not at all, which the
    error says; where each vector stands for `blocks` of the sum, it does not.
    """
    number, size = outcome.round, outcome.sum.size
    if len(set(outcome.contributors)) != len(outcome.contributors):
        return False
    if not outcome.chunks and not outcome.error:
        plain = sum(contribution(peer, number, size) for peer in outcome.contributors)
        return np.array_equal(outcome.sum, plain)
    if outcome.exact != (outcome.error == 0):
        return False
    if outcome.error and (blocks > 1 or not float(outcome.error).is_integer()):
        return True
    whole = (at for at in range(outcome.chunks.bit_length()) if outcome.chunks >> at & 1)
    return np.allclose(outcome.sum, sum(chunk(at, number, size) for at in whole), rtol=1e-9, atol=1e-9)


class CodedCalls:
    """The calls of one application.

    Args:
        scheme: how all want rounds to be coded ...
        other: ... and how another program would.
        size: elements of a vector, a multiple of what its code divides it by.
    """

    def __init__(self, scheme: CodingScheme, other: CodingScheme, size: int) -> None:
        self._scheme, self._other, self._size = scheme, other, size
        self._wanted: CodingScheme | None = scheme
        self._work: ComputedChunks | None = None
        """Of the call in progress, if that is one with chunks ..."""
        self._said = 0
        """... and in which view that has said what is computed."""
        self._asked: fx.EncodeWanted | None = None
        self._closed = False
        """Whether it was asked for in that view: what is computed later does not count."""

    @property
    def blocks(self) -> int:
        """By how many times a vector may be shorter than the sum."""
        return self._scheme.blocks

    @property
    def wanted(self) -> ev.CodeWanted:
        """What the owner has said last."""
        return ev.CodeWanted(self._wanted)

    def over(self) -> None:
        """The call has ended, or its round has."""
        self._work, self._said, self._asked, self._closed = None, 0, None, False

    def ask(self, asked: fx.EncodeWanted) -> None:
        """The round is closed."""
        self._asked, self._closed = asked, True

    def goes_on(self, node: Node) -> bool:
        """Whether a call in progress has something to say, or something was asked."""
        at = node.view.stamp if node.view is not None else 0
        if self._asked is not None and (at, node.allreduce.committed + 1) == (self._asked.epoch, self._asked.round):
            return True
        if not node.allreduce.contributed or node.parts.membership.leaving:
            return False
        return self._wanted is None or (self._work is not None and self._said != at)

    def computes(self, node: Node) -> bool:
        """Whether a call in progress has something to compute."""
        here = node.view is not None and self._said == node.view.stamp and not node.parts.membership.leaving
        return here and not self._closed and self._work is not None and self._work.next_chunk() is not None

    def begin(self, kind: str, node: Node, number: int, handle: Callable[[ev.Event], None]) -> None:
        """Call for a round, as one of OTHER_CALLS, or like the rest."""
        self.over()
        self._want({"uncoded": None, "recode": self._other}.get(kind, self._scheme), handle)
        if kind in ("plain", "uncoded"):
            handle(ev.Contribute(contribution(node.id, number, self._size), 1.0))
        else:
            self._work = ComputedChunks()
            self._say(node, number, handle)

    def go_on(self, node: Node, number: int, handle: Callable[[ev.Event], None]) -> None:
        """Say what is to be said: see `goes_on`."""
        asked, self._asked = self._asked, None
        if asked is not None:
            assert self._work is not None
            handle(ev.Encoded(asked.epoch, asked.round, self._work.encode(asked.done, asked.narrow)))
        elif self._wanted is None:
            self._want(self._scheme, handle)
        else:
            self._say(node, number, handle)

    def compute(self, node: Node, number: int, handle: Callable[[ev.Event], None]) -> None:
        """Compute a chunk: see `computes`."""
        assert self._work is not None
        at = self._work.next_chunk()
        assert at is not None
        self._work.add(at, chunk(at, number, self._size))
        self._say(node, number, handle)

    def _want(self, scheme: CodingScheme | None, handle: Callable[[ev.Event], None]) -> None:
        if scheme is not self._wanted:
            self._wanted = scheme
            handle(self.wanted)

    def _say(self, node: Node, number: int, handle: Callable[[ev.Event], None]) -> None:
        view, work, scheme = node.view, self._work, self._wanted
        assert view is not None
        assert work is not None
        assert scheme is not None
        code = None
        if view.slots:
            with contextlib.suppress(ConfigError):  # the machine finds the same, and gives the round up
                code = scheme.build(len(view.slots), view.fanout)
        self._closed, self._said = self._closed and self._said == view.stamp, view.stamp
        work.enter(code, view.owned.get(node.id, ()))
        handle(ev.ChunksDone(view.stamp, number, work.done(), scheme.name))
