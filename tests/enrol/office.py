"""A registrar and its service, for tests: the office that devices come to."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgepeer.enrol import client
from edgepeer.enrol.joining import Joined, join
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.service import EnrolmentService
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import EdgepeerError
from edgepeer.trust.identity import Identity

DEADLINE_S = 90.0


class Office:
    """A registrar and its service, and devices that come to it."""

    def __init__(self, home: Path, registrar: Registrar, service: EnrolmentService) -> None:
        self.home, self.registrar, self.service = home, registrar, service

    async def join(self, name: str, string: JoinString | None = None, **more: object) -> Joined:
        string = string or self.registrar.token()
        return await join(self.home / name / "fleet", "127.0.0.1", self.service.port, string, name=name, **more)  # type: ignore[arg-type]

    async def refused(self, name: str, string: JoinString | None = None, **more: object) -> str:
        with pytest.raises(EdgepeerError) as caught:
            await self.join(name, string, **more)
        assert str(caught.value).isprintable()
        return str(caught.value)

    async def member(self, name: str, string: JoinString | None = None) -> Identity:
        return Identity.load((await self.join(name, string)).directory)


@contextlib.asynccontextmanager
async def open_office(home: Path, *, lifetime_s: float = 365 * 86400.0, role: str = "home") -> AsyncIterator[Office]:
    registrar = Registrar.found(
        home / role, "greenhouse", broker=("mqtts://b",), service="127.0.0.1:7701", lifetime_s=lifetime_s
    )
    try:
        async with EnrolmentService(registrar, "127.0.0.1", 0) as service:
            yield Office(home, registrar, service)
    finally:
        registrar.close()


@contextlib.asynccontextmanager
async def man_in_the_middle(office: Office, context: ssl.SSLContext) -> AsyncIterator[tuple[int, bytearray]]:
    """Somebody who decrypts all that is sent to it, and passes it on; and what that was."""
    seen = bytearray()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", office.service.port, ssl=blind)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    seen.extend(data)
                    target.write(data)
            target.transport.abort()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        await talk(reader, writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], seen
        server.close()
        await asyncio.gather(*talks, return_exceptions=True)


async def renew_at(office: Office, identity: Identity) -> None:
    """As the peer does, at the port that the service has here."""
    granted = await client.renew(identity, "127.0.0.1", office.service.port)
    identity.evictions.accept(granted.evictions)
    identity.renewed(granted.certificate)


@contextlib.asynccontextmanager
async def at_its_own_port(home: Path, *, lifetime_s: float) -> AsyncIterator[Office]:
    """A service at the port that its fleet.toml says."""
    async with open_office(home / "port") as other:
        port = other.service.port
    registrar = Registrar.found(
        home / "own", "greenhouse", broker=("mqtts://b",), service=f"127.0.0.1:{port}", lifetime_s=lifetime_s
    )
    try:
        async with EnrolmentService(registrar, "127.0.0.1", port) as service:
            yield Office(home, registrar, service)
    finally:
        registrar.close()


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # files and threads set no Event
            await asyncio.sleep(0.01)  # looks again, until the deadline
