"""The broker's fault: stopped, and started again. Confirmed by connecting to it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from edgepeer.emulation.faults.scene import BrokerControl, Scene, Unconfirmed
from edgepeer.emulation.network.base import BROKER

__all__ = ["OutageFault"]

_ANSWER_S: Final = 5.0


class OutageFault:
    """Nobody listens on the broker's port for a while."""

    target = BROKER

    def __init__(self, scene: Scene) -> None:
        assert scene.broker is not None, "the plan has no outage of a broker that is not ours"
        self._broker: BrokerControl = scene.broker
        self.confirmed: dict[str, Any] = {}

    async def inject(self) -> None:
        """Raises Unconfirmed: somebody still listens there."""
        await self._broker.stop()
        if (answer := await self._answer()) != "refused":
            raise Unconfirmed(f"connecting to {self._broker.address} is not refused: {answer}")
        self.confirmed = {"while_down": "refused"}

    async def lift(self) -> None:
        """Raises Unconfirmed: somebody listens before it is back, or nobody does then."""
        if (still := await self._answer()) != "refused":
            raise Unconfirmed(f"connecting to {self._broker.address} was not refused any more: {still}")
        await self._broker.start()
        answer = await self._answer()
        self.confirmed["when_back"] = answer
        if answer != "accepted":
            raise Unconfirmed(f"connecting to {self._broker.address} is not accepted again: {answer}")

    async def _answer(self) -> str:
        address = self._broker.address
        try:
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection(address.host, address.port)
                writer.close()
                await writer.wait_closed()
        except ConnectionRefusedError:
            return "refused"
        except (OSError, TimeoutError) as error:
            return str(error) or "no answer"
        return "accepted"
