"""Ports that a test may give to a program, or connect to in vain, and names that lead there."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["free_port", "is_at", "nobody_answers"]


def free_port() -> int:
    """A port of this machine at which nobody listens just now. None of those that the kernel gives to whoever connects:
    such a one may be somebody's before the program gets to it."""
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(least // 2, 1024), least)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue  # somebody's


@contextlib.contextmanager
def nobody_answers() -> Iterator[tuple[str, int]]:
    """A place where neither anybody answers nor a kernel says so."""
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # with its queue full, Linux drops whatever else comes
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()


def is_at(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> None:
    """Let all names lead there."""
    kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*kind, place) for place in places])
