"""A peer's place in a fabric: what it wants to be said there, and to hear, for as long as its owner wants it.

Connections come and go (reconnecting.py). In each this subscribes again, says again what the broker is to retain, and
delivers what waited. Its owner is told what is seen, in order, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import aiomqtt
import msgspec

from edgepeer.cancelling import unless
from edgepeer.errors import ConfigError, ProtocolBug, TrustError
from edgepeer.fabric import inbox
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.asking import Answers
from edgepeer.fabric.catching_up import catch_up
from edgepeer.fabric.connection import ECHO_S, publish, subscribe
from edgepeer.fabric.documents import Ask, Presence
from edgepeer.fabric.events import Evicted, FabricEvent, JobSeen, PresenceGone, Synced
from edgepeer.fabric.gate import Gate, OpenGate
from edgepeer.fabric.hearing import Hearing
from edgepeer.fabric.in_fleet import InFleet, check_identity
from edgepeer.fabric.outbox import Letter, Outbox
from edgepeer.fabric.reconnecting import Reconnecting
from edgepeer.fabric.relay import RelayQueue
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
_MEND_S: Final = 1.0
"""Whoever spoils our presence does not make us speak more often."""


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
        self._client_id = check_peer_id(client_id)
        self._identifier = f"{fabric}:{client_id}:{secrets.token_hex(8)}"
        self._on_event = on_event
        self._will_topic = will_topic
        self._timeout = timeout
        self._outbox = Outbox()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._gate: Gate = OpenGate()
        self._fleet: InFleet | None = None
        self._follows = False
        """Whether the broker is the fleet's, whichever that is, and not one that somebody has chosen."""
        if identity is not None:
            check_identity(identity, fabric, client_id, broker, peer=will_topic is not None)
            self._follows = {*broker.choices} == {*_of_fleet(identity)}
            self._fleet = InFleet(identity, client_id, self.topics, self._outbox, wake=self._wake, gone=self._put_out)
            self._gate = self._fleet.gate
        self._hearing = Hearing(
            self.topics,
            self._client_id,
            interests,
            will_topic,
            gate=self._gate,
            emit=self._emit,
            say_again=self._say_again,
            spoiled=self._spoiled,
            met=self._met,
            asked=self._asked,
            listed=self._listed,
        )
        self._twins = TwinWatch(fabric, serials=identity is not None)
        self._answers = Answers(self.topics, self._outbox, self._gate)
        self._relay = RelayQueue()
        self._connections = Reconnecting(
            broker.choices,
            self._identifier,
            will_topic=will_topic or self._hearing.probe,  # whose name may never come again, to clear it
            timeout=timeout,
            look_back=look_back,
            identity=identity,
            receive=self._hearing.receive,
            emit=self._emit,
            serve=self._serve,
        )
        self._passed_on = False
        """Whether the broker has given back what we say of ourselves, in this connection."""
        self._mending: set[str] = set()
        """What of ours is to be said again in a moment, by topic."""
        self._running = False
        self._ended = asyncio.Event()
        self._bug: Exception | None = None

    @property
    def broker(self) -> BrokerAddress:
        """The one in use, or being tried."""
        return self._connections.broker

    @property
    def connected_now(self) -> bool:
        """Whether it has let us in, and has not gone since."""
        return self._connections.up

    @property
    def reconnects(self) -> int:
        """Connections after the first."""
        return max(self._connections.count - 1, 0)

    @property
    def rejected_documents(self) -> int:
        """Messages on this fabric's topics that were not what they must be."""
        return self._hearing.rejected.count

    @property
    def refusals(self) -> Mapping[str, int]:
        """Why, and how many for each reason."""
        return MappingProxyType(self._hearing.reasons)

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
        loop, fleet, connections = asyncio.get_running_loop(), self._fleet, self._connections
        try:
            with contextlib.ExitStack() as stack:
                if fleet is not None:

                    def tell() -> None:  # in whatever thread
                        loop.call_soon_threadsafe(self._identity_changed)

                    stack.callback(fleet.identity.on_change(tell))
                async with asyncio.TaskGroup() as tasks:
                    connected = tasks.create_task(connections.run())
                    spreading = tasks.create_task(fleet.spreading.run()) if fleet is not None else None
                    await connections.ending.wait()
                    if spreading is not None:
                        spreading.cancel()
                    if not connections.up:
                        connected.cancel()
        finally:
            self._ended.set()
            connections.over()
        if self._bug is not None:
            raise self._bug

    async def connected(self, timeout: float | None = None) -> None:
        """Wait for the first connection; an outage after it is nothing to wait for.

        Args:
            timeout: seconds; enough for each broker to be tried once, if omitted.

        Raises:
            FabricError: every broker refused us, or none could be reached in time; one line with address and reason.
        """
        await self._connections.first(timeout)

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
        return self._fleet is not None and self._fleet.announce_again()

    def job_in(self, document: bytes) -> JobSeen:
        """What a document says of the fabric's job that has not come from the broker.

        Raises:
            WireError: it does not count.
        """
        topic = self.topics.parse(self.topics.job)
        assert topic is not None
        return inbox.read_job(self._gate.opened(self.topics.job, topic, document)[0])

    def job_document(self, said: msgspec.Struct | None) -> bytes:
        """The newest that is to be told of the fabric's job: what is `said`, or in a fleet what was signed last. Empty:
        nothing."""
        if self._fleet is not None:
            return self._fleet.gate.announced.signed
        return b"" if said is None else pack(said)

    def take_over_job(self) -> bool:
        """Say once more, as an operator, what the job of the fleet is, if who has said it last has a certificate of
        another authority than ours, or one that ends soon: then newcomers would not believe it. Whether it was so."""
        return self._fleet is not None and self._fleet.take_over_job()

    @property
    def in_fleet(self) -> bool:
        """Whether documents are signed."""
        return self._fleet is not None

    def works_in(self, view: View | None) -> None:
        """The view that this peer is in, which is no matter of what brokers say."""
        if self._fleet is not None:
            self._fleet.gate.view = view

    def forget(self, topic: str) -> None:
        """Stop saying it after reconnects; the broker keeps its copy."""
        self._outbox.forget(topic)
        if self._fleet is not None:
            self._fleet.forget(topic)

    def is_said(self, topic: str) -> None:
        """Stop saying it after reconnects; in a fleet it is still signed anew when our certificate is renewed."""
        self._outbox.forget(topic)

    def hold_back(self, topic: str) -> bool:
        """Don't say what is to be kept there, if it is not on its way yet in this connection: else it comes behind all
        that has been heard there. Whether it is held back."""
        held_back = self._outbox.hold_back(topic)
        if held_back:
            self.forget(topic)
            self._wake()
        return held_back

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

    @property
    def all_said(self) -> bool:
        """Whether the broker has acknowledged everything published so far."""
        return self._idle.is_set()

    async def flush(self, timeout: float) -> bool:
        """Whether the broker had acknowledged everything published so far within `timeout` seconds; not if it takes
        none of what is kept on a topic, or this client has ended and delivers nothing any more."""
        try:
            async with asyncio.timeout(timeout):
                delivered = await unless(self._ended, self._idle.wait())
        except TimeoutError:
            return False
        return delivered and not self._outbox.given_up

    @property
    def listed_there(self) -> bytes:
        """The list of who is out that the broker has, whatever it is worth; empty: none has been heard of."""
        assert self._fleet is not None
        return self._fleet.spreading.there

    async def spread(self, timeout: float) -> bool:
        """Bring the newest list of who is out to the broker; whether it has it, within `timeout` seconds."""
        assert self._fleet is not None
        self._fleet.say_list(self._fleet.identity.evictions.signed)
        return await self.flush(timeout)

    async def close(self, timeout: float = 2.0) -> None:
        """Take our presence back, deliver what is pending, and leave; at the latest after `timeout` seconds.

        If that was too short, the connection is dropped and the will takes our presence back.
        """
        if not self._running or self._ended.is_set():
            self._connections.end()
            return
        polite = None
        if self._connections.count:  # else there is nothing to take back, and nobody to tell
            if self._will_topic is not None:
                self.publish_retained(self._will_topic, None)
            polite = await self.flush(timeout)
        self._connections.end(polite=polite)
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
        if self._fleet is not None:
            self._fleet.remember(topic, payload)
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
        if self._fleet is not None and isinstance(event, Synced):
            self._fleet.spreading.look()

    def _say_again(self, topic: str) -> None:
        if topic in self._outbox.kept:
            self._outbox.repeat(topic)
            self._wake()

    def _spoiled(self, topic: str, found: bytes) -> None:
        """Something that is none is where the broker keeps our presence, and newcomers don't find us; or the view, if
        it was us who said it last."""
        said = self._outbox.kept.get(topic)
        if topic in self._mending or said is None or said.payload == found:  # our own word, which doesn't count, stays
            return
        self._mending.add(topic)
        asyncio.get_running_loop().call_later(_MEND_S, self._mend, topic)

    def _mend(self, topic: str) -> None:
        self._mending.discard(topic)
        self._say_again(topic)

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
        assert self._fleet is not None
        self._fleet.listed(signed)

    def _identity_changed(self) -> None:
        assert self._fleet is not None
        if self._ended.is_set():
            return
        try:
            self._fleet.changed()
        except TrustError as error:
            self._fail(error)
        if self._follows:
            identity = self._fleet.identity
            if brokers := _of_fleet(identity):
                self._connections.go_to(brokers)
            else:
                _LOG.warning("%s: says no broker that can be used: staying with %s", identity.directory, self.broker)

    def _put_out(self, peer: PeerId) -> None:
        self._hearing.lives.pop(peer, None)
        self._emit(Evicted(peer))
        self._emit(PresenceGone(peer))

    def _fail(self, error: Exception) -> None:
        self._bug = error
        self._connections.end(polite=False)

    # -- a connection ------------------------------------------------------------------------------------------

    async def _serve(self, client: aiomqtt.Client) -> None:
        """What there is to do in a connection, until it is over."""
        async with asyncio.TaskGroup() as serving:
            if self._fleet is not None:
                self._fleet.spreading.begin()
                serving.create_task(self._fleet.leave_the_evicted(client))
            await self._say_and_hear(client)

    async def _say_and_hear(self, client: aiomqtt.Client) -> None:
        """Subscribe to what we want, say again what the broker is to keep, and then whatever comes up."""
        try:
            wanted, note = self._hearing.begin()
            await publish(client, self._hearing.probe, note, retain=True, timeout=self._timeout)
            await subscribe(client, wanted)
            await self._say(client, note)
        finally:
            self._hearing.end()

    async def _say(self, client: aiomqtt.Client, note: bytes) -> None:
        self._connections.stands()
        self._passed_on = False
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
                sending.create_task(self._relay.send(client, timeout=self._timeout))
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
            try:
                await publish(client, letter.topic, letter.payload, retain=letter.retain, timeout=self._timeout)
            except (aiomqtt.MqttError, asyncio.CancelledError):  # that the connection is over others may see first
                self._broke_off(letter)
                raise
            self._outbox.acknowledged(letter)
            self._answers.acknowledged(letter)
            if letter.topic == self._will_topic and letter.payload and not self._passed_on:
                asyncio.get_running_loop().call_later(ECHO_S, self._miss_ourselves, self._connections.count)

    def _broke_off(self, letter: Letter) -> None:
        if self._connections.ending.is_set() or not self._outbox.broke_off(letter):
            return
        self._answers.acknowledged(letter)
        _LOG.error(
            "broker %s: whenever it is to take %d bytes on %s the connection ends: they are not said there; does it "
            "limit how long packets may be?",
            *(self.broker, len(letter.payload), letter.topic),
        )

    def _miss_ourselves(self, connection: int) -> None:
        """Brokers acknowledge what they refuse to pass on, too."""
        now = self._connections
        if self._passed_on or connection != now.count or not now.up or now.ending.is_set():
            return
        _LOG.error(
            "broker %s: has taken our presence, and passes it on to nobody: do its rules let %s write %s?",
            *(self.broker, self._client_id, self._will_topic),
        )


def _of_fleet(identity: Identity) -> tuple[BrokerAddress, ...]:
    """The brokers that its directory says, the best first; none if they can't be used."""
    try:
        broker = BrokerAddress.parse(",".join(identity.where.broker))
    except ConfigError:  # somebody has written it by hand
        return ()
    return broker.choices if broker.tls else ()
