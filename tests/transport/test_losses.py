"""Who loses packets changes to bbr, where the kernel lets it; who does not stays as it is."""

from __future__ import annotations

import socket
import struct

from edgepeer.transport.losses import LossWatch


class Wire:
    """A connection whose counters are up to the test."""

    def __init__(self) -> None:
        self.sent = 0
        self.retransmitted = 0.0
        self.chosen: list[bytes] = []

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        return bytes(100) + struct.pack("=I", int(self.retransmitted)) + bytes(52) + struct.pack("=I", self.sent)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        self.chosen.append(value)


def send(watch: LossWatch, wire: Wire, packets: int, *, lost: float) -> None:
    """Segments of ten packets each."""
    for _ in range(packets // 10):
        wire.sent += 10
        wire.retransmitted += 10 * lost
        watch.sending(wire)


def test_a_lossy_path_goes_on_with_bbr() -> None:
    watch, wire = LossWatch(), Wire()
    send(watch, wire, 20_000, lost=0.01)
    assert wire.chosen
    assert set(wire.chosen) == {b"bbr"}


def test_it_does_so_as_soon_as_enough_are_lost() -> None:
    """One of many trees brings a connection few packets a round, and with cubic rounds are slow until then."""
    watch, wire = LossWatch(), Wire()
    send(watch, wire, 300, lost=0.01)
    assert not wire.chosen
    send(watch, wire, 200, lost=0.01)
    assert set(wire.chosen) == {b"bbr"}


def test_a_clean_path_stays_as_it_is() -> None:
    watch, wire = LossWatch(), Wire()
    send(watch, wire, 20_000, lost=0.001)
    assert not wire.chosen


def test_what_was_lost_long_ago_counts_no_more() -> None:
    watch, wire = LossWatch(), Wire()
    send(watch, wire, 20_000, lost=0.01)
    wire.chosen.clear()
    send(watch, wire, 2_000, lost=0.0)
    wire.chosen.clear()
    send(watch, wire, 20_000, lost=0.0)
    assert not wire.chosen


def test_the_kernel_tells_how_much_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(50):
            client.sendall(b"x")
            accepted.recv(1)
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)  # where it is looked for
        assert struct.unpack_from("=I", info, 156) == (50,)
        assert struct.unpack_from("=I", info, 100) == (0,)
        watch = LossWatch()
        for _ in range(100):
            watch.sending(client)
    for _ in range(100):
        watch.sending(client)  # closed, and nobody has said so
