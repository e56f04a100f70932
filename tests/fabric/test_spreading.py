"""Many who hear at once that a broker has lost the list of who is out: in virtual time, so no machine's load counts."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from fleets import Fleet
from virtual_loop import Attentive, VirtualLoop

from edgepeer.fabric import spreading
from edgepeer.fabric.spreading import Spreading
from edgepeer.simulation.clock import Clock

WAY_S = 0.01
"""From a peer to the broker, and from there to another."""


class Company:
    """Peers at one broker that had no list when they came: all know the same one."""

    def __init__(self, fleet: Fleet, peers: int) -> None:
        fleet.member("out")
        self.clock = Clock()
        self.loop = VirtualLoop(self.clock, Attentive())
        self.said: list[bytes] = []
        self.identity = fleet.member("p")
        self.identity.evictions.accept(fleet.evict("out"))
        with self.loop.running():
            self.peers = [Spreading(self.identity, self._say) for _ in range(peers)]
            self.tasks = [self.loop.create_task(each.run()) for each in self.peers]
            for each in self.peers:
                each.begin()
                each.look()

    def _say(self, signed: bytes) -> None:
        self.said.append(signed)
        for each in self.peers:
            self.clock.after(2 * WAY_S, partial(each.heard, signed))

    def settle(self) -> None:
        self.clock.run(until=lambda: False, limit_s=self.clock.now + 10.0)

    def end(self) -> None:
        assert not any(each.done() for each in self.tasks)
        self.loop.end()


@pytest.mark.parametrize(("peers", "few"), [(1, 1), (20, 6), (500, 40)])
def test_they_say_it_a_few_times(peers: int, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About one in twenty draws a turn within the time that a word takes to all: of 500, some 20."""
    monkeypatch.setattr(spreading, "_JITTER", random.Random(peers))
    company = Company(Fleet(tmp_path / "fleet"), peers)
    company.settle()
    assert 1 <= len(company.said) <= few
    assert set(company.said) == {company.identity.evictions.signed}
    company.end()
