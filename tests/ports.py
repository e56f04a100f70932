"""Ports that a test may give to a program."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]


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
