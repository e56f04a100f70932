"""Two mosquittos, one of which is a bridge to the other: who is at either is in the same fabric."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fabric_guests import Invite, presence

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.events import PresenceGone, PresenceSeen, RelaySeen
from edgepeer.fabric.mosquitto import Mosquitto, find_mosquitto
from edgepeer.fabric.topics import Group
from edgepeer.ids import PeerId

MINE = Group.PEERS | Group.RELAY


class Bridge(Mosquitto):
    """As docs/operations.md has it. `to`: where the other one is."""

    def __init__(self, to: BrokerAddress) -> None:
        super().__init__()
        self._to = to

    def _configuration(self, home: Path) -> str:
        bridge = ("connection home", f"address {self._to.host}:{self._to.port}", "topic edgepeer/v1/# both 1")
        return super()._configuration(home) + "\n".join((*bridge, "cleansession true", "restart_timeout 1")) + "\n"


@pytest.fixture
async def two() -> AsyncIterator[tuple[Mosquitto, Mosquitto]]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    async with Mosquitto() as home, Bridge(home.address) as bridge:
        yield home, bridge


@pytest.mark.parametrize("swapped", [False, True])
async def test_peers_at_both_see_and_reach_each_other(
    two: tuple[Mosquitto, Mosquitto], invite: Invite, swapped: bool
) -> None:
    one, other = two[::-1] if swapped else two
    a = await invite(one.address, "a", present=True, interests=MINE)
    b = await invite(other.address, "b", present=True, interests=MINE)
    for guest, name in ((a, "b"), (b, "a")):
        await guest.until_seen(PresenceSeen(presence("a")), PresenceSeen(presence("b")))
        payload = b"to " + name.encode() + bytes(50_000)
        assert guest.client.publish_relay(name, payload)
    await a.until(lambda seen: any(isinstance(event, RelaySeen) and event.payload[:4] == b"to a" for event in seen))
    await b.until(lambda seen: any(isinstance(event, RelaySeen) and event.payload[:4] == b"to b" for event in seen))
    assert sum(isinstance(event, RelaySeen) for event in (*a.events, *b.events)) == 2  # none comes back by the bridge
    await a.crash()
    await b.until_seen(PresenceGone(PeerId("a")))


async def test_a_bridge_that_starts_anew_hears_what_is_kept(two: tuple[Mosquitto, Mosquitto], invite: Invite) -> None:
    home, bridge = two
    await bridge.stop()
    await invite(home.address, "a", present=True, interests=MINE)
    await bridge.start()
    b = await invite(bridge.address, "b", present=True, interests=MINE)
    await b.until_seen(PresenceSeen(presence("a")))
