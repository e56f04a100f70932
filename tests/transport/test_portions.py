"""Payloads are read in portions: the kernel is asked for no more than is to come, and never for nothing."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.transport.portions import Portions


class Wire:
    """A connection that writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.asked.append(value)


def test_a_payload_is_awaited_in_portions_and_its_end_as_it_is() -> None:
    wire, portions = Wire(), Portions()
    for missing in (0, 50_000, 38_000, 21_000, 9_000, 0, 0):
        portions.expect(wire, missing, 12_000)
    assert wire.asked == [12_000, 9_000, 1]


def test_where_nothing_is_known_of_the_line_whatever_comes_is_read() -> None:
    wire, portions = Wire(), Portions()
    for missing in (50_000, 20_000, 0):
        portions.expect(wire, missing, 0)
    assert wire.asked == []


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 20))))
def test_nobody_waits_for_more_than_is_to_come(steps: list[tuple[int, int]]) -> None:
    wire, portions = Wire(), Portions()
    for missing, portion in steps:
        portions.expect(wire, missing, portion)
        assert (wire.asked or [1])[-1] == max(min(missing, portion), 1)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        yield client, accepted


def test_the_kernel_wakes_nobody_before(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, reader = pair
    portions, poll = Portions(), select.poll()
    poll.register(reader, select.POLLIN)
    portions.expect(reader, 30_000, 10_000)
    sender.sendall(bytes(9_999))
    assert not poll.poll(0)
    sender.sendall(bytes(1))
    assert poll.poll(5_000)
    reader.recv(20_000)
    portions.expect(reader, 20_000, 10_000)
    sender.sendall(bytes(100))
    assert not poll.poll(0)
    portions.expect(reader, 0, 10_000)
    assert poll.poll(5_000)


def test_the_end_of_a_connection_wakes_all_the_same(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, reader = pair
    Portions().expect(reader, 30_000, 10_000)
    sender.sendall(bytes(100))
    sender.close()
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    assert poll.poll(5_000)


def test_a_window_that_is_full_wakes_all_the_same(pair: tuple[socket.socket, socket.socket]) -> None:
    """Or both ends would wait for each other for ever."""
    sender, reader = pair
    reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 16 << 10)
    Portions().expect(reader, 1 << 20, 60_000)
    sender.setblocking(False)
    sent = 0
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while sent < 1 << 20:
        try:
            sent += sender.send(bytes(1 << 16))
        except BlockingIOError:
            break
    assert poll.poll(5_000)


def test_a_connection_that_is_gone_is_left_alone() -> None:
    class Gone:
        def setsockopt(self, level: int, option: int, value: int) -> None:
            raise OSError(9, "Bad file descriptor")

    Portions().expect(Gone(), 100, 50)
