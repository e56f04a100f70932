"""One MQTT connection after the other, for as long as they are wanted: outages of any length end here.

    the broker                          | so
    ------------------------------------+-----------------------------------------------------------------------------
    lets us in                          | it is served, until the connection ends
    can't be reached, or says no        | the next in the list is tried; if none lets us in, all of them after a while
    lets us in, but hear nothing        | the same; and it is not looked for, for a while that doubles
    is gone again                       | from the first on, after a while
    one before it in the list is back   | left for that one, at once
    is another by now: the fleet moved  | left for that one, at once

So all who have the same list, and can reach the same brokers, meet at one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import aiomqtt

from edgepeer.cancelling import mind_cancellation
from edgepeer.errors import FabricError, first_error
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import Refused, connection, describe
from edgepeer.fabric.events import Connected, Disconnected, FabricEvent
from edgepeer.fabric.looking import Back, look_for

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["Reconnecting"]

_LOG = logging.getLogger(__name__)
_JITTER: Final = random.SystemRandom()  # nobody's seed is disturbed
_BACKOFF_S: Final = (0.2, 5.0)
_MOST_TOLD: Final = 8
_USELESS_S: Final = (60.0, 3600.0)
"""For how long a broker is not looked for that has connected us and no more, the first time, and at most."""


class Reconnecting:
    """The connections of one client.

    Args:
        brokers: the first of them that lets us in is used.
        identifier: what the broker knows us by.
        will_topic: what it clears when we vanish.
        timeout: seconds for finding and reaching a broker, and again for its answer.
        look_back: seconds, on average, between two looks for a broker before the one in use.
        identity: in a fleet, who we are.
        receive: told each message.
        emit: told when a connection begins, and why it is over.
        serve: what there is to do in a connection, until it is cancelled. It says when the broker does what it is
            there for (`stands`).
    """

    def __init__(
        self,
        brokers: Sequence[BrokerAddress],
        identifier: str,
        *,
        will_topic: str | None,
        timeout: float,
        look_back: float,
        identity: Identity | None,
        receive: Callable[[str, bytes, bool], None],
        emit: Callable[[FabricEvent], None],
        serve: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]],
    ) -> None:
        self.broker = brokers[0]
        """The one in use, or being tried."""
        self.up = False
        """Whether it has let us in, and has not gone since."""
        self.count = 0
        """How many connections have stood."""
        self.ending = asyncio.Event()
        """There is to be none any more."""
        self._brokers = brokers
        self._moved = asyncio.Event()
        """They are others than those that are being tried, or than the one in use was one of."""
        self._identifier = identifier
        self._will_topic = will_topic
        self._timeout = timeout
        self._look_back = look_back
        self._identity = identity
        self._receive = receive
        self._emit = emit
        self._serve = serve
        self._useless: dict[BrokerAddress, tuple[float, float]] = {}
        """Brokers that have let us in, and hear nothing: until when they are not looked for, and for how long that
        is."""
        self._passed_over: list[FabricError] = []
        """Why those before the one in use, or being tried, don't let us in."""
        self._failure: FabricError | None = None
        self._told: set[str] = set()
        """What was said of this outage."""
        self._answered = asyncio.Event()
        """Whether the first connection will come about is known."""
        self._polite = True
        self._over = False

    def stands(self) -> None:
        """The broker tells us what we have subscribed to."""
        if self.count or self.broker != self._brokers[0]:
            why = f", and to none before it: {'; '.join(map(str, self._passed_over))}" if self._passed_over else ""
            _LOG.info("broker %s: connected%s%s", self.broker, " again" if self.count else "", why)
        self.count += 1
        self._is_reached(True)
        self._useless.pop(self.broker, None)
        self._failure = None
        self._told.clear()
        self._answered.set()

    def go_to(self, brokers: Sequence[BrokerAddress]) -> None:
        """Let it be one of these from now on."""
        if tuple(brokers) != tuple(self._brokers):
            self._brokers = brokers
            self._moved.set()

    def end(self, *, polite: bool | None = None) -> None:
        """Leave. `polite`: the broker is told, else it sends the will; None: as was said before."""
        self._polite = self._polite if polite is None else polite
        self.ending.set()

    def over(self) -> None:
        """Nothing more comes of it."""
        self._over = True
        self._answered.set()

    async def first(self, timeout: float | None) -> None:
        """Wait for the first connection: see `FabricClient.connected`."""
        if timeout is None:
            timeout = 2.0 + self._timeout * len(self._brokers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._answered.wait()
        if not self.count:
            why = "closed before it was connected" if self._over else f"timed out after {timeout:g} s"
            raise FabricError(str(self._failure or f"broker {self.broker}: {why}"))

    async def run(self) -> None:
        """Be connected, until the end."""
        shortest, longest = _BACKOFF_S
        loop = asyncio.get_running_loop()
        pause = shortest
        self._is_reached(False)
        while not self.ending.is_set():
            since = loop.time()
            answered = await self._first_that_answers()
            mind_cancellation()
            if not answered:
                continue
            if loop.time() - since > longest:
                pause = shortest
            # Decorrelated jitter: a fleet that lost its broker doesn't come back in one wave.
            pause = min(longest, _JITTER.uniform(shortest, 3 * pause))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.ending.wait()

    async def _first_that_answers(self) -> bool:
        """Be connected to the first broker that lets us in. Returns whether to wait before the next try."""
        failures: list[FabricError] = []
        brokers = self._brokers
        self._moved.clear()
        for number, broker in enumerate(brokers):
            before, self._passed_over = self.count, [*failures]
            mind_cancellation()
            if self._moved.is_set():
                return False
            try:
                await self._connect(broker, brokers[:number])
            except Back as back:
                _LOG.info("%s", back)
                return False
            except FabricError as error:
                failures.append(error)
                if self.up and isinstance(error, Refused) and self.count == before:
                    self._is_useless(broker)
            finally:
                self.up = False
            if self.count > before or self.ending.is_set():
                break
        if failures:
            self._note(failures)
        return True

    def _is_useless(self, broker: BrokerAddress) -> None:
        first, longest = _USELESS_S
        _, before = self._useless.get(broker, (0.0, first / 2))
        pause = min(2 * before, longest)
        self._useless[broker] = asyncio.get_running_loop().time() + pause, pause

    def _is_too_soon(self, broker: BrokerAddress) -> bool:
        until, _ = self._useless.get(broker, (float("-inf"), 0.0))
        return asyncio.get_running_loop().time() < until

    def _is_reached(self, reached: bool) -> None:
        if self._identity is not None:
            self._identity.reached = reached

    async def _connect(self, broker: BrokerAddress, earlier: Sequence[BrokerAddress]) -> None:
        """One connection, until it ends.

        Raises:
            FabricError: it could not be had, or is gone; Back: there is a better one.
        """
        self.broker = broker
        async with connection(
            broker,
            identifier=self._identifier,
            will_topic=self._will_topic,
            on_message=self._receive,
            timeout=self._timeout,
            identity=self._identity,
        ) as client:
            self.up = True
            self._emit(Connected())
            failure: BaseException | None = None
            try:
                async with asyncio.TaskGroup() as tasks:
                    look = look_for(
                        *(earlier, self._identifier),
                        every=self._look_back,
                        timeout=self._timeout,
                        identity=self._identity,
                        too_soon=self._is_too_soon,
                    )
                    works = (_watch(client), self._serve(client), look, self._moves())
                    serving = [tasks.create_task(work) for work in works]
                    await self.ending.wait()
                    for task in serving:
                        task.cancel()
            except* (aiomqtt.MqttError, FabricError) as group:
                failure = first_error(group)
            reason = "left" if failure is None else describe(failure)
            self._emit(Disconnected(reason))
            if failure is not None:
                self._is_reached(False)
            if failure is not None or not self._polite:
                kind = type(failure) if isinstance(failure, Refused | Back) else FabricError
                raise kind(f"broker {broker}: {reason}") from failure

    async def _moves(self) -> None:
        await self._moved.wait()
        raise Back("left, for the fleet has another broker now")

    def _note(self, errors: Sequence[FabricError]) -> None:
        error = self._failure = FabricError("; ".join(map(str, errors)))
        if all(isinstance(each, Refused) for each in errors):
            self._answered.set()
        if not self.ending.is_set():
            # Until we were connected, `first` tells; after that, each reason is told once in an outage: why a broker
            # that is back does not let us in says more than that it was away.
            news = self.count > 0 and str(error) not in self._told and len(self._told) < _MOST_TOLD
            if news:
                self._told.add(str(error))
            _LOG.log(logging.WARNING if news else logging.DEBUG, "%s; trying again", error)


async def _watch(client: aiomqtt.Client) -> None:
    # Messages go straight to what hears them; this raises when the connection ends.
    await anext(client.messages)
