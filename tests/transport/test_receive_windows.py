"""Receive windows: as wide as the path, shared by those who send, and the kernel's own where little comes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.transport.window import ReceiveWindows

LEAST = 16 << 10


class Wire:
    """A connection, its round trip time, and the widths that were asked for."""

    def __init__(self, rtt_s: float, buffer_bytes: int = 1 << 20) -> None:
        self.rtt_s = rtt_s
        self.buffer_bytes = buffer_bytes
        self.widths: list[int] = []

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes | int:
        if (level, option, size) == (socket.SOL_SOCKET, socket.SO_RCVBUF, 0):
            return self.buffer_bytes
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return bytes(size - 4) + struct.pack("=I", min(round(1e6 * self.rtt_s), 2**32 - 1))

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP)
        self.widths.append(value)


class Receiver:
    """Receives at a steady rate, in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.windows = ReceiveWindows(lambda: self.now)

    def receive(self, wires: list[Wire], bytes_per_s: float, seconds: float, step_s: float = 0.001) -> None:
        """From all in turn, so much together."""
        for step in range(round(seconds / step_s)):
            self.now += step_s
            self.windows.received(wires[step % len(wires)], round(bytes_per_s * step_s))


def test_who_sends_alone_has_half_as_much_again_as_the_path_holds() -> None:
    receiver, wire = Receiver(), Wire(rtt_s=0.040)
    receiver.receive([wire], 10e6, 0.5)
    assert wire.widths[-1] == pytest.approx(1.5 * 10e6 * 0.040, rel=0.06)


def test_several_share_it_and_each_has_its_own_round_trip() -> None:
    receiver, wires = Receiver(), [Wire(0.040), Wire(0.080), Wire(0.040)]
    receiver.receive(wires, 12e6, 0.5)
    for wire in wires:
        assert wire.widths[-1] == pytest.approx(1.5 * 12e6 / 3 * wire.rtt_s, rel=0.06)


def test_of_many_any_two_can_fill_the_line() -> None:
    receiver, wires = Receiver(), [Wire(0.040) for _ in range(12)]
    receiver.receive(wires, 12e6, 0.5)
    for wire in wires:
        assert wire.widths[-1] == pytest.approx(12e6 * wire.rtt_s / 2, rel=0.06)


def test_a_slow_line_has_a_short_queue_and_not_none() -> None:
    receiver, wires = Receiver(), [Wire(0.010), Wire(0.010)]
    receiver.receive(wires, 1.25e6, 0.5)
    assert {width for wire in wires for width in wire.widths[-1:]} == {LEAST}


def test_a_fast_network_is_not_held_up_by_short_round_trips() -> None:
    receiver, wire = Receiver(), Wire(rtt_s=0.0002)
    receiver.receive([wire], 110e6, 0.5)
    assert wire.widths[-1] > 110e6 * 0.005


def test_what_comes_in_bits_and_pieces_says_nothing_of_the_rate() -> None:
    receiver, wire = Receiver(), Wire(0.040)
    for _ in range(200):
        receiver.receive([wire], 10e6, 0.015)  # then a pause: shorter than it takes to measure
        receiver.now += 0.02
    assert wire.widths == []


def test_pauses_do_not_make_it_narrower() -> None:
    receiver, wire = Receiver(), Wire(0.040)
    for _ in range(10):
        receiver.receive([wire], 10e6, 0.2)
        receiver.now += 5
    assert min(wire.widths) > 10e6 * 0.040


def test_a_window_that_was_too_narrow_grows() -> None:
    """The sender can't send more than a window in a round trip; the path would carry a hundred times as much."""
    receiver, wire = Receiver(), Wire(rtt_s=0.050)
    width = 2.0 * LEAST
    for _ in range(60):
        receiver.receive([wire], width / wire.rtt_s, 0.2)
        width = wire.widths[-1]
    assert width > 100 * LEAST


@given(st.floats(0, 300), st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 1 << 24)), max_size=300))
def test_whatever_comes_widths_are_sane(rtt_s: float, reads: list[tuple[float, int]]) -> None:
    receiver, wires = Receiver(), [Wire(rtt_s), Wire(5000.0)]  # the second as if never measured
    for number, (after, count) in enumerate(reads):
        receiver.now += after
        receiver.windows.received(wires[number % 2], count)
    for width in wires[0].widths + wires[1].widths:
        assert LEAST <= width <= 1 << 30


def test_a_portion_is_what_comes_in_three_milliseconds_but_no_large_part_of_a_window() -> None:
    receiver, far, near = Receiver(), Wire(rtt_s=0.040), Wire(rtt_s=0.0001)
    assert receiver.windows.portion(far) == 0  # nothing is known yet
    receiver.receive([far, near], 10e6, 0.5)
    assert receiver.windows.portion(far) == pytest.approx(30_000, rel=0.06)
    assert receiver.windows.portion(near) == near.widths[-1] // 2 < 30_000
    receiver.windows.forget(far)
    assert receiver.windows.portion(far) == 0


def test_no_kernel_has_to_make_its_buffer_larger_for_a_portion() -> None:
    """With older ones (5.10) the window is then as narrow as the portion: who sends waits for each to be read."""
    receiver, wire = Receiver(), Wire(rtt_s=0.0002, buffer_bytes=128 << 10)
    receiver.receive([wire], 110e6, 0.5)
    assert receiver.windows.portion(wire) == 64 << 10


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        client.sendall(b"to measure a round trip")
        accepted.recv(100)
        yield client


def test_the_kernel_takes_it(connection: socket.socket) -> None:
    receiver = Receiver()
    for _ in range(1000):
        receiver.now += 0.001
        receiver.windows.received(connection, 50_000)
    # Its round trip is far below 5 ms, which is what counts then.
    width = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP)
    assert width == pytest.approx(1.5 * 50e6 * 0.005, rel=0.06)


def test_a_connection_that_is_gone_is_left_alone(connection: socket.socket) -> None:
    receiver, other = Receiver(), Wire(0.040)
    receiver.windows.received(connection, 1)
    receiver.windows.forget(connection)
    receiver.windows.forget(None)
    connection.close()
    for _ in range(1000):
        receiver.now += 0.001
        receiver.windows.received(other, 10_000)
        receiver.windows.received(connection, 0)  # closed, and nobody has said so
    assert other.widths
