"""Which congestion control connections begin with: none that stops now and then, of those that may be chosen."""

from __future__ import annotations

import socket

import pytest

from edgepeer.transport.options import tune


class Wire:
    """A connection over a network, of a kernel that has a choice of its own, and lets nobody choose some others."""

    family = socket.AF_INET

    def __init__(self, *refused: bytes, own: bytes = b"bbr") -> None:
        self.refused = refused
        self.control = own

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 7700

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        return self.control.ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes | int) -> None:
        if option == socket.TCP_CONGESTION:
            if value in self.refused:
                raise PermissionError(1, "Operation not permitted")
            assert isinstance(value, bytes)
            self.control = value


@pytest.mark.parametrize(
    ("refused", "begins_with"), [((), b"cubic"), ((b"cubic",), b"reno"), ((b"cubic", b"reno"), b"bbr")]
)
def test_who_may_choose_does_not_begin_with_bbr(refused: tuple[bytes, ...], begins_with: bytes) -> None:
    wire = Wire(*refused)
    assert tune(wire)  # type: ignore[arg-type]
    assert wire.control == begins_with


@pytest.mark.parametrize("own", [b"cubic", b"reno", b"htcp", b"dctcp", b"bbr2"])
def test_any_other_choice_of_the_kernel_is_left_alone(own: bytes) -> None:
    wire = Wire(own=own)
    assert tune(wire)  # type: ignore[arg-type]
    assert wire.control == own


def test_a_real_connection_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        assert not tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") != b"bbr"
