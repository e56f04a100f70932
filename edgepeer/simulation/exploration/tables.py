"""What is known of every state of a fleet alike: who its peers are, what they do when something happens to them, who
hears whom, and what becomes of all when time passes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.simulation.exploration.life import Facts, Frames, Lives, Op, Step
from edgepeer.simulation.exploration.state import Action, Setting, State, is_cut

__all__ = ["Tables"]

_PATIENCE_BEATS: Final = 80
"""If nobody does anything for so long, nobody will."""


class Tables:
    """The lives of all peers, as far as any state has led to them, and all frames that were sent in them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.n = setting.peers
        self.names = [PeerId(f"p{at}") for at in range(self.n)]
        self.frames = Frames()
        self.lives = [
            Lives(
                name,
                self.frames,
                run=setting.run,
                wait_for=self.n,
                fanout=setting.fanout,
                lanes=setting.lanes,
                coded=(setting.code, setting.wait),
            )
            for name in self.names
        ]
        self.closed = self.frames.number(("down",))
        self.reset = self.frames.number(("reset",))
        self.synced = self.frames.number(("synced",))
        peers, pairs = range(self.n), [(a, b) for a in range(self.n) for b in range(self.n) if a != b]
        self.sources: list[Action] = [
            *(("enter", a) for a in peers),
            *(("will", a) for a in peers),
            *(("word", a) for a in peers),
            *(("bring", a, b) for a, b in pairs),
            *(("connect", a, b) for a, b in pairs),
            *(("fail", a, b) for a, b in pairs),
            *(("contribute", a) for a in peers),
            *(("compute", a) for a in reversed(peers)),
        ]
        """Everything that happens of itself, in the usual order."""
        self.waits = lru_cache(maxsize=1 << 16)(self._waits)

    def facts(self, state: State, peer: int) -> Facts | None:
        """Of a peer that lives."""
        return self.lives[peer].facts[state.lives[peer]] if state.lives[peer] >= 0 else None

    def cut(self, state: State, a: int, b: int) -> bool:
        """Whether nothing gets from a to b. The broker's number is `n`."""
        return bool(state.active) and is_cut(state.active, a, b)

    def idle(self, state: State, peer: int) -> bool:
        """Whether a peer handles nothing: it is dead or frozen."""
        return state.lives[peer] < 0 or ("freeze", peer) in state.active

    # -- time ----------------------------------------------------------------------------------------------------

    def around(self, state: State, peer: int) -> tuple[PeerId, ...]:
        """The connected peers of whom signs of life come."""
        return tuple(
            self.names[other]
            for other in range(self.n)
            if state.open[peer] >> other & 1
            and state.open[other] >> peer & 1
            and not self.idle(state, other)
            and not self.cut(state, other, peer)
        )

    def _waits(self, state: State) -> tuple[tuple[Step, ...], ...] | None:
        """What all do until one of them does something because time passes: their steps, beat by beat. None: nobody
        ever does anything."""
        numbers = list(state.lives)
        awake = [(peer, ("beat", self.around(state, peer))) for peer in range(self.n) if not self.idle(state, peer)]
        passed = []
        for _ in range(_PATIENCE_BEATS):
            steps = tuple(self.lives[peer].step(numbers[peer], event) for peer, event in awake)
            passed.append(steps)
            for (peer, _), step in zip(awake, steps, strict=True):
                if step.broken or step.ends or step.views or any(self._is_news(state, peer, op) for op in step.ops):
                    return tuple(passed)
                known = self.lives[peer].facts
                if known[numbers[peer]].stands != known[step.after].stands:
                    return tuple(passed)
            before = list(numbers)
            for (peer, _), step in zip(awake, steps, strict=True):
                numbers[peer] = step.after
            if numbers == before:
                break
        return None

    def _is_news(self, state: State, peer: int, op: Op) -> bool:
        is_ping = op[0] == "send" and self.frames.is_ping(op[2])
        return not is_ping or self.matters(state, peer, op)

    def matters(self, state: State, peer: int, ping: Op) -> bool:
        """Whether a Ping would change anything where it goes. Most say what the one before has said."""
        other = int(ping[1][1:])
        if not (state.open[peer] >> other & 1 and state.open[other] >> peer & 1) or self.idle(state, other):
            return False
        if self.cut(state, peer, other):
            return False
        channel = state.channels[peer * self.n + other]
        if channel:
            return bool(channel[-1] != ping[2])
        step = self.lives[other].step(state.lives[other], ("frame", self.names[peer], ping[2]))
        return step.after != state.lives[other] or bool(step.ops)
