"""The broker's outage, on a real one."""

from __future__ import annotations

import pytest
from stage import scene_of

from edgepeer.emulation.faults.outage import OutageFault
from edgepeer.emulation.faults.scene import Unconfirmed
from edgepeer.fabric.broker import EmbeddedBroker


async def test_down_and_back() -> None:
    async with EmbeddedBroker() as broker:
        port = broker.address.port
        outage = OutageFault(scene_of(broker=broker))
        await outage.inject()
        assert outage.confirmed == {"while_down": "refused"}
        await outage.lift()
        assert outage.confirmed == {"while_down": "refused", "when_back": "accepted"}
        assert broker.address.port == port


class Immortal(EmbeddedBroker):
    async def stop(self) -> None:
        """Not before its time."""


async def test_a_broker_that_does_not_stop() -> None:
    async with Immortal() as broker:
        with pytest.raises(Unconfirmed, match=r"connecting to mqtt://.* is not refused: accepted"):
            await OutageFault(scene_of(broker=broker)).inject()
        await EmbeddedBroker.stop(broker)


async def test_a_broker_that_comes_back_too_early() -> None:
    async with EmbeddedBroker() as broker:
        outage = OutageFault(scene_of(broker=broker))
        await outage.inject()
        await broker.start()
        with pytest.raises(Unconfirmed, match="was not refused any more: accepted"):
            await outage.lift()
