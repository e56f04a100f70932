"""Where a listener says that it is: under addresses by which it is reached."""

from __future__ import annotations

import asyncio
import socket

import ifaddr
import pytest
from speech import Ear

from edgepeer.transport.options import advertised, parse_address
from edgepeer.transport.tcp import TcpTransport

PATIENCE_S = 60.0
ADAPTERS = [
    ifaddr.Adapter("lo", "lo", [ifaddr.IP("127.0.0.1", 8, "lo"), ifaddr.IP(("::1", 0, 0), 128, "lo")]),
    ifaddr.Adapter(
        "eth0",
        "eth0",
        [
            ifaddr.IP("192.0.2.7", 24, "eth0"),
            ifaddr.IP(("fe80::7", 0, 2), 64, "eth0"),
            ifaddr.IP(("2001:db8::7", 0, 0), 64, "eth0"),
        ],
    ),
    ifaddr.Adapter("eth1", "eth1", [ifaddr.IP("169.254.0.7", 16, "eth1")]),
]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
async def test_who_listens_everywhere_is_reached_where_it_says(host: str) -> None:
    listener = await TcpTransport().listen(f"{host}:0", Ear)
    for address in advertised(listener.address):
        async with asyncio.timeout(PATIENCE_S):
            channel = await TcpTransport().dial(address, Ear, timeout=PATIENCE_S)
        channel.abort("the test is over")
    await listener.close()


@pytest.mark.parametrize(
    ("bound", "wanted"),
    [
        ("0.0.0.0:7700", ("192.0.2.7:7700", "169.254.0.7:7700", "127.0.0.1:7700")),
        ("[::]:7700", ("[2001:db8::7]:7700", "[::1]:7700")),
        ("192.0.2.7:7700", ("192.0.2.7:7700",)),
        ("[2001:db8::7]:7700", ("[2001:db8::7]:7700",)),
    ],
)
def test_only_what_others_can_reach_it_by_is_said(
    bound: str, wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: ADAPTERS)
    assert advertised(bound) == wanted


def test_no_more_are_said_than_a_presence_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [ifaddr.IP((f"2001:db8::{number:x}", 0, 0), 64, "eth0") for number in range(1, 40)]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: [ifaddr.Adapter("eth0", "eth0", many)])
    said = advertised("[::]:7700")
    assert len(said) == 16
    assert all(socket.inet_pton(socket.AF_INET6, parse_address(address)[0]) for address in said)
