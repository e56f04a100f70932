"""A peer's place in a fabric: one MQTT connection, kept for as long as its owner wants it.

Broker outages of any length are this module's business: it reconnects, subscribes again, says again what it
retains, and delivers what waited. Its owner is told what is seen, in order, on the event loop's thread.

Of several brokers the first in the list that lets us in is used, and while it isn't the very first, those before it
are tried again and again: so all who have the same list, and can reach the same brokers, meet at one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import aiomqtt
import msgspec

from edgepeer.errors import ConfigError, FabricError, ProtocolBug, TrustError, WireError, first_error
from edgepeer.fabric import inbox
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.asking import Answers
from edgepeer.fabric.catching_up import catch_up
from edgepeer.fabric.connection import Refused, broker_of, connection, describe, publish, subscribe
from edgepeer.fabric.documents import Announcement, Ask, Presence
from edgepeer.fabric.envelope import Envelope
from edgepeer.fabric.events import Connected, Disconnected, Evicted, FabricEvent, PresenceGone, Synced
from edgepeer.fabric.gate import FleetGate, Gate, OpenGate
from edgepeer.fabric.hearing import Hearing
from edgepeer.fabric.looking import Back, look_for
from edgepeer.fabric.outbox import Outbox
from edgepeer.fabric.relay import RelayQueue
from edgepeer.fabric.spreading import Spreading
from edgepeer.fabric.topics import Group, Topics
from edgepeer.fabric.twins import TwinWatch
from edgepeer.ids import PeerId, check_peer_id
from edgepeer.topology.view import View
from edgepeer.wire.documents import pack, unpack

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["FabricClient"]

_LOG = logging.getLogger(__name__)
_JITTER: Final = random.SystemRandom()  # nobody's seed is disturbed
_BACKOFF_S: Final = (0.2, 5.0)
_SLOWEST_BYTES_PER_S: Final = 10_000
_ECHO_S: Final = 5.0


class FabricClient:
    """One client of one fabric.

    Args:
        client_id: a peer's own id, or any other name of that form. What the broker knows us by is made of it, and
            of what nobody can guess: who names himself so throws out whoever was there before.
        on_event: told everything, from within the event loop; must be quick. If it raises, `run` ends with
            that exception.
        will_topic: the retained topic that the broker clears when we vanish, and that we fill again when
            somebody else clears it: a peer's presence.
        interests: what to subscribe to.
        timeout: seconds for finding and reaching a broker, and again for its answer.
        look_back: seconds, on average, between two looks for a broker before the one in use.
        identity: in a fleet, who we are: then all that is said is signed, and nothing else counts.

    Raises:
        ConfigError: the fabric or the client id is no name; or not what the identity is for.
    """

    def __init__(
        self,
        broker: BrokerAddress,
        fabric: str,
        client_id: str,
        *,
        on_event: Callable[[FabricEvent], None],
        will_topic: str | None = None,
        interests: Group = Group.EVERYTHING,
        timeout: float = 4.0,
        look_back: float = 30.0,
        identity: Identity | None = None,
    ) -> None:
        self.topics = Topics(fabric)
        self.broker = broker.choices[0]
        """The one in use, or being tried."""
        self.connected_now = False
        """Whether it has let us in, and has not gone since."""
        self.reconnects = 0
        """Connections after the first."""
        self._client_id = check_peer_id(client_id)
        self._identifier = f"{fabric}:{client_id}:{secrets.token_hex(8)}"
        self._on_event = on_event
        self._will_topic = will_topic
        self._timeout = timeout
        self._brokers = broker.choices
        self._look_back = look_back
        self._identity = identity
        self._gate: Gate = OpenGate()
        self._fleet: FleetGate | None = None
        self._spreading: Spreading | None = None
        if identity is not None:
            _check_identity(identity, fabric, client_id, broker, peer=will_topic is not None)
            self._gate = self._fleet = FleetGate(identity, client_id)
            self._spreading = Spreading(identity, self._say_list)
        self._certificate = identity.certificate if identity is not None else b""
        self._bodies: dict[str, bytes] = {}
        """What is kept, as it is without a signature."""
        self._outbox = Outbox()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hearing = Hearing(
            self.topics,
            self._client_id,
            interests,
            will_topic,
            gate=self._gate,
            emit=self._emit,
            say_again=self._say_again,
            met=self._met,
            asked=self._asked,
            listed=self._listed,
        )
        self._twins = TwinWatch(fabric, serials=identity is not None)
        self._answers = Answers(self.topics, self._outbox, self._gate)
        self._relay = RelayQueue()
        self._connections = 0
        self._passed_on = False
        """Whether the broker has given back what we say of ourselves, in this connection."""
        self._failure: FabricError | None = None
        self._first_answer = asyncio.Event()
        self._running = False
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self._polite = True
        self._bug: Exception | None = None
        self._listed_anew = asyncio.Event()
        """There may be somebody else who is out of the fleet."""

    @property
    def rejected_documents(self) -> int:
        """Messages on this fabric's topics that were not what they must be."""
        return self._hearing.rejected.count

    @property
    def refusals(self) -> Mapping[str, int]:
        """Why, and how many for each reason."""
        return MappingProxyType(self._hearing.reasons)

    @property
    def dropped_events(self) -> int:
        """Events that gave way to later ones during an outage."""
        return self._outbox.dropped_events

    async def run(self) -> None:
        """Be connected until `close`. Cancelling this instead is like a crash: the broker sends the will.

        Raises:
            ConfigError: an older peer of our id is in the fabric.
            TrustError: this device has been evicted.
            Exception: whatever `on_event` raised.
        """
        if self._running:
            raise ProtocolBug("a FabricClient runs once")
        self._running = True
        loop = asyncio.get_running_loop()
        try:
            with contextlib.ExitStack() as stack:
                if self._identity is not None:

                    def tell() -> None:  # in whatever thread
                        loop.call_soon_threadsafe(self._identity_changed)

                    stack.callback(self._identity.on_change(tell))
                async with asyncio.TaskGroup() as tasks:
                    keeper = tasks.create_task(self._keep_connected())
                    spreading = tasks.create_task(self._spreading.run()) if self._spreading is not None else None
                    await self._ending.wait()
                    if spreading is not None:
                        spreading.cancel()
                    if not self.connected_now:
                        keeper.cancel()
        finally:
            self._ended.set()
            self._first_answer.set()  # there won't be another
        if self._bug is not None:
            raise self._bug

    async def connected(self, timeout: float | None = None) -> None:
        """Wait for the first connection; an outage after it is nothing to wait for.

        Args:
            timeout: seconds; enough for each broker to be tried once, if omitted.

        Raises:
            FabricError: every broker refused us, or none could be reached in time; one line with address and reason.
        """
        if timeout is None:
            timeout = 2.0 + self._timeout * len(self._brokers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._first_answer.wait()
        if not self._connections:
            why = "closed before it was connected" if self._ended.is_set() else f"timed out after {timeout:g} s"
            raise FabricError(str(self._failure or f"broker {self.broker}: {why}"))

    def publish_retained(self, topic: str, document: msgspec.Struct | None) -> None:
        """Let the broker keep this, now and after every reconnect; None clears the topic.

        Raises:
            WireError: the document breaks its own bounds; no receiver would take it.
        """
        if topic == self._will_topic and (document is None or isinstance(document, Presence)):
            document = self._twins.say(document)
        self._outbox.keep(topic, self._kept_as(topic, self._packed(topic, document)))
        self._wake()

    def announce_again(self) -> bool:
        """In a fleet, say once more what its job is, as an operator has signed it. False: none was ever heard of, or
        who has signed it counts no more."""
        if self._fleet is None or not self._fleet.announced.signed:
            return False
        topic = self.topics.parse(self.topics.job)
        assert topic is not None
        try:
            self._fleet.opened(self.topics.job, topic, self._fleet.announced.signed)
        except WireError as error:
            _LOG.warning("the job of this fleet can't be announced again: %s", error)
            return False
        self._outbox.keep(self.topics.job, self._fleet.announced.signed)
        self._outbox.forget(self.topics.job)
        self._wake()
        return True

    def take_over_job(self) -> bool:
        """Say once more, as an operator, what the job of the fleet is, if who has said it last has a certificate of
        another authority than ours: when that is dropped, newcomers would not believe it. Whether it was so."""
        if self._identity is None or self._fleet is None or not self._fleet.announced.signed:
            return False
        envelope = Envelope.unpack(self._fleet.announced.signed)
        try:
            said_by = self._identity.check(envelope.certificate)
        except TrustError:  # it counts for nothing already
            return False
        if said_by.checked.authority.der == self._identity.authority.der:
            return False
        job = unpack(envelope.body, Announcement, limit=inbox.LIMIT_BYTES[Group.JOB]).job
        self._outbox.keep(self.topics.job, self._sealed(self.topics.job, job))
        self._outbox.forget(self.topics.job)
        self._wake()
        return True

    @property
    def in_fleet(self) -> bool:
        """Whether documents are signed."""
        return self._fleet is not None

    def works_in(self, view: View | None) -> None:
        """The view that this peer is in, which is no matter of what brokers say."""
        if self._fleet is not None:
            self._fleet.view = view

    def forget(self, topic: str) -> None:
        """Stop saying it after reconnects; the broker keeps its copy."""
        self._outbox.forget(topic)
        self._bodies.pop(topic, None)

    def publish_event(self, topic: str, document: msgspec.Struct) -> None:
        """Deliver this once, in order, at least to the broker; waits through outages, up to 1000 of them.

        A connection that breaks before the acknowledgement makes it arrive twice.

        Raises:
            WireError: the document breaks its own bounds; no receiver would take it.
        """
        self._outbox.add_event(topic, self._sealed(topic, self._packed(topic, document)))
        self._wake()

    def clear_presence(self, peer: str, incarnation: int) -> None:
        """Take back a dead peer's presence, but not a later life's; who lives all the same says it again."""
        if self._hearing.lives.get(PeerId(peer)) == incarnation:
            self._outbox.keep(self.topics.presence(peer), b"")
            self._wake()

    def clear_outdated(self) -> None:
        """Take back what the broker keeps of those who are of the fleet no more, where we may: operators may."""
        for topic in sorted(self._hearing.outdated):
            self._outbox.keep(topic, b"")
        self._hearing.outdated.clear()
        self._wake()

    def is_present(self, peer: str) -> bool:
        """Whether that peer's presence was heard in this connection, and not taken back since."""
        return peer in self._hearing.lives

    def ask(self) -> None:
        """Have all others say again, to us alone, what they keep; Answered tells who lives."""
        self._outbox.add_event(*self._hearing.question())
        self._wake()

    def reject(self, topic: str, reason: str) -> None:
        """Count and log a document that our owner could not make sense of, like those that we can't."""
        self._hearing.reject(topic, reason)

    def publish_relay(self, peer: str, payload: bytes) -> bool:
        """Send to that peer through the broker, behind all that was relayed before.

        False if it can't be on its way now: no connection, or too much is already. True promises no arrival.

        Raises:
            ProtocolBug: the payload is over RELAY_LIMIT_BYTES.
        """
        return self._relay.add(self.topics.relay(peer), payload)

    async def flush(self, timeout: float) -> bool:
        """Whether the broker had acknowledged everything published so far within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def spread(self, timeout: float) -> bool:
        """Bring the newest list of who is out to the broker; whether it has it, within `timeout` seconds."""
        assert self._identity is not None
        self._say_list(self._identity.evictions.signed)
        return await self.flush(timeout)

    async def close(self, timeout: float = 2.0) -> None:
        """Take our presence back, deliver what is pending, and leave; at the latest after `timeout` seconds.

        If that was too short, the connection is dropped and the will takes our presence back.
        """
        if not self._running or self._ended.is_set():
            self._ending.set()
            return
        if self._connections:  # else there is nothing to take back, and nobody to tell
            if self._will_topic is not None:
                self.publish_retained(self._will_topic, None)
            self._polite = await self.flush(timeout)
        self._ending.set()
        await self._ended.wait()

    def _packed(self, topic: str, document: msgspec.Struct | None) -> bytes:
        parsed = self.topics.parse(topic)
        if parsed is None:
            raise ProtocolBug(f"{topic!r} is no topic of fabric {self.topics.fabric!r}")
        if document is None:
            return b""
        payload = pack(document)
        unpack(payload, type(document), limit=inbox.LIMIT_BYTES[parsed.group])
        return payload

    def _kept_as(self, topic: str, payload: bytes) -> bytes:
        """As it is said, and remembered as it is without a signature."""
        self._bodies.pop(topic, None)
        if payload and self._fleet is not None:
            self._bodies[topic] = payload
        return self._sealed(topic, payload)

    def _sealed(self, topic: str, payload: bytes) -> bytes:
        parsed = self.topics.parse(topic)
        assert parsed is not None
        return self._gate.sealed(topic, parsed, payload)

    def _wake(self) -> None:
        self._idle.clear()
        self._work.set()

    def _emit(self, event: FabricEvent) -> None:
        if self._bug is not None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # run() raises it: no other task of ours may swallow it
            self._fail(error)
        if self._spreading is not None and isinstance(event, Synced):
            self._spreading.look()

    def _say_again(self, topic: str) -> None:
        if topic in self._outbox.kept:
            self._outbox.repeat(topic)
            self._wake()

    def _asked(self, ask: Ask) -> None:
        self._answers.asked_by(ask.client, ask.nonce)
        self._wake()

    def _met(self, found: Presence) -> None:
        """That is said of us."""
        assert self._will_topic is not None
        self._passed_on = True
        said = self._twins.me
        answer = self._twins.meet(found)
        if isinstance(answer, ConfigError):
            self._fail(answer)
        elif answer is not None and self._will_topic in self._outbox.kept:
            if answer is said:
                self._say_again(self._will_topic)
            else:
                payload = self._packed(self._will_topic, answer)
                self._outbox.keep(self._will_topic, self._kept_as(self._will_topic, payload))
                self._wake()

    # -- the fleet ---------------------------------------------------------------------------------------------

    def _listed(self, signed: bytes) -> None:
        """Somebody says who is out."""
        assert self._spreading is not None
        try:
            self._spreading.heard(signed)
        except TrustError as error:
            raise WireError(str(error)) from None

    def _say_list(self, signed: bytes) -> None:
        self._outbox.keep(self.topics.evicted, signed)
        self._outbox.forget(self.topics.evicted)  # once: whoever misses it says so
        self._wake()

    def _identity_changed(self) -> None:
        """There is another list, or certificate."""
        identity, fleet, spreading = self._identity, self._fleet, self._spreading
        assert identity is not None
        assert fleet is not None
        assert spreading is not None
        if self._ended.is_set():
            return
        self._listed_anew.set()
        if identity.evicted:
            self._fail(
                TrustError(
                    f"fleet = {identity.directory}: {identity.evictions.told(identity.holder)}: if this device is to "
                    "be in again, bring it in anew: edgepeer join HOST STRING"
                )
            )
            return
        for peer, holder in fleet.out():
            _LOG.warning("%s: what it says counts no more", identity.evictions.told(holder))
            self._hearing.lives.pop(peer, None)
            self._emit(Evicted(peer))
            self._emit(PresenceGone(peer))
        spreading.look()
        if identity.certificate != self._certificate:
            # What was signed with the old one ends with it.
            self._certificate = identity.certificate
            for topic, payload in self._bodies.items():
                self._outbox.keep(topic, self._sealed(topic, payload))
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._bug, self._polite = error, False
        self._ending.set()

    async def _keep_connected(self) -> None:
        shortest, longest = _BACKOFF_S
        loop = asyncio.get_running_loop()
        pause = shortest
        while not self._ending.is_set():
            since = loop.time()
            if not await self._first_that_answers():
                continue
            if loop.time() - since > longest:
                pause = shortest
            # Decorrelated jitter: a fleet that lost its broker doesn't come back in one wave.
            pause = min(longest, _JITTER.uniform(shortest, 3 * pause))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()

    async def _first_that_answers(self) -> bool:
        """Be connected to the first broker that lets us in. Returns whether to wait before the next try."""
        failures: list[FabricError] = []
        for broker in self._brokers:
            before = self._connections
            try:
                await self._one_connection(broker)
            except Back as back:
                _LOG.info("%s", back)
                return False
            except FabricError as error:
                failures.append(error)
            finally:
                self.connected_now = False
            if self._connections > before or self._ending.is_set():
                break
        if failures:
            self._note(failures)
        return True

    async def _one_connection(self, broker: BrokerAddress) -> None:
        self.broker = broker
        if self._spreading is not None:
            self._spreading.begin()
        async with connection(
            broker,
            identifier=self._identifier,
            will_topic=self._will_topic,
            on_message=self._hearing.receive,
            timeout=self._timeout,
            identity=self._identity,
        ) as client:
            self.connected_now = True
            self._emit(Connected())
            failure: BaseException | None = None
            try:
                async with asyncio.TaskGroup() as tasks:
                    earlier = self._brokers[: self._brokers.index(broker)]
                    look = look_for(
                        *(earlier, self._identifier),
                        every=self._look_back,
                        timeout=self._timeout,
                        identity=self._identity,
                    )
                    works = (self._watch(client), self._serve(client), self._leave_the_evicted(client), look)
                    serving = [tasks.create_task(work) for work in works]
                    await self._ending.wait()
                    for task in serving:
                        task.cancel()
            except* (aiomqtt.MqttError, FabricError) as group:
                failure = first_error(group)
            finally:
                self._hearing.end()
            reason = "left" if failure is None else describe(failure)
            self._emit(Disconnected(reason))
            if failure is not None or not self._polite:
                kind = type(failure) if isinstance(failure, Refused | Back) else FabricError
                raise kind(f"broker {broker}: {reason}") from failure

    async def _watch(self, client: aiomqtt.Client) -> None:
        # Messages go straight to what hears them; this raises when the connection ends.
        await anext(client.messages)

    async def _leave_the_evicted(self, client: aiomqtt.Client) -> None:
        """For ever, or until the broker is out. That its certificate has expired, or is of an authority before, is no
        matter while the connection lasts."""
        broker = broker_of(client)
        while True:
            if self._identity is not None and broker is not None and broker.serial in self._identity.evictions.serials:
                raise FabricError(self._identity.evictions.told(broker))
            await self._listed_anew.wait()
            self._listed_anew.clear()

    async def _serve(self, client: aiomqtt.Client) -> None:
        wanted, note = self._hearing.begin()
        await publish(client, self._hearing.probe, note, retain=True, timeout=self._timeout)
        await subscribe(client, wanted)
        self.reconnects += self._connections > 0
        if self._connections or self.broker != self._brokers[0]:
            _LOG.info("broker %s: connected%s", self.broker, " again" if self._connections else "")
        self._connections += 1
        self._passed_on = False
        self._failure = None
        self._first_answer.set()
        self._relay.open()
        # Only now that a late will of an earlier connection would be seen, our own presence is said again.
        self._outbox.repeat_all()
        self._wake()
        # Brokers deliver in order, mostly: what we say to ourselves after subscribing comes behind all they retained.
        await publish(client, self._hearing.marker, note, timeout=self._timeout)
        try:
            async with asyncio.TaskGroup() as sending:
                sending.create_task(catch_up(client, self._hearing, broker=str(self.broker), timeout=self._timeout))
                sending.create_task(self._send(client))
                sending.create_task(
                    self._relay.send(client, timeout=self._timeout, slowest_bytes_per_s=_SLOWEST_BYTES_PER_S)
                )
        finally:
            self._relay.close()

    async def _send(self, client: aiomqtt.Client) -> None:
        while True:
            self._work.clear()
            letter = self._outbox.next() or self._answers.next()
            if letter is None:
                self._idle.set()
                await self._work.wait()
                continue
            patience = self._timeout + len(letter.payload) / _SLOWEST_BYTES_PER_S
            await publish(client, letter.topic, letter.payload, retain=letter.retain, timeout=patience)
            self._outbox.acknowledged(letter)
            self._answers.acknowledged(letter)
            if letter.topic == self._will_topic and letter.payload and not self._passed_on:
                asyncio.get_running_loop().call_later(_ECHO_S, self._miss_ourselves, self._connections)

    def _miss_ourselves(self, connection: int) -> None:
        """Brokers acknowledge what they refuse to pass on, too."""
        if self._passed_on or connection != self._connections or not self.connected_now or self._ending.is_set():
            return
        _LOG.error(
            "broker %s: has taken our presence, and passes it on to nobody: do its rules let %s write %s?",
            *(self.broker, self._client_id, self._will_topic),
        )

    def _note(self, errors: Sequence[FabricError]) -> None:
        news = self._failure is None
        error = self._failure = FabricError("; ".join(map(str, errors)))
        if all(isinstance(each, Refused) for each in errors):
            self._first_answer.set()
        if not self._ending.is_set():
            # Until we were connected, connected() tells; after that, each outage is told once.
            level = logging.WARNING if news and self._connections else logging.DEBUG
            _LOG.log(level, "%s; trying again", error)


def _check_identity(identity: Identity, fabric: str, client_id: str, broker: BrokerAddress, *, peer: bool) -> None:
    holder, where = identity.holder, f"fleet = {identity.directory}"
    if fabric != holder.fabric:
        raise ConfigError(f"fabric = {fabric}: but {where} is of fabric {holder.fabric}: give one of the two")
    if peer and holder.role != "peer":
        raise ConfigError(f"{where}: the certificate there is that of {holder}, and not a peer's: edgepeer join")
    if peer and client_id != holder.id:
        raise ConfigError(f"peer_id = {client_id}: but the certificate in {identity.directory} is that of {holder}")
    for each in broker.choices:
        if not each.tls:
            raise ConfigError(
                f"broker {each}: {where} is of a fleet, which says nothing in clear text: use mqtts://{each.host}"
            )
