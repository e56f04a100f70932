"""Coded rounds, which end without some: nobody commits another sum for a round than anybody else, or drops it."""

from __future__ import annotations

from functools import partial

import pytest
from company import Company
from hypothesis import given
from hypothesis import strategies as st
from test_agreement import follow, names, pairs, sides, waits
from transcript import vector, view

from edgepeer.coding.computed import ComputedChunks
from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.node import Node
from edgepeer.topology.view import View

EARLY = parse_scheme("partial:l=1,replication=2", "error<3.5")  # so that sums differ by who was there
EXACT = parse_scheme("cyclic:s=1")

steps = st.one_of(
    waits,
    waits,
    st.sampled_from(["everybody", "everybody", "mend", "broker"]),
    names.map(lambda name: f"compute {name}"),
    names.map(lambda name: f"compute {name}"),
    names.map(lambda name: f"timeout {name}"),
    names.map(lambda name: f"leave {name}"),
    names.map(lambda name: f"cancel {name}"),
    pairs.map(lambda pair: f"disconnect {pair}"),
    pairs.map(lambda pair: f"sever {pair[0]}>{pair[1]}"),
    sides.map(lambda side: f"part {''.join(sorted(side))}"),
    names.map(lambda name: f"kill {name}"),
)


class Owner:
    """Computes one chunk after the other when it is told to."""

    def __init__(self, company: Coded, name: PeerId) -> None:
        self._company = company
        self._name = name
        self._round = 0
        self._view: View | None = None
        self._work = ComputedChunks()

    def compute(self) -> None:
        """Begin the next round, or compute one more chunk of it."""
        node = self._company[self._name].node
        number = node.allreduce.committed + 1
        if node.view is None or not node.view.slots:
            return
        if number != self._round:
            self._round, self._view, self._work = number, None, ComputedChunks()
            self.enter(node.view)
        elif (chunk := self._work.next_chunk()) is not None:
            self._work.add(chunk, vector(1 << chunk, dtype="<f8"))
            self._say()

    def enter(self, view: View) -> None:
        if self._round and view is not self._view:
            self._view = view
            code = self._company.code.build(len(view.slots), view.fanout) if len(view.slots) > 1 else None
            self._work.enter(code, view.owned.get(self._name, ()))
            self._say()

    def _say(self) -> None:
        assert self._view is not None
        self._company.hear(self._name, ev.ChunksDone(self._view.stamp, self._round, self._work.done()))

    def encode(self, asked: fx.EncodeWanted) -> None:
        if self._view is not None and (self._view.stamp, self._round) == (asked.epoch, asked.round):
            total = self._work.encode(asked.done, asked.narrow)
            self._company.hear(self._name, ev.Encoded(asked.epoch, asked.round, total))


class Coded(Company):
    """A company whose owners compute chunks."""

    def __init__(self, world: View, code: CodingScheme) -> None:
        self.code = code
        self.owners = {name: Owner(self, name) for name in world.ids}
        super().__init__(world)
        for name in world.ids:
            self.hear(name, ev.CodeWanted(code))

    def _do(self, name: PeerId) -> None:
        effects = list(self[name].effects)
        super()._do(name)
        for effect in effects:
            if isinstance(effect, fx.EncodeWanted):
                self._later(0.0, partial(self.owners[name].encode, effect))
            elif isinstance(effect, fx.ViewInstalled):
                self._later(0.0, partial(self.owners[name].enter, effect.view))

    def step(self, step: str | float, world: View) -> None:
        what, _, which = str(step).partition(" ")
        match what:
            case "everybody":
                for name in world.ids:
                    for _ in range(3):
                        if name not in self.dead:
                            self.owners[name].compute()
            case "compute" if which not in self.dead:
                self.owners[PeerId(which)].compute()
            case "timeout":
                self.hear(which, ev.TimedOut("late"))
            case "leave":
                self.hear(which, ev.LeaveWanted())
            case "cancel":
                self.hear(which, ev.Abandoned())
            case "kill" if len(self.dead) == world.size - 1:
                return
            case _:
                follow(self, step, world)


def check(company: Coded) -> None:
    sums: dict[int, tuple[bytes, frozenset[str]]] = {}
    dropped: set[int] = set()
    for _, name, effect in company.said:
        if isinstance(effect, fx.RoundCommitted):
            found = effect.sum.tobytes(), frozenset(effect.contributors)
            assert sums.setdefault(effect.round, found) == found, f"round {effect.round} at {name}"
            if effect.exact:
                assert effect.sum[0] == pytest.approx(effect.chunks)  # every chunk is one bit
                assert effect.chunks & (effect.chunks + 1) == 0
        elif isinstance(effect, fx.RoundAborted) and effect.cause in ("timeout", "mismatch"):
            dropped.add(effect.round)
    assert not dropped & sums.keys()


WORLDS = [
    view(1, "abc", slots="abc"),
    view(1, "abcd", slots="abcd", fanout=4),
    view(1, "abcde", slots="abcde"),
    view(1, "abcde", slots="abcde", fanout=4),
    view(1, "abcde", slots="abcde", fanout=1),
    view(1, "abcde", slots="aabcd", quorum=4),
]


@pytest.mark.parametrize("code", [EARLY, EXACT], ids=["early", "exact"])
@pytest.mark.parametrize("world", WORLDS)
@given(story=st.lists(steps, min_size=3, max_size=25))
def test_nobody_commits_what_others_do_not(world: View, code: CodingScheme, story: list[str | float]) -> None:
    company = Coded(world, code)
    company.until(1.0)
    company.step("everybody", world)
    for step in story:
        if not isinstance(step, str) or all(name in world for name in _who(step)):
            company.step(step, world)
    company.until(company.now + 5.0)
    check(company)


def changed(living: list[Node], before: list[View | None]) -> bool:
    """Whether there are other views. Most of the time nobody's is another object: to hash them all takes long."""
    views = [node.view for node in living]
    return views != before and {*views} != {*before}


def _who(step: str) -> str:
    return step.partition(" ")[2].replace(">", "")


@pytest.mark.parametrize("code", [EARLY, EXACT], ids=["early", "exact"])
@pytest.mark.parametrize("world", WORLDS[2:5])
@given(
    moments=st.lists(st.floats(0.0, 0.012), min_size=1, max_size=2),
    lost=st.lists(names, min_size=1, max_size=2, unique=True),
)
def test_whoever_is_lost_in_a_round_and_in_the_one_that_follows_the_others_agree_and_go_on(
    world: View, code: CodingScheme, moments: list[float], lost: list[str]
) -> None:
    """The second is lost while the result of the first view is put forward again in the next."""
    company = Coded(world, code)
    company.until(1.0)
    company.step("everybody", world)
    for name, moment in zip(lost, moments, strict=False):
        company.until(company.now + moment)
        company.kill(name)
        began = company.now
        living = [company[other].node for other in world.ids if other not in company.dead]
        before = [node.view for node in living]
        while not changed(living, before) and company.now < began + 9.0:
            company.until(company.now + 0.0007)
    alive = [name for name in world.ids if name not in company.dead]
    for _ in range(4):
        company.until(company.now + 3.0)
        company.step("everybody", world)
    company.until(company.now + 3.0)
    check(company)
    last = {company[name].node.allreduce.committed for name in alive}
    assert len(last) == 1
    assert last.pop() >= 3
