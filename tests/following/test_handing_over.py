from __future__ import annotations

import asyncio
import gc
import socket
import time
from typing import Any

import pytest

from edgepeer.following import parts
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.frames import Hello


async def test_who_does_not_even_say_who_it_is_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that stands still: its kernel takes connections all the same."""
    monkeypatch.setattr(parts, "_HELLO_S", 0.3)
    hello = Hello(fabric="lab", peer="saver-1", incarnation=1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"nothing has come for 0\.3 s"):
            await parts._Asking(TcpTransport(), hello, "p0", "job/part").ask(address, timeout=600)
        assert time.monotonic() - began < 60


async def test_who_is_given_up_is_not_complained_of_when_its_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_HELLO_S", 0.0)
    complaints: list[dict[str, Any]] = []
    closed, end = asyncio.Event(), parts._Asking.closed

    def end_and_note(asking: parts._Asking, reason: str) -> None:
        end(asking, reason)
        closed.set()

    monkeypatch.setattr(parts._Asking, "closed", end_and_note)
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    hello = Hello(fabric="lab", peer="saver-1", incarnation=1)

    async def ask(address: str) -> bool:
        try:
            return bool(await parts._Asking(TcpTransport(), hello, "p0", "job/part").ask(address, timeout=600))
        except TimeoutError:
            return False

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        assert not await ask(f"127.0.0.1:{frozen.getsockname()[1]}")
        async with asyncio.timeout(60):
            await closed.wait()
        gc.collect()
    assert not complaints
