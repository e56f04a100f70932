"""Members of a fleet and strangers at its brokers, for tests; and brokers that let members write what they like."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiomqtt
import msgspec
from fabric_guests import Guest, presence
from fleets import Identity

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.documents import Announcement, Presence
from edgepeer.fabric.envelope import Envelope
from edgepeer.fabric.events import PresenceSeen
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.fabric.topics import Topics
from edgepeer.wire.documents import pack

__all__ = ["TOPICS", "LaxMosquitto", "Liar", "announcement", "as_member", "liar", "of", "said", "signed"]

TOPICS = Topics("lab")


class LaxMosquitto(Mosquitto):
    """With TLS and certificates, and without rules about who may write what: as a broker that is not to be trusted."""

    def _configuration(self, home: Path) -> str:
        lines = super()._configuration(home).splitlines()
        return "\n".join(line for line in lines if not line.startswith("acl_file")) + "\n"


def signed(by: Identity, topic: str, body: bytes | msgspec.Struct, *, certificate: bytes = b"") -> bytes:
    """A document as that member signs it; `certificate`: with another's beside it."""
    data = body if isinstance(body, bytes) else pack(body)
    signature = by.sign(Envelope.signed_bytes(topic, data))
    return Envelope(1, certificate or by.certificate, signature, data).pack()


def said(by: Identity, name: str, *, incarnation: int = 1, serial: int = 1) -> bytes:
    """A peer's presence, signed by that member, as it is to stand on the peer's topic."""
    return signed(by, TOPICS.presence(name), of(name, incarnation=incarnation, serial=serial))


def announcement(by: Identity, at: float, job: bytes | msgspec.Struct) -> bytes:
    """A job as that member announces it."""
    data = job if isinstance(job, bytes) else pack(job)
    return signed(by, TOPICS.job, Announcement(at=at, job=data))


@contextlib.asynccontextmanager
async def as_member(address: BrokerAddress, who: Identity | None, **options: Any) -> AsyncIterator[aiomqtt.Client]:
    """Any MQTT client, with a member's certificate; None: with none."""
    if who is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = who.context(server=False)
    async with aiomqtt.Client(address.host, address.port, tls_context=context, **options) as client:
        yield client


class Liar:
    """A member who writes what it likes, and can tell when others have read it."""

    def __init__(self, raw: aiomqtt.Client, who: Identity) -> None:
        self._raw = raw
        self._who = who
        self._serial = 0

    async def write(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        await self._raw.publish(topic, payload, qos=1, retain=retain)

    async def until_read_by(self, *guests: Guest) -> None:
        """All that was written before has been read by them. Uses our own presence, which is true."""
        self._serial += 1
        name = self._who.holder.id
        await self.write(TOPICS.presence(name), said(self._who, name, serial=self._serial))
        for guest in guests:
            await guest.until_seen(PresenceSeen(of(name, serial=self._serial)))


def of(name: str, *, incarnation: int = 1, serial: int = 1) -> Presence:
    """A peer's presence as it is told in a fleet."""
    return msgspec.structs.replace(presence(name, incarnation), serial=serial)


@contextlib.asynccontextmanager
async def liar(address: BrokerAddress, who: Identity, **options: Any) -> AsyncIterator[Liar]:
    """Somebody with that certificate, at the broker."""
    async with as_member(address, who, **options) as raw:
        yield Liar(raw, who)
