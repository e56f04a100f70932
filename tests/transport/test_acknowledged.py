"""Whether the network still takes what is sent: by a kernel that is up to the test, and by the real one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.elapsed import elapsed
from edgepeer.peer.driver import LOOK_S, LOOK_SELDOM_S
from edgepeer.protocol.timing import RoundTrip
from edgepeer.transport.acknowledged import Acknowledgements
from edgepeer.transport.base import Channel
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.frames import Ping

LOOK = 0.02
WATCHED = 0.03
"""What counts at most of the time between two looks."""
MSS, UNACKED, TRIP, ACKED, UNSENT, DELIVERED, SENT, AGAIN = 16, 24, 68, 120, 144, 192, 200, 208
"""Where they stand in struct tcp_info, as Linux' tcp.h has it."""
FULL = 1448
PING = Ping(waiting=False)


class Wire:
    """A connection whose kernel says what the test wants."""

    def __init__(self, *, trip_us: int = 1000, variation_us: int = 0, packet_bytes: int = FULL) -> None:
        self.unacked = self.unsent = self.delivered = 0
        self.trip_us, self.variation_us, self.packet_bytes = trip_us, variation_us, packet_bytes
        self.again = 0
        """Packets that were sent again."""
        self.told = 0

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        self.told += 1
        info = bytearray(232)
        struct.pack_into("=I", info, MSS, FULL)
        struct.pack_into("=I", info, UNACKED, self.unacked)
        struct.pack_into("=II", info, TRIP, self.trip_us, self.variation_us)
        struct.pack_into("=I", info, UNSENT, self.unsent)
        struct.pack_into("=I", info, DELIVERED, self.delivered)
        struct.pack_into("=Q", info, ACKED, self.delivered * self.packet_bytes)
        sent = (self.delivered + self.unacked + self.again) * self.packet_bytes
        struct.pack_into("=QQ", info, SENT, sent, self.again * self.packet_bytes)
        return bytes(info[:size])


class Line:
    """A wire that is looked at."""

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire = wire or Wire()
        self.acks = Acknowledgements(lambda: self.now)
        self.now = 100.0

    @classmethod
    def used(cls, wire: Wire) -> Line:
        """One over which something has gone before."""
        line = cls(wire)
        line.send()
        line.deliver()
        assert line.look() is None
        return line

    def send(self, packets: int = 1) -> None:
        self.acks.sent()
        self.wire.unacked += packets

    def deliver(self, packets: int = 1) -> None:
        self.wire.delivered += packets
        self.wire.unacked -= packets

    def look(self, after: float = LOOK, *, queued: bool = False) -> tuple[float, float] | None:
        self.now += after
        return self.acks.missing(self.wire, self.now, queued=queued)

    def quiet(self, after: float = LOOK, *, queued: bool = False) -> float:
        """For how long nothing has been acknowledged, at the next look."""
        found = self.look(after, queued=queued)
        assert found is not None
        return self.now - found[0]

    def within(self, *, queued: bool = False) -> float:
        found = self.look(0.0, queued=queued)
        assert found is not None
        return found[1]


def test_where_nothing_is_under_way_nobody_asks_the_kernel() -> None:
    line = Line()
    assert line.look() is None
    assert line.wire.told == 0
    line.send()
    line.deliver()
    assert line.look() is None
    assert line.look() is None
    assert line.wire.told == 1


def test_what_is_not_acknowledged_is_missing_since_it_was_first_seen_under_way() -> None:
    line = Line()
    line.send()
    assert line.quiet() == 0.0
    for looks in range(1, 30):
        assert line.quiet() == pytest.approx(looks * LOOK)
    line.deliver()
    assert line.look() is None
    line.send()
    assert line.quiet() == 0.0  # an earlier silence is none of this


def test_each_acknowledgement_begins_anew() -> None:
    line = Line()
    line.send(1000)
    for _ in range(50):
        assert line.quiet() == 0.0
        line.deliver(10)
    assert line.quiet() == 0.0
    assert line.quiet() == pytest.approx(LOOK)


def test_what_arrives_behind_a_lost_packet_is_progress() -> None:
    """It is acknowledged out of order; nothing leaves the list of what is under way."""
    line = Line()
    line.send(10)
    line.quiet()
    for _ in range(9):
        line.wire.delivered += 1
        assert line.quiet() == 0.0


def test_a_count_that_begins_again_at_zero_is_progress_too() -> None:
    line = Line()
    line.wire.delivered = 2**32 - 1
    line.send(5)
    line.quiet()
    assert line.quiet() == pytest.approx(LOOK)
    line.wire.delivered = 0
    assert line.quiet() == 0.0


def test_a_receiver_that_does_not_read_is_no_broken_path() -> None:
    """All that has left is acknowledged; the rest waits for room, in the kernel and before it."""
    line = Line()
    line.send()
    line.deliver()
    line.wire.unsent = 100_000
    for _ in range(100):
        assert line.quiet() == 0.0
    line.wire.unsent = 0
    for _ in range(100):
        assert line.quiet(queued=True) == 0.0
    assert line.look() is None


def test_from_when_on_there_is_room_again_the_path_counts() -> None:
    line = Line()
    line.send()
    line.deliver()
    line.wire.unsent = 100_000
    for _ in range(100):
        line.quiet()
    line.wire.unacked = 10
    assert line.quiet() == 0.0
    assert line.quiet() == pytest.approx(LOOK)


def test_who_has_not_looked_for_a_while_knows_nothing_of_it() -> None:
    """Whoever was stopped finds what it left; that says nothing of the path."""
    line = Line()
    line.send()
    line.quiet()
    assert line.quiet() == pytest.approx(LOOK)
    assert line.quiet(0.06) == pytest.approx(LOOK + WATCHED)
    assert line.quiet(5.0) == pytest.approx(LOOK + WATCHED)
    assert line.quiet() == pytest.approx(2 * LOOK + WATCHED)


def test_how_long_it_takes_has_room_for_what_is_lost_at_the_end_and_for_how_much_a_trip_varies() -> None:
    line = Line(Wire(trip_us=20_000, variation_us=5_000))
    line.send(2)
    line.quiet()
    assert line.within() == pytest.approx(0.06 + 0.02)


def test_a_single_packet_may_be_held_back_and_counts_anew_when_something_goes_behind_it() -> None:
    line = Line(Wire(trip_us=20_000, variation_us=5_000))
    line.send()
    line.quiet()
    assert line.quiet() == pytest.approx(LOOK)
    assert line.within() == pytest.approx(0.06 + 0.02 + 0.04)
    line.send()
    assert line.quiet() == 0
    assert line.within() == pytest.approx(0.06 + 0.02)
    line.send()
    assert line.quiet() > 0


@pytest.mark.parametrize(("looks", "left_s"), [(0, 0.02), (1, 0.0), (6, 0.0)])
def test_what_goes_behind_it_is_held_back_no_longer_than_it_is_itself(looks: int, left_s: float) -> None:
    """A Decide and then a Ping, to a process that has nothing to say: a cut that swallows both is known in time. Both
    may be there, and one acknowledgement be on its way; or the first is lost, or the path is: a trip later that is
    known."""
    line = Line(Wire(packet_bytes=100))
    line.send()
    for _ in range(looks + 1):
        line.quiet()
    line.send()
    assert line.quiet() == 0
    assert line.within() == pytest.approx(0.003 + left_s)
    line.deliver(2)
    assert line.look() is None
    line.send()
    line.quiet()
    assert line.within() <= 0.001 + LOOK + 0.04  # that it was lost says nothing of how long acknowledgements take


def test_a_machine_that_was_stopped_has_not_held_it_back_meanwhile() -> None:
    line = Line(Wire(packet_bytes=100))
    line.send()
    line.quiet()
    line.send()
    assert line.quiet(0.5) == 0
    assert line.within() == pytest.approx(0.003 + 0.04)


def test_so_may_several_be_that_would_fit_into_one() -> None:
    """A Have and a Ping behind it, to a process that does not get to read them for a while."""
    line = Line(Wire(trip_us=20_000, packet_bytes=100))
    line.wire.again = 5
    line.send(2)
    line.quiet()
    assert line.within() == pytest.approx(0.06 + 0.04)
    line.wire.packet_bytes = FULL
    assert line.within() == pytest.approx(0.06)


def closed(trip_s: float, *, lost: int, back_s: float, longest: bool) -> bool:
    """Whether a connection is closed though it is whole: so many packets are lost, which TCP notices so that they are
    acknowledged `back_s` after they were sent; a Ping in doubt, after a trip. `longest`: acknowledgements have taken as
    long as a trip of late. Looks and rules are those of a peer."""
    line, clock, step = Line(Wire(trip_us=round(trip_s * 1e6))), RoundTrip(), LOOK_S
    if longest:
        line.acks._longest = max(trip_s - LOOK_SELDOM_S, 0.0)
    began, pinged = line.now, float("inf")
    line.send(lost)
    while line.now + step < min(pinged + trip_s, began + back_s):
        found = line.look(step)
        assert found is not None
        since, within = found
        quiet, step = line.now - since, min(max(within, LOOK_S), LOOK_SELDOM_S)
        if quiet > clock.unacknowledged_after(within, 3.0):
            return True
        if quiet > clock.in_doubt_after(within) and pinged == float("inf"):
            pinged = line.now
            line.send()
    return False


@pytest.mark.parametrize("longest", [False, True])
@pytest.mark.parametrize("trip_ms", [1, 10, 20, 24, 30, 40, 60, 100, 200])
def test_a_ping_behind_a_single_packet_that_is_lost_is_acknowledged_in_time(trip_ms: int, longest: bool) -> None:
    """TCP itself sends the packet again after 0.2 s, and two trips."""
    assert not closed(trip_ms / 1e3, lost=1, back_s=0.2 + 3 * trip_ms / 1e3, longest=longest)


@pytest.mark.parametrize("longest", [False, True])
@pytest.mark.parametrize("trip_ms", [1, 5, 10, 20, 40, 60, 100])
def test_what_is_lost_at_the_end_is_sent_again_in_time(trip_ms: int, longest: bool) -> None:
    """Of more than one packet, after two round trips and two ticks of a kernel of 250 Hz."""
    assert not closed(trip_ms / 1e3, lost=3, back_s=3 * trip_ms / 1e3 + 0.008, longest=longest)


def test_of_many_packets_that_go_out_together_the_first_is_acknowledged_within_two_trips() -> None:
    line = Line.used(Wire(trip_us=20_000, variation_us=2_000))
    line.send(8)
    assert line.quiet(0.01) == pytest.approx(0.01)  # from when on they were sent, not seen
    assert line.within() == pytest.approx(0.04 + 0.008)
    assert line.quiet(0.02) == pytest.approx(0.03)


def test_so_it_is_where_only_what_was_under_way_before_has_been_acknowledged_since() -> None:
    line = Line.used(Wire(trip_us=20_000))
    line.send(3)
    line.quiet()
    line.now += LOOK / 2
    line.send(10)
    line.deliver(3)
    assert line.quiet(LOOK / 2) == pytest.approx(LOOK / 2)
    assert line.within() == pytest.approx(0.04)


def test_that_something_was_under_way_already_does_not_make_them_later() -> None:
    """Such as a Ping, whose acknowledgement is held back."""
    line = Line.used(Wire(trip_us=20_000))
    line.send()
    line.quiet()
    line.now += 0.005
    line.send(10)
    assert line.quiet(0.01) == pytest.approx(0.01)
    assert line.within() == pytest.approx(0.04)


def test_but_who_had_to_wait_behind_what_the_kernel_has_not_sent_does_not_know_when_they_went() -> None:
    line = Line.used(Wire(trip_us=20_000))
    line.send()
    line.wire.unsent = 100_000
    line.quiet()
    line.send(10)
    line.wire.unsent = 0
    assert line.quiet() == 0.0


@pytest.mark.parametrize("first", [1, 30])
def test_but_the_last_of_them_may_all_be_lost_in_a_queue_that_is_full(first: int) -> None:
    """They are asked for after two trips, and acknowledged after three."""
    line = Line.used(Wire(trip_us=20_000))
    line.send(40)
    line.deliver(first)
    assert line.quiet(0.01) == 0.0
    assert line.within() == pytest.approx(0.06)
    line.send(20)
    line.quiet(0.01)
    assert line.within() == pytest.approx(0.06)


def test_who_was_stopped_between_sending_and_looking_knows_nothing_of_that_time() -> None:
    line = Line.used(Wire(trip_us=1000))
    line.send(40)
    assert line.quiet(60.0) == pytest.approx(WATCHED)


def test_many_packets_that_had_to_wait_for_room_count_from_when_they_are_seen() -> None:
    line = Line.used(Wire(trip_us=1000))
    line.acks.sent()
    line.wire.unsent = 100_000
    assert line.quiet() == 0.0
    line.wire.unacked = 40
    assert line.quiet() == 0.0


def test_a_machine_that_was_stopped_finds_no_connection_broken() -> None:
    line = Line(Wire(trip_us=1000))
    line.send(3)
    line.quiet(0.01)
    found = line.look(60.0)
    assert found is not None
    assert line.now - found[0] < RoundTrip().unacknowledged_after(found[1], 3.0)


def test_and_how_long_it_has_taken_of_late() -> None:
    line = Line()
    line.send(1000)
    line.quiet()
    for _ in range(10):
        line.quiet()
    plain = line.within()
    assert plain == pytest.approx(0.003)
    line.deliver()
    line.quiet()
    assert line.within() == pytest.approx(0.001 + 0.2, abs=1e-6)
    for _ in range(300):
        line.deliver()
        line.quiet()
    assert line.within() < 0.001 + 0.02 + 0.002  # forgotten


def test_but_not_how_long_nobody_has_looked() -> None:
    line = Line()
    line.send(1000)
    line.quiet()
    line.deliver()
    line.quiet(7.0)
    line.deliver()
    line.quiet()
    assert line.within() == pytest.approx(0.003)


def _gone(_level: int, _option: int, _size: int) -> bytes:
    raise OSError(9, "Bad file descriptor")


def _gone_of_uvloop(_level: int, _option: int, _size: int) -> bytes:
    raise ValueError("negative file descriptor")


@pytest.mark.parametrize("answer", [lambda *_: bytes(104), _gone, _gone_of_uvloop])
def test_of_a_kernel_that_tells_less_and_of_what_is_gone_nothing_is_known(answer: object) -> None:
    line = Line()
    line.wire.getsockopt = answer  # type: ignore[method-assign, assignment]
    line.send()
    assert line.look() is None
    assert line.look() is None


@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_nothing_is_missing_for_longer_than_it_was_watched(steps: list[tuple[float, int, int]]) -> None:
    """An oracle: the time between looks, as much of it as counts, since something was last delivered. Of few packets:
    many that go out together count from then on."""
    line, watched, alone = Line(), None, False
    for after, more, delivered in steps:
        before = line.wire.unacked
        sent = min(more, 7 - before)
        if sent:
            line.send(sent)
        moved = min(delivered, line.wire.unacked)
        line.deliver(moved)
        found = line.look(after)
        if line.wire.unacked == 0:
            assert found is None
            watched, alone = None, False
            continue
        assert found is not None
        if watched is None or moved or before == 0 or (alone and line.wire.unacked > 1):
            watched = 0.0
        elif after <= 0.1:
            watched += min(after, WATCHED)
        alone = line.wire.unacked == 1
        assert line.now - found[0] == pytest.approx(watched, abs=1e-9)


# -- the real kernel -----------------------------------------------------------------------------------------


def info_of(sock: socket.socket, at: int) -> int:
    found: int = struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), at)[0]
    return found


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
    with client, accepted:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client, accepted


def test_the_kernel_tells_how_much_was_delivered_where_it_is_looked_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    for count in range(1, 51):
        client.sendall(b"x")
        accepted.recv(1)
        accepted.sendall(b"y")  # brings the acknowledgement with it
        client.recv(1)
        assert info_of(client, UNACKED) == 0
        assert info_of(client, DELIVERED) - count in (0, 1)  # the SYN may count
    assert 0 < info_of(client, TRIP) < 1e6


def test_over_the_kernel_nothing_is_missing_when_all_has_come(pair: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = pair
    acks = Acknowledgements()
    acks.sent()
    client.sendall(b"x")
    accepted.recv(1)
    accepted.sendall(b"y")
    client.recv(1)
    assert acks.missing(client, 1.0, queued=False) is None
    client.close()
    acks.sent()
    assert acks.missing(client, 2.0, queued=False) is None


def test_a_process_that_does_not_read_leaves_nothing_unacknowledged(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its kernel takes what there is room for, and says that there is no more: frozen is not cut off."""
    client, _ = pair
    acks = Acknowledgements()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            acks.sent()
            client.send(bytes(1 << 16))
    until = time.monotonic() + 5.0
    while info_of(client, UNACKED) and time.monotonic() < until:  # the receiver's kernel may hold back the last one
        acks.missing(client, elapsed(), queued=True)
    assert info_of(client, UNSENT) > 0
    now = elapsed()
    assert acks.missing(client, now, queued=True) == (now, pytest.approx(0.0, abs=1.0))


# -- channels ------------------------------------------------------------------------------------------------


class Ear:
    """Answers as often as it was told to, and says so."""

    def __init__(self, channel: Channel, answers: int) -> None:
        self.channel = channel
        self.answers = answers
        self.heard = asyncio.Event()

    def sink(self, frame: object, payload_bytes: int) -> memoryview | None:
        return None

    def admits(self, frame: object, payload_bytes: int) -> bool:
        return False

    def received(self, *_: object) -> None:
        self.heard.set()
        for _each in range(self.answers):
            self.channel.send(PING)

    def closed(self, reason: str) -> None:
        self.heard.set()


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_channel_knows_what_is_missing_as_long_as_it_is_open(runner: object, host: str) -> None:
    async def talk() -> None:
        transport, there, here = TcpTransport(), list[Ear](), list[Ear]()

        def answer(channel: Channel) -> Ear:
            there.append(Ear(channel, 1))
            return there[0]

        def listen(channel: Channel) -> Ear:
            here.append(Ear(channel, 0))
            return here[0]

        listener = await transport.listen(f"{host}:0", answer)
        async with asyncio.timeout(5.0):
            channel = await transport.dial(listener.address, listen, timeout=5.0)
            assert channel.missing(1.0) is None  # nothing was sent
            channel.send(PING)
            await here[0].heard.wait()
        assert channel.missing(1.02) is None  # the answer has brought the acknowledgement with it
        channel.send(PING)
        channel.abort("enough")
        assert channel.missing(1.04) is None
        await there[0].heard.wait()
        there[0].channel.abort("enough")
        await listener.close()

    runner(talk())  # type: ignore[operator]
