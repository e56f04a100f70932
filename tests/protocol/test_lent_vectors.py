"""Vectors that are sent from where they lie: what is still under way when they change must not arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from detours import around, carried, knock, number, path, tunnelled
from numpy.typing import NDArray
from transcript import Machine, from_digits, vector, view, without

from edgepeer.coding.scheme import parse_scheme
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr


class Lines:
    """Connections between all of some machines. As on real ones, what is queued lies where its sender has it, and is
    read when it goes out."""

    def __init__(self, names: str) -> None:
        self.machines = {name: Machine(name) for name in names}
        self.queues: dict[tuple[str, str], deque[fx.Send]] = {(x, y): deque() for x in names for y in names if x != y}
        self.stuck: set[tuple[str, str]] = set()
        """On which ways nothing gets on."""
        self.committed: dict[str, list[fx.RoundCommitted]] = {name: [] for name in names}

    def connect(self) -> None:
        for name, other in self.queues:
            self.hear(name, ev.LinkUp(PeerId(other), 1))
        self.pump()

    def hear(self, name: str, event: ev.Event) -> None:
        self.machines[name].hear(event)
        self.do(name)

    def do(self, name: str) -> None:
        for effect in self.machines[name].effects:
            match effect:
                case fx.Send(peer):
                    self.queues[name, peer].append(effect)
                case fx.CloseLink(peer):
                    self.queues[name, peer].clear()
                    self.queues[peer, name].clear()
                    self.hear(peer, ev.LinkDown(PeerId(name), "closed"))
                    self.hear(peer, ev.LinkUp(PeerId(name), 1))
                    self.hear(name, ev.LinkUp(PeerId(peer), 1))
                case fx.RoundCommitted():
                    self.committed[name].append(effect)

    def deliver(self, source: str, target: str) -> None:
        send = self.queues[source, target].popleft()
        data = bytes(send.payload or b"")
        sink = self.machines[target].node.sink(PeerId(source), send.frame, len(data))
        if sink is not None:
            sink[:] = data
        document = data if codec.has_document(send.frame) else None
        self.hear(target, ev.FrameReceived(PeerId(source), send.frame, document, len(data), sink is not None, 1e-3))

    def pump(self) -> None:
        """Let everything arrive that does."""
        while ready := [way for way, queue in self.queues.items() if queue and way not in self.stuck]:
            self.deliver(*ready[0])


def on_its_way() -> tuple[Lines, View, NDArray[np.float32]]:
    """All work in a view of three lanes, and have brought a vector; what goes to c of b's, the one here, is stuck."""
    lines, before, mine = Lines("abc"), view(1, "abc", lanes=3), vector(10, 20, 30)
    for machine in lines.machines.values():
        machine.learn(before)
    lines.connect()
    lines.stuck = {("b", "c")}
    lines.hear("a", ev.Contribute(vector(1, 2, 3), 1.0))
    lines.hear("b", ev.Contribute(mine, 1.0))
    lines.hear("c", ev.Contribute(vector(100, 200, 300), 1.0))
    lines.pump()
    return lines, before, mine


def test_what_is_abandoned_does_not_go_on_to_those_who_were_to_have_it_in_the_view_before() -> None:
    """a and b work in another view already when b's program is told that it may use its array for something else. c,
    the root of a range, does not, and what it was to have of b is still under way."""
    lines, _, mine = on_its_way()

    lines.stuck |= {("a", "c")}
    for name in "ab":
        lines.machines[name].learn(view(2, "abc", lanes=3))
        lines.do(name)
    lines.pump()
    lines.hear("b", ev.Abandoned())
    mine[:] = 7777
    while lines.queues["b", "c"] and isinstance(lines.queues["b", "c"][0].frame, fr.Reduce | fr.Result):
        lines.deliver("b", "c")  # c is yet to hear of the other view
    lines.stuck.clear()
    lines.pump()
    assert {name: [effect.sum.tolist() for effect in each] for name, each in lines.committed.items()} == {
        name: [[111, 222, 333]] for name in "abc"
    }


def test_what_a_round_was_brought_does_not_go_on_to_who_was_left_out_once_it_is_over() -> None:
    """c works in the view before still. Alone it could put forward what it holds of that, in another generation."""
    lines, before, mine = on_its_way()
    assert any(isinstance(send.frame, fr.Reduce) for send in lines.queues["b", "c"])

    lines.stuck |= {("a", "c"), ("c", "a"), ("c", "b")}
    for name in "ab":
        lines.machines[name].learn(without(before, "c"))
        lines.do(name)
    lines.pump()
    assert [effect.sum.tolist() for effect in lines.committed["b"]] == [[11, 22, 33]]
    mine[:] = 7777
    assert not any(isinstance(send.frame, fr.Reduce) for send in lines.queues["b", "c"])


def test_what_a_call_has_brought_that_ends_with_the_view_does_not_go_on_to_those_who_are_in_it_still() -> None:
    """The others do without b, and c is the last to hear of that: it would complete its range, put all together, and
    hold that; and what is held is put forward again."""
    lines, before, mine = on_its_way()

    lines.stuck |= {("a", "c"), ("c", "a"), ("c", "b")}
    after = without(before, "b")
    lines.machines["b"].learn(after)
    assert any(isinstance(each, fx.RoundAborted) and each.mine for each in lines.machines["b"].effects)
    lines.do("b")
    mine[:] = 7777
    while lines.queues["b", "c"] and isinstance(lines.queues["b", "c"][0].frame, fr.Reduce | fr.Result):
        lines.deliver("b", "c")
    lines.machines["a"].learn(after)
    lines.do("a")
    lines.stuck = {("a", "b"), ("b", "a")}
    lines.pump()
    for name in "ac":
        assert [(each.sum.tolist(), each.contributors) for each in lines.committed[name]] == [
            ([101, 202, 303], ("a", "c"))
        ]


def sends_through_e(d: Machine, mine: NDArray[np.float32]) -> list[fx.Send]:
    """The connection to its parent is broken. Returns what it sends of its vector."""
    tunnel = tunnelled(d, "b", "e")
    carried(d, "e", "b", fr.Sync(epoch=1, run="", committed=0, generation=Generation()), tunnel=tunnel, serial=1)
    d.hear(ev.Contribute(mine, 1.0))
    return [each for each in d.effects if isinstance(each, fx.Send) and each.payload is not None]


def closed(d: Machine) -> list[str]:
    return [each.peer for each in d.effects if isinstance(each, fx.CloseLink) and each.abrupt]


def stands_again(d: Machine) -> None:
    """The other end has not heard of the connection yet, and takes what comes through the tunnel."""
    d.hear(ev.LinkUp(PeerId("b"), 1))


def is_silent(d: Machine) -> None:
    """The other end has not missed anything yet."""
    while path(d, "b"):
        for name in "ce":
            d.frame(name, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, reaches=fr.pack_set(0b1111111)))
        d.until(d.now + 0.1)


def goes_another_way(d: Machine) -> None:
    """e has lost the other end for a moment."""
    tunnel = d.node.parts.links[PeerId("b")].tunnel
    assert tunnel is not None
    d.frame("e", fr.NoWay(target="b", tunnel=tunnel.number))
    knock(d, "c", "b", number(d), answer=True)
    assert path(d, "b") == "via c"


@pytest.mark.parametrize("then", [stands_again, is_silent, goes_another_way])
def test_what_is_abandoned_does_not_go_on_through_a_tunnel_of_before(then: Callable[[Machine], None]) -> None:
    """What was sent through e lies where the program has it, on the connection to e."""
    d, mine = around("d"), vector(*range(1000))
    (sent,) = sends_through_e(d, mine)
    assert sent.peer == "e"
    assert np.may_share_memory(np.frombuffer(sent.payload or b"", "<f4"), mine)
    then(d)
    d.hear(ev.Abandoned())
    assert "e" in closed(d)


def test_only_what_the_vector_of_this_round_went_through_is_closed() -> None:
    d = around("d")
    sends_through_e(d, vector(1))
    d.hear(ev.LinkUp(PeerId("b"), 1))
    d.sync("b", 0, have=1)
    d.result("b", vector(7), "abcdefg")
    d.contribute(2)
    d.hear(ev.Abandoned())
    assert closed(d) == ["b"]


def test_what_is_to_be_sent_again_may_still_be_on_its_way() -> None:
    """b gives its state up, and says so. When it has one again, it may be given what c had sent before first."""
    c = Machine("c").join(view(1, "abc", run="r", fanout=1), up="b")
    c.hear(ev.RunWanted("r", have=3))
    c.sync("b", 3)
    assert c.contribute(7) == ["b <- reduce 4 [0:] 7 of 100"]
    c.sync("b", -2)
    c.hear(ev.Abandoned())
    assert closed(c) == ["b"]


def test_so_it_is_of_coded_rounds() -> None:
    d = around("d", world=view(1, "abcdefg", slots="abcdefg"))
    d.hear(ev.CodeWanted(parse_scheme("partial:l=1,replication=2")))
    assert d.node.view is not None
    stamp, tunnel, all_done = d.node.view.stamp, tunnelled(d, "b", "e"), from_digits("1111111")
    carried(d, "e", "b", fr.Sync(epoch=1, run="", committed=0, generation=Generation()), tunnel=tunnel, serial=1)
    d.did({3: 1})
    carried(d, "e", "b", fr.Release(epoch=1, round=1, done=all_done), tunnel=tunnel, serial=2)
    d.hear(ev.Encoded(stamp, 1, vector(1)))
    assert any(isinstance(each, fx.Send) and each.peer == "e" and each.payload is not None for each in d.effects)
    d.hear(ev.LinkUp(PeerId("b"), 1))
    d.sync("b", 0, have=1)
    assert "round 1" in d.result("b", vector(7), "abcdefg")[-1]
    d.did({3: 1}, number=2)
    d.release("b", "1111111", number=2)
    d.hear(ev.Encoded(stamp, 2, vector(2)))
    d.hear(ev.Abandoned())
    assert closed(d) == ["b"]
