"""What a peer says of who can reach it."""

from __future__ import annotations

import re

import pytest

from edgepeer.peer.reach import warn_of_reach

AWAY = "192.0.2.1"


@pytest.mark.parametrize(
    ("listening", "announced", "broker", "said"),
    [
        ("127.0.0.1:7700", ["127.0.0.1:7700"], "127.0.0.1", None),
        ("127.0.0.1:7700", ["127.0.0.1:7700"], AWAY, "listening on 127.0.0.1:7700 only: .*; see --listen$"),
        ("0.0.0.0:7700", ["192.0.2.7:7700", "127.0.0.1:7700"], AWAY, None),
        ("0.0.0.0:7700", ["127.0.0.1:7700"], "localhost", None),
        (
            "0.0.0.0:7700",
            ["127.0.0.1:7700"],
            "fd00::100",
            r"listening on 0.0.0.0:7700, but announced as 127.0.0.1:7700 only: peers on other machines can't connect "
            r"to this one; .* no address of IPv4 .*: on a network of IPv6, --listen \[::\]:7700; or see --advertise$",
        ),
        ("[::]:7700", ["[2001:db8::7]:7700", "[::1]:7700"], AWAY, None),
        ("[::]:7700", ["[::1]:7700"], AWAY, r"no address of IPv6 .*: on a network of IPv4, --listen 0.0.0.0:7700; or"),
        ("192.0.2.7:7700", ["localhost:7700", "127.0.0.1:7700"], AWAY, "to this one; see --advertise$"),
        ("192.0.2.7:7700", ["hub.example:7700"], AWAY, None),
    ],
)
def test_that_nobody_on_another_machine_can_connect_is_said(
    listening: str, announced: list[str], broker: str, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_reach(listening, announced, broker, sealed=True)
    if said is None:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert re.search(said, record.getMessage())
