"""What being of a fleet means for a client: its word is signed, and what its authority says reaches all.

comes                               | so
------------------------------------+-----------------------------------------------------------------------------
another list of who is out          | whoever is on it counts as gone; who is on it itself ends; a
                                    | broker that is on it is left
a certificate of our own, renewed   | what the broker keeps of us is signed anew: the old one ends before long
the fleet's job, lost by the broker | it is said once more, as its operator has signed it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiomqtt

from edgepeer.errors import ConfigError, FabricError, TrustError, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import broker_of
from edgepeer.fabric.documents import Announcement
from edgepeer.fabric.envelope import Envelope
from edgepeer.fabric.gate import FleetGate
from edgepeer.fabric.inbox import LIMIT_BYTES
from edgepeer.fabric.outbox import Outbox
from edgepeer.fabric.spreading import Spreading
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.trust.clock import aging
from edgepeer.trust.directory import JOIN_ANEW
from edgepeer.wire.documents import unpack

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["InFleet", "check_identity"]

_LOG = logging.getLogger(__name__)


class InFleet:
    """Of one client.

    Args:
        outbox: what is still to be said.
        wake: has it said.
        gone: told of peers that have just been put out.
    """

    def __init__(
        self,
        identity: Identity,
        client_id: str,
        topics: Topics,
        outbox: Outbox,
        *,
        wake: Callable[[], None],
        gone: Callable[[PeerId], None],
    ) -> None:
        self.identity = identity
        self.gate = FleetGate(identity, client_id)
        self.spreading = Spreading(identity, self.say_list)
        self._topics = topics
        self._outbox = outbox
        self._wake = wake
        self._gone = gone
        self._certificate = identity.certificate
        self._bodies: dict[str, bytes] = {}
        """What is kept, as it is without a signature."""
        self._listed_anew = asyncio.Event()
        """There may be somebody else who is out of the fleet."""

    # -- what is said --------------------------------------------------------------------------------------------

    def remember(self, topic: str, body: bytes) -> None:
        """That is kept there, if it is not empty."""
        self.forget(topic)
        if body:
            self._bodies[topic] = body

    def forget(self, topic: str) -> None:
        """Nothing is kept there any more that is to be signed again."""
        self._bodies.pop(topic, None)

    def announce_again(self) -> bool:
        """Say once more what the fleet's job is: see `FabricClient.announce_again`."""
        signed, topic = self.gate.announced.signed, self._topics.parse(self._topics.job)
        assert topic is not None
        if not signed:
            return False
        try:
            self.gate.opened(self._topics.job, topic, signed)
        except WireError as error:
            _LOG.warning("the job of this fleet can't be announced again: %s", error)
            return False
        self._say_once(self._topics.job, signed)
        return True

    def take_over_job(self) -> bool:
        """Say it as an operator, if who has said it last has a certificate of another authority than ours, or one that
        ends before ours and soon: see `FabricClient.take_over_job`."""
        signed, topic = self.gate.announced.signed, self._topics.parse(self._topics.job)
        assert topic is not None
        if not signed:
            return False
        envelope = Envelope.unpack(signed)
        try:
            said_by = self.identity.check(envelope.certificate)
        except TrustError:  # it counts for nothing already
            return False
        signer = said_by.checked
        fading = aging(signer.holder.issued, signer.ends) and self.identity.ends > signer.ends
        if signer.authority.der == self.identity.authority.der and not fading:
            return False
        job = unpack(envelope.body, Announcement, limit=LIMIT_BYTES[Group.JOB]).job
        self._say_once(self._topics.job, self.gate.sealed(self._topics.job, topic, job))
        return True

    def say_list(self, signed: bytes) -> None:
        """Have the broker keep a list of who is out."""
        self._say_once(self._topics.evicted, signed)  # whoever misses it says so

    def _say_once(self, topic: str, signed: bytes) -> None:
        self._outbox.keep(topic, signed)
        self._outbox.forget(topic)
        self._wake()

    # -- what changes --------------------------------------------------------------------------------------------

    def listed(self, signed: bytes) -> None:
        """Somebody says who is out.

        Raises:
            WireError: that is no list of this fleet.
        """
        try:
            self.spreading.heard(signed)
        except TrustError as error:
            raise WireError(str(error)) from None

    def changed(self) -> None:
        """There is another list, or certificate.

        Raises:
            TrustError: this device is on the list.
        """
        identity = self.identity
        self._listed_anew.set()
        if identity.evicted:
            raise TrustError(f"fleet = {identity.directory}: {identity.evictions.told(identity.holder)}: {JOIN_ANEW}")
        for peer, holder in self.gate.out():
            _LOG.warning("%s: what it says counts no more", identity.evictions.told(holder))
            self._gone(peer)
        self.spreading.look()
        if identity.certificate != self._certificate:
            # What was signed with the old one ends with it.
            self._certificate = identity.certificate
            for name, body in self._bodies.items():
                topic = self._topics.parse(name)
                assert topic is not None
                self._outbox.keep(name, self.gate.sealed(name, topic, body))
            self._wake()

    async def leave_the_evicted(self, client: aiomqtt.Client) -> None:
        """For ever, or until the broker is out. That its certificate has expired, or is of an authority before, is no
        matter while the connection lasts.

        Raises:
            FabricError: the broker is on the list.
        """
        broker = broker_of(client)
        while True:
            if broker is not None and broker.serial in self.identity.evictions.serials:
                raise FabricError(self.identity.evictions.told(broker))
            await self._listed_anew.wait()
            self._listed_anew.clear()


def check_identity(identity: Identity, fabric: str, client_id: str, broker: BrokerAddress, *, peer: bool) -> None:
    """Whether a client of that fabric and name, a peer or not, may have that identity there.

    Raises:
        ConfigError: it may not.
    """
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
