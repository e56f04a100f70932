"""The application of a simulated peer whose rounds are coded: it computes chunk after chunk in virtual time."""

from __future__ import annotations

import contextlib

from edgepeer.coding.computed import ComputedChunks
from edgepeer.errors import ConfigError
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.simulation.process import Process
from edgepeer.simulation.task import Task, chunk_vector
from edgepeer.topology.view import View

__all__ = ["CodedApp"]


class CodedApp:
    """What one life of a peer computes."""

    def __init__(self, task: Task, peer: Process) -> None:
        self._task = task
        self._peer = peer
        self._number = 0
        self._view: View | None = None
        self._work = ComputedChunks()
        self._blocks = 1
        self._turn = 0  # counts what is computed: what was for an earlier round comes to nothing
        self._busy = False
        self._other = ""
        """What it takes part in the round with, if not with chunks of the code that all have."""
        self._scheme = task.scheme
        """How it wants rounds to be coded."""
        self.given_up = 0
        """The round whose call was cancelled: what is computed for it counts, and no more comes; 0: none."""

    def give_up(self) -> None:
        """The call of the round is cancelled."""
        self._turn += 1
        self.given_up, self._busy = self._number, False

    def call_again(self) -> None:
        """The round of the call that was cancelled is over, or begins anew: nothing that was computed for it counts."""
        self.given_up = self._number = 0

    def go_on(self, number: int, view: View) -> None:
        """Take part in that round in that view."""
        if number != self._number:
            self._number, self._view, self._work, self._busy = number, None, ComputedChunks(), False
            self._turn += 1
            self._begin(number)
        if number != self._number or self._brings_plain:
            return
        if view is not self._view:
            self._view = view
            code = None
            if view.slots and self._scheme is not None:
                with contextlib.suppress(ConfigError):  # the machine finds the same, and gives the round up
                    code = self._scheme.build(len(view.slots), view.fanout)
            self._blocks = code.blocks if code is not None else 1
            self._work.enter(code, view.owned.get(self._peer.id, ()))
            self._say()
        if number != self.given_up:
            self._compute()

    def _begin(self, number: int) -> None:
        """Call as the program does in that round. What comes of that may be that it is in another one."""
        self._other = self._task.other_call(self._peer.id, self._peer.incarnation, number)
        scheme = {"without a code": None, "another code": self._task.other_scheme}.get(self._other, self._task.scheme)
        if scheme is not self._scheme:
            self._scheme = scheme
            self._peer.receive(ev.CodeWanted(scheme))
        if self._brings_plain and number == self._number:
            vector, weight = self._task.contribution(self._peer.id, number, "")
            self._peer.receive(ev.Contribute(vector, weight))
            if self._scheme is None:
                self._peer.work(self._task.compute_s(), self._want_code_again)

    def _want_code_again(self) -> None:
        """Also while the plain call goes on, which was cancelled, say."""
        if self._peer.alive and self._scheme is None:
            self._scheme = self._task.scheme
            self._peer.receive(ev.CodeWanted(self._scheme))

    @property
    def _brings_plain(self) -> bool:
        return self._other in ("plain", "without a code")

    def _say(self) -> None:
        if self._view is not None:
            done, name = self._work.done(), self._scheme.name if self._scheme is not None else ""
            self._peer.receive(ev.ChunksDone(self._view.stamp, self._number, done, name))

    def _compute(self) -> None:
        chunk, turn = self._work.next_chunk(), self._turn
        if self._busy or chunk is None:
            return
        self._busy = True

        def computed() -> None:
            if turn != self._turn or not self._peer.alive:
                return
            self._busy = False
            workload = self._task.workload
            self._work.add(chunk, chunk_vector(chunk, self._number, workload.size, workload.dtype, self._blocks))
            self._say()
            self._compute()

        self._peer.work(self._task.compute_s(), computed)

    def encode(self, asked: fx.EncodeWanted) -> None:
        """The root has closed the round."""

        def answer() -> None:
            if self._view is None or (self._view.stamp, self._number) != (asked.epoch, asked.round):
                return
            self._peer.receive(ev.Encoded(asked.epoch, asked.round, self._work.encode(asked.done, asked.narrow)))

        self._peer.later(0.0, answer)
