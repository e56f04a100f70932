"""A round is taken into the state that it belongs to, or not at all: a neighbour's state may come at any moment."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from peer_fleet import DEADLINE_S

from edgepeer.errors import FellBehind, PeerError
from edgepeer.peer.api import Peer
from edgepeer.peer.bell import Bell
from edgepeer.peer.run_state import RunState
from edgepeer.topology.view import Member, View


class Neighbourhood:
    """As much of a peer as a state needs: states come from here."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.adopted: list[int] = []
        self.given: list[tuple[str, int]] = []
        self.states: list[bytes] = []
        self.parts: list[tuple[str, str, bytes]] = []
        self.keeper: Any = None
        self.view: View | None = None
        self.committed = self.missed = 0
        self.closed = self.engaged = self.lost = False
        self.has_state = True
        self.said_so = asyncio.Event()

    def lose_state(self) -> None:
        self.lost = True
        self.said_so.set()

    def attach(self, keeper: RunState) -> None:
        self.keeper = keeper

    def adopt(self, run: str, number: int, state: memoryview) -> None:
        self.adopted.append(number)

    def give_state(self, peer: str, run: str, number: int, state: bytes) -> None:
        self.given.append((peer, number))
        self.states.append(state)

    def give_part(self, peer: str, name: str, number: int, part: bytes) -> None:
        self.parts.append((peer, name, part))
        self.bell.ring()


@pytest.fixture
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def test_a_round_that_a_neighbours_state_has_already_is_not_taken_again(
    worker: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """The state comes while this peer still waits for the outcome of an older round, or works on it."""
    caplog.set_level("INFO")
    total = [0]

    def load(state: memoryview) -> None:
        total[0] = state[0]

    def add() -> None:
        total[0] += number
        run.applied = number

    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=lambda: bytes(total), load=load)  # type: ignore[arg-type]  # see above
    run.open()
    run.applied = 0
    number = 1
    await run.before(1, add)
    assert (total, run.applied) == ([1], 1)

    busy = threading.Event()
    worker.submit(busy.wait)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        peer.keeper.state_came("job", 3, memoryview(bytes([6])))
        await asyncio.sleep(0)
        number = 2
        late = tasks.create_task(_refused(run, add))
        await asyncio.sleep(0)
        busy.set()
        await late
        serving.cancel()
    assert (total, run.applied, peer.adopted) == ([6], 3, [3])
    assert caplog.messages == ["job job: goes on after round 3, from a neighbour's state"]
    number = 4
    await run.before(4, add)
    assert (total, run.applied) == ([10], 4)


def test_a_peer_takes_part_in_one_run_at_a_time(worker: ThreadPoolExecutor) -> None:
    peer = Peer()
    first, second = (RunState(peer, run, worker, pack=bytes, load=lambda state: None) for run in ("one", "two"))
    first.open()
    with pytest.raises(PeerError, match="takes part in a run already"):
        second.open()
    second.close()  # which it had not opened
    first.open()
    first.close()
    second.open()


async def test_the_peer_knows_of_a_state_as_soon_as_a_round_may_begin_on_it(worker: ThreadPoolExecutor) -> None:
    """Else it might contribute to the next round, and take up the state only then."""
    peer, loaded = Neighbourhood(), threading.Event()
    run = RunState(peer, "job", worker, pack=bytes, load=lambda state: loaded.set())  # type: ignore[arg-type]
    run.open()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        peer.keeper.state_came("job", 3, memoryview(b""))
        while not peer.adopted:  # every turn of the loop is looked at
            assert run.applied == -1
            await asyncio.sleep(0)
        assert loaded.is_set()
        assert (run.applied, peer.adopted) == (3, [3])
        serving.cancel()


async def test_who_asks_again_while_its_state_is_packed_is_given_it_again(worker: ThreadPoolExecutor) -> None:
    """It may need a newer one, or the first may have been lost."""
    peer, packing, go_on = Neighbourhood(), threading.Event(), threading.Event()

    def pack() -> bytes:
        packing.set()
        go_on.wait()
        return b"state"

    run = RunState(peer, "job", worker, pack=pack, load=lambda state: None)  # type: ignore[arg-type]
    run.open()
    run.applied = 5
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        peer.keeper.state_wanted("b", "job", 4)
        while not packing.is_set():  # noqa: ASYNC110  # set by a thread
            await asyncio.sleep(0)
        peer.keeper.state_wanted("b", "job", 5)
        go_on.set()
        while len(peer.given) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        serving.cancel()
    assert peer.given == [("b", 5), ("b", 5)]


async def test_a_state_is_packed_anew_when_another_of_the_same_round_has_taken_its_place(
    worker: ThreadPoolExecutor,
) -> None:
    """Two checkpoints of one round need not be the same, and of two the later counts."""
    model = [b"earlier"]
    peer = Neighbourhood()
    run = RunState(
        peer,  # type: ignore[arg-type]
        "job",
        worker,
        pack=lambda: model[0],
        load=lambda state: model.__setitem__(0, bytes(state)),
    )
    run.open()
    run.applied = 7
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        peer.keeper.state_wanted("b", "job", 7)
        while not peer.states:  # noqa: ASYNC110
            await asyncio.sleep(0)
        peer.keeper.state_came("job", 7, memoryview(b"later"))
        while not peer.adopted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        peer.keeper.state_wanted("c", "job", 7)
        while len(peer.states) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        serving.cancel()
    assert peer.states == [b"earlier", b"later"]


async def test_a_state_that_was_handed_out_is_let_go_with_the_next_round(worker: ThreadPoolExecutor) -> None:
    """With adam it is as long as three vectors; who packs another has two of them else."""

    class Packed(bytearray):
        """Bytes that can be referred to weakly."""

    packed: list[weakref.ref[Packed]] = []

    def pack() -> Packed:
        state = Packed(b"state")
        packed.append(weakref.ref(state))
        return state

    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=pack, load=lambda state: None)  # type: ignore[arg-type]
    run.open()
    run.applied = 1
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        for number, neighbour in enumerate("bc", 1):
            peer.keeper.state_wanted(neighbour, "job", 1)
            while len(peer.given) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)
        peer.states.clear()
        await run.take(2, lambda: setattr(run, "applied", 2))
        serving.cancel()
    assert len(packed) == 1
    assert packed[0]() is None


async def test_what_was_handed_out_where_the_run_began_is_not_where_it_begins_anew(worker: ThreadPoolExecutor) -> None:
    """This peer goes on from what it has by then; with the first state others would have another model."""
    model = [b"first"]
    peer = Neighbourhood()
    peer.view = View(epoch=1, members=(Member(id="a", incarnation=1),), run="job")
    run = RunState(peer, "job", worker, pack=lambda: model[0], load=lambda state: None)  # type: ignore[arg-type]
    run.open()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        await run.in_step()
        peer.keeper.state_wanted("b", "job", 0)
        while not peer.states:  # noqa: ASYNC110
            await asyncio.sleep(0)
        model[0], run.applied, peer.committed = b"after the fifth", 5, 5
        await run.in_step()
        peer.committed = 0
        await run.in_step()
        peer.keeper.state_wanted("b", "job", 0)
        while len(peer.states) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        serving.cancel()
    assert peer.given == [("b", 0), ("b", 0)]
    assert peer.states == [b"first", b"after the fifth"]


async def _refused(run: RunState, add: Any) -> None:
    with pytest.raises(FellBehind, match="round 2 is not what comes next: the state here is that after 3"):
        await run.before(2, add)


async def test_who_wants_a_run_again_waits_for_the_end_of_what_was_brought_before(worker: ThreadPoolExecutor) -> None:
    """A call of this peer has been cancelled in mid-round. Another would be refused, and the job fail by that."""
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=lambda: b"", load=lambda state: None)  # type: ignore[arg-type]
    peer.view = View(epoch=1, members=(Member(id="a", incarnation=1, addresses=()),), run="job")
    run.applied = peer.committed = 7
    peer.engaged = True
    step = asyncio.create_task(run.in_step())
    for _ in range(3):
        peer.bell.ring()
        await asyncio.sleep(0)
    assert not step.done()
    peer.engaged = False
    peer.bell.ring()
    async with asyncio.timeout(DEADLINE_S):
        assert await step == peer.view


@pytest.mark.parametrize("committed", [0, 3])
async def test_where_a_neighbours_state_is_to_come_that_of_here_counts_for_nothing(
    worker: ThreadPoolExecutor, committed: int
) -> None:
    """A run that was given up is wanted again, from a checkpoint that others have gone on from another way. Where it
    had just begun, that was taken for everybody's."""
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=lambda: b"", load=lambda state: None)  # type: ignore[arg-type]
    peer.view = View(epoch=1, members=(Member(id="a", incarnation=1, addresses=()),), run="job")
    run.applied, peer.committed, peer.has_state = 3, committed, False
    step = asyncio.create_task(run.in_step())
    await asyncio.sleep(0)
    assert not step.done()
    assert run.applied == 3
    peer.has_state = True
    peer.bell.ring()
    async with asyncio.timeout(DEADLINE_S):
        assert await step == peer.view


async def test_a_state_of_before_the_run_began_anew_counts_no_more(worker: ThreadPoolExecutor) -> None:
    """It was being put to use then, and others have gone on without this peer since. It would never be in step."""
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=lambda: b"", load=lambda state: None)  # type: ignore[arg-type]
    peer.view = View(epoch=1, members=(Member(id="a", incarnation=1, addresses=()),), run="job")
    run.applied, peer.committed = 13, 3
    step = asyncio.create_task(run.in_step())
    await asyncio.sleep(0)
    assert (peer.lost, run.applied) == (True, -1)
    run.applied = 3
    peer.bell.ring()
    async with asyncio.timeout(DEADLINE_S):
        assert await step == peer.view


@pytest.mark.parametrize("fails", ["before", "as it is packed"])
async def test_who_has_failed_and_has_no_state_to_give_says_so(fails: str, worker: ThreadPoolExecutor) -> None:
    """Else those who stay would wait for it."""

    def pack() -> bytes:
        raise RuntimeError("out of memory")

    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=pack, load=lambda state: None)  # type: ignore[arg-type]  # see above
    run.open()
    run.applied = 3 if fails == "as it is packed" else -1
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        handing = tasks.create_task(run.hand_over())
        await asyncio.sleep(0)
        assert peer.lost == (fails == "before")
        peer.keeper.state_wanted("p2", "job", 3)
        await peer.said_so.wait()
        handing.cancel()


@pytest.mark.parametrize("times", [1, 2])
async def test_who_can_not_pack_its_state_lets_those_who_have_asked_go_on_all_the_same(
    times: int, worker: ThreadPoolExecutor
) -> None:
    """They would ask again after half a minute, and no round ends before. It fails, and gives them its state then;
    where that can't be packed either, the one that comes in its place, as it has come."""
    failures = iter(range(times))

    def pack() -> bytes:
        for _ in failures:
            raise MemoryError
        return b"packed"

    loaded: list[bytes] = []
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=pack, load=lambda state: loaded.append(bytes(state)))  # type: ignore[arg-type]
    run.open()
    run.applied = 3
    peer.keeper.state_wanted("b", "job", 3)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        with pytest.raises(MemoryError):
            await run.serve()
        handing = tasks.create_task(run.hand_over())
        if times == 2:
            await peer.said_so.wait()
            assert (peer.given, run.applied) == ([], -1)
            peer.keeper.state_came("job", 4, memoryview(b"a neighbour's"))
        while not peer.given:  # noqa: ASYNC110  # set by a thread
            await asyncio.sleep(0)
        peer.keeper.state_wanted("c", "job", run.applied)
        while len(peer.given) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        handing.cancel()
    number, state = (3, b"packed") if times == 1 else (4, b"a neighbour's")
    assert peer.given == [("b", number), ("c", number)]
    assert [bytes(given) for given in peer.states] == [state, state]
    assert (peer.adopted, loaded) == ([4] if times == 2 else [], [])


@pytest.mark.parametrize("fails", ["before", "as it is packed"])
async def test_who_has_failed_and_has_no_state_keeps_nobody_waiting_who_saves_it(
    fails: str, worker: ThreadPoolExecutor
) -> None:
    """They ask another then; else they wait their whole timeout for this one."""

    def pack() -> bytes:
        raise MemoryError

    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=pack, load=lambda state: None)  # type: ignore[arg-type]
    run.open()
    run.applied = 3 if fails == "as it is packed" else -1
    run.hand_out("b", "state")  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        handing = tasks.create_task(run.hand_over())
        for count in (1, 2):
            while len(peer.parts) < count:
                await peer.bell.wait(peer.bell.count)
            run.hand_out("c", "state")  # type: ignore[arg-type]
        handing.cancel()
    assert peer.parts == [("b", "state", b""), ("c", "state", b"")]


def test_of_too_many_who_ask_at_once_the_last_are_told_that_there_is_nothing(worker: ThreadPoolExecutor) -> None:
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=bytes, load=lambda state: None)  # type: ignore[arg-type]
    for number in range(65):
        run.hand_out(f"p{number}", "state")  # type: ignore[arg-type]
    run.hand_out("p0", "state")  # type: ignore[arg-type]  # it waits already
    assert peer.parts == [("p64", "state", b"")]


async def test_who_asks_again_and_again_and_reads_nothing_is_sent_the_same_memory(worker: ThreadPoolExecutor) -> None:
    """Else this device would hold the model as often as somebody asks for it."""
    peer = Neighbourhood()
    run = RunState(peer, "job", worker, pack=lambda: bytes([run.applied] * 9), load=lambda state: None)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run.serve())
        for count, run.applied in ((1, 3), (2, 3), (3, 4)):
            run.hand_out("b", "state")  # type: ignore[arg-type]
            while len(peer.parts) < count:
                await peer.bell.wait(peer.bell.count)
        serving.cancel()
    first, again, later = (part for _, _, part in peer.parts)
    assert first is again
    assert (first, later) == (bytes([3] * 9), bytes([4] * 9))
