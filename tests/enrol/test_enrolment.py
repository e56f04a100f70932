"""Joining and renewing over sockets: the service, its clients, and whoever else speaks to one of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from fleets import Fleet

from edgepeer.enrol import client, joining, messages, renewal
from edgepeer.enrol.joining import Joined, join
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.renewal import due, keep_renewed, renew_now
from edgepeer.enrol.service import EnrolmentService
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import ConfigError, EdgepeerError, FabricError, TrustError
from edgepeer.trust import clock
from edgepeer.trust.certificates import check, make_key
from edgepeer.trust.certificates import request as make_request
from edgepeer.trust.files import write_whole
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role

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


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with open_office(tmp_path) as found:
        yield found


async def test_a_device_joins(office: Office) -> None:
    string, name = office.registrar.token(), "p0"
    joined = await office.join(name, string)
    assert (joined.where.id, joined.where.fabric, joined.where.broker, joined.anew) == (
        name,
        "greenhouse",
        ("mqtts://b",),
        True,
    )
    identity = Identity.load(joined.directory)
    assert identity.holder.role is Role.PEER
    assert {path.name: path.stat().st_mode & 0o777 for path in joined.directory.iterdir()}["key.pem"] == 0o600
    assert joined.directory.stat().st_mode & 0o777 == 0o700
    assert len(list(joined.directory.iterdir())) == 5
    # Again changes nothing, the token being used up or not.
    kept = {path: path.read_bytes() for path in joined.directory.iterdir()}
    assert not (await office.join(name, string)).anew
    assert kept == {path: path.read_bytes() for path in joined.directory.iterdir()}
    assert f"is used up, by {name}" in await office.refused("another", string)


async def test_one_token_twice_at_once(office: Office) -> None:
    string = office.registrar.token()
    ends = await asyncio.gather(*(office.join(f"p{n}", string) for n in range(6)), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["Joined", *["TrustError"] * 5]
    assert len(office.registrar.members()) == 1


async def test_the_same_line_twice_at_once_on_one_device(office: Office) -> None:
    """Else one writes its certificate beside the other's key, says that it has joined, and can't any more."""
    string = office.registrar.token()
    ends = await asyncio.gather(*(office.join("p1", string) for _ in range(2)), return_exceptions=True)
    said = [str(end) for end in ends if not isinstance(end, Joined)]
    directory = office.home / "p1" / "fleet"
    assert said == [f"{directory}: another edgepeer makes a member of it just now: wait until it ends"]
    assert Identity.load(directory).holder.id == "p1"
    assert not (await office.join("p1", string)).anew


async def test_fifty_devices_at_once(office: Office) -> None:
    string = office.registrar.token(uses=50)
    gate = asyncio.Semaphore(12)

    async def come(number: int) -> None:
        async with gate:
            await office.join(f"p{number}", string)

    await asyncio.gather(*(come(number) for number in range(50)))
    assert len(office.registrar.members()) == 50


async def test_a_service_without_a_clock_says_so_in_a_line(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: 0.0)
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", office.service.port)
        assert not await reader.read()
        writer.close()
    told = [record for record in caplog.records if record.name == "edgepeer.enrol.service"]
    assert [record.getMessage() for record in told] == [
        "connection of 127.0.0.1 closed: this machine's clock says 1970-01-01, which can't be: set it, then try again "
        "(1 so far)"
    ]
    assert told[0].exc_info is None


async def test_without_a_clock(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    string = office.registrar.token()
    before = clock.time.time
    for now, name in ((0.0, "p1"), (4_102_444_800.0, "p2")):

        def other(now: float = now) -> float:
            return now

        # The registrar's clock is right, the device's isn't: they share a process here.
        monkeypatch.setattr(joining, "keep_granted", at_another_time(monkeypatch, other, before))
        await office.join(name, string if name == "p1" else None)
        monkeypatch.setattr(clock.time, "time", other)
        assert Identity.load(office.home / name / "fleet").holder.id == name
        monkeypatch.setattr(clock.time, "time", before)


def at_another_time(monkeypatch: pytest.MonkeyPatch, now: object, before: object):  # type: ignore[no-untyped-def]
    def keep(*arguments):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(clock.time, "time", now)
        try:
            REAL_KEEP(*arguments)
        finally:
            monkeypatch.setattr(clock.time, "time", before)

    return keep


REAL_KEEP = joining.keep_granted


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


@pytest.mark.parametrize("who", ["stranger", "member", "another fleet of the same name"])
async def test_a_man_in_the_middle_learns_no_secret(office: Office, tmp_path: Path, who: str) -> None:
    if who == "member":  # with a certificate of the right authority, but not for this
        context = (await office.member("mallory")).context(server=True)
    else:
        context = Fleet(tmp_path / "evil").member("mallory").context(server=True)
    context.verify_mode = ssl.CERT_NONE
    string = office.registrar.token()
    async with man_in_the_middle(office, context) as (port, seen):
        with pytest.raises(TrustError) as caught:
            await join(tmp_path / "p1", "127.0.0.1", port, string)
    assert str(caught.value) in (
        f"who answers at 127.0.0.1:{port} has no certificate of the authority that we know: it is somebody else, or "
        "the fleet has another one since (then bring the device in again: edgepeer join HOST STRING); nothing was sent",
        f"peer mallory of greenhouse answers at 127.0.0.1:{port} instead of the enrolment service",
    )
    assert seen  # it has passed the authority's certificate on
    assert string.secret not in seen
    assert not (tmp_path / "p1" / "certificate.pem").exists()
    await office.join("p1", string)


async def test_another_fleets_service(office: Office, tmp_path: Path) -> None:
    async with open_office(tmp_path, role="other") as other:
        said = await other.refused("p1", office.registrar.token())
    assert "is not of the fleet that the join string is for" in said
    assert said.endswith("nothing was sent")


async def test_nobody_is_there(tmp_path: Path, office: Office) -> None:
    string = office.registrar.token()
    with pytest.raises(FabricError, match=r"127.0.0.1:1: connection refused; is `edgepeer fleet serve` running"):
        await join(tmp_path / "p1", "127.0.0.1", 1, string)
    with pytest.raises(FabricError, match="host name not found"):
        await join(tmp_path / "p1", "no-such-host.invalid", 7701, string)


def of(name: x509.Name, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *extensions: x509.ExtensionType) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


async def test_what_a_request_asks_for_is_not_looked_at(office: Office) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "@alice")])
    uri = x509.UniformResourceIdentifier("edgepeer://greenhouse/operator/alice")
    usage = x509.BasicConstraints(ca=True, path_length=9)
    greedy = of(name, make_key(), usage, x509.SubjectAlternativeName([uri]))
    granted = await client.enrol("127.0.0.1", office.service.port, office.registrar.token(), greedy, "p1", exact=True)
    certificate = x509.load_der_x509_certificate(granted.certificate)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    holder = check(granted.certificate, [*map(joining.Authority.read, granted.authorities)]).holder
    assert (holder.role, holder.id) == (Role.PEER, "p1")


async def test_bad_requests(office: Office) -> None:
    string, port = office.registrar.token(), office.service.port
    nobody = x509.Name([])
    broken = bytearray(make_request(make_key()))
    broken[-2] ^= 1
    for request, said in (
        (of(nobody, rsa.generate_private_key(65537, 2048)), "not of P-256"),
        (of(nobody, ec.generate_private_key(ec.SECP384R1())), "not of P-256"),
        (bytes(broken), "request for a certificate is "),
        (b"x", "malformed"),
        (b"0" * 4096, "malformed"),
    ):
        with pytest.raises(TrustError, match=said):
            await client.enrol("127.0.0.1", port, string, request, "p1", exact=True)
    with pytest.raises(FabricError, match="hung up, or is something else"):  # as RSA-16384 is
        await client.enrol("127.0.0.1", port, string, b"0" * 4097, "p1", exact=True)
    await office.join("p1", string)


async def test_guesses_are_refused_without_a_look(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    string = office.registrar.token()
    wrong = JoinString(string.authority, string.token, bytes(16))
    said = [await office.refused("p1", wrong) for _ in range(12)]
    assert "is not known here, or its secret is wrong" in said[0]
    assert said[-1] == "too many wrong join strings from this address: wait a minute"
    assert await office.refused("p1", string) == said[-1]
    # A hundred thousand more of them cost nothing on the disk.
    question = messages.Enrol(string.token, bytes(16), make_request(make_key()), "p1", False)
    began = time.process_time()
    for _ in range(100_000):
        assert isinstance(office.service._answer(question, None, "127.0.0.1"), messages.Refused)
    assert time.process_time() - began < 10
    assert len(caplog.records) < 100


async def test_who_has_no_certificate_gets_no_other(office: Office) -> None:
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    answer, _ = await client._ask("127.0.0.1", office.service.port, blind, bytes(16), messages.Renew())
    assert answer == messages.Refused("a certificate is renewed only for who has one")


async def test_what_is_refused_fills_no_disk_with_lines(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may ask for a renewal, and whoever has had a join string for a place."""
    string = office.registrar.token()
    office.registrar.withdraw(string.token.hex())
    place = messages.Enrol(string.token, string.secret, make_request(make_key()), "p1", False)
    for question in (messages.Renew(), place):
        for _ in range(200):
            assert isinstance(office.service._answer(question, None, "127.0.0.1"), messages.Refused)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "127.0.0.1 is refused: a certificate is renewed only for who has one (1 so far)"
    assert len(said) < 10


async def test_whoever_says_nothing_or_nonsense_keeps_nobody_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.enrol.service._OF_ONE_SOURCE", 12)
    with contextlib.ExitStack() as stack:
        for number in range(40):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", office.service.port)))
            if number % 3 == 0:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            elif number % 3 == 1:
                stranger.sendall(bytes.fromhex("1603010200010001fc0303"))  # the beginning of a ClientHello
        async with asyncio.timeout(DEADLINE_S):
            while len(office.service._connections) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert len(office.service._connections) <= 12
    await until(lambda: not office.service._connections)
    await office.join("p1")
    await until(lambda: not office.service._sources)


async def test_whoever_has_several_addresses_keeps_nobody_out(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.enrol.service._CONNECTIONS", 6)
    monkeypatch.setattr("edgepeer.enrol.service._OF_ONE_SOURCE", 3)
    place = ("127.0.0.1", office.service.port)
    with contextlib.ExitStack() as stack:
        for number in range(6):
            whence = (f"127.0.0.{2 + number % 2}", 0)
            stack.enter_context(socket.create_connection(place, source_address=whence))
        await until(lambda: len(office.service._connections) == 6)
        await office.join("p1")
        assert len(office.service._connections) <= 6
    await until(lambda: not office.service._sources and not office.service._silent)


async def test_a_service_out_of_descriptors_asks_for_them_now_and_then(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not without a pause, as long as somebody waits at the door."""
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 3600.0)  # else it is told again on a machine that is slow
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    complaints = office.service._full
    with socket.create_connection(("127.0.0.1", office.service.port)):
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # all below are in use
        try:
            await until(lambda: complaints.count == 1)
            began = time.monotonic()
            await until(lambda: complaints.count == 3)
            assert time.monotonic() - began > 0.3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: len(office.service._connections) == 1)
        await office.join("p1")
    assert caplog.text.count("can't accept a connection: too many open files") == 1


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", b"\0\0\0\5hello", b"\0\0\x1f\x40" + b"\x91" * 8000, b"\0\0\0\2\x91\x09"],
    ids=["4 GiB", "text", "deep", "unknown"],
)
async def test_nonsense_inside_of_tls_is_hung_up_on(office: Office, data: bytes) -> None:
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", office.service.port, ssl=blind)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_old_tls_is_refused(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with contextlib.suppress(OSError):
        await asyncio.open_connection("127.0.0.1", office.service.port, ssl=old)
    await until(lambda: "unsupported protocol" in caplog.text)


async def test_a_certificate_is_renewed_over_mutual_tls(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    p1, later = await office.member("p1"), time.time() + 200 * 86400
    told: list[int] = []
    p1.on_change(lambda: told.append(p1.holder.serial))
    before = p1.holder.serial
    assert not due(p1)
    monkeypatch.setattr(clock.time, "time", lambda: later)
    await renew_at(office, p1)
    assert p1.holder.serial > before
    assert told == [p1.holder.serial]
    assert Identity.load(p1.directory).holder == p1.holder
    office.registrar.evict("p1")
    with pytest.raises(TrustError, match="peer p1 of greenhouse was evicted"):
        await renew_at(office, p1)


async def renew_at(office: Office, identity: Identity) -> None:
    """As the peer does, at the port that the service has here."""
    granted = await client.renew(identity, "127.0.0.1", office.service.port)
    identity.evictions.accept(granted.evictions)
    identity.renewed(granted.certificate)


async def test_nobody_but_the_service_renews(office: Office, tmp_path: Path) -> None:
    p1, mallory = await office.member("p1"), await office.member("mallory")
    async with man_in_the_middle(office, mallory.context(server=True)) as (port, seen):
        with pytest.raises(TrustError, match="peer mallory of greenhouse answers at"):
            await client.renew(p1, "127.0.0.1", port)
        assert not seen


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


async def test_a_member_keeps_itself_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=900) as office:
        p1, now = await office.member("p1"), time.time()
        monkeypatch.setattr(clock.time, "time", lambda: now)
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        for _ in range(3):
            ends = p1.ends
            now = ends - 310
            assert not due(p1)
            now = ends - 290
            await until(lambda ends=ends: p1.ends > ends)
            assert p1.ends == pytest.approx(now + 900, abs=2)
        task.cancel()


async def test_by_a_clock_that_is_far_ahead_the_service_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edgepeer.enrol.renewal")
    async with at_its_own_port(tmp_path, lifetime_s=9000) as office:
        p1 = await office.member("p1")
        monkeypatch.setattr(renewal, "due", lambda identity: looks.append(None) or True)
        looks: list[None] = []
        task = asyncio.create_task(keep_renewed(p1, look_s=0.001, spread_s=0))
        await until(lambda: "has a new certificate" in caplog.text)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 20)
        assert caplog.text.count("has a new certificate") == 1
        task.cancel()


async def test_who_has_no_clock_asks_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can't know when a third is left; else the others, who have one, would refuse it one day."""
    caplog.set_level(logging.INFO, "edgepeer.enrol.renewal")
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        certificate = p1.certificate
        monkeypatch.setattr(renewal, "believable", lambda: None)
        asked: list[bytes] = []
        look = office.registrar.renew
        monkeypatch.setattr(office.registrar, "renew", lambda held: (asked.append(held), look(held))[1])
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0, blind_s=0.1))
        await until(lambda: len(asked) > 2)
        assert p1.certificate == certificate
        assert "has a new certificate" not in caplog.text
        later = time.time() + 700  # by the service's clock
        monkeypatch.setattr(time, "time", lambda: later)
        await until(lambda: p1.certificate != certificate)
        task.cancel()


async def test_the_authority_is_rotated_under_a_member(tmp_path: Path) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1, old = await office.member("p1"), office.registrar.token()
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        office.registrar.rotate()
        p1.evictions.accept(office.registrar.evictions)  # as it comes over MQTT, or from a neighbour
        await until(lambda: p1.authority.der == office.registrar.authorities[-1])
        await office.join("p2", old)
        office.registrar.finish()
        p1.evictions.accept(office.registrar.evictions)
        p2 = Identity.load(tmp_path / "p2" / "fleet")
        p2.evictions.accept(office.registrar.evictions)
        assert p1.check(p2.certificate).holder.id == "p2"
        await renew_now(p1)
        assert "of before the authority was rotated" in await office.refused("p3", old)
        task.cancel()


async def test_the_old_authority_ends_while_somebody_connects(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    office.registrar.rotate()
    string, look = office.registrar.token(), Registrar.authorities.fget
    assert look is not None

    def and_then_it_ends(registrar: Registrar) -> tuple[bytes, ...]:
        found: tuple[bytes, ...] = look(registrar)
        if len(found) > 1:  # by `rotate-ca --finish`, another process
            registrar.finish(force=True)
        return found

    monkeypatch.setattr(Registrar, "authorities", property(and_then_it_ends))
    p1 = await office.member("p1", string)
    assert [p1.authority.der] == list(office.registrar.authorities)
    assert "mistake" not in caplog.text


async def test_who_was_off_when_the_authority_was_rotated(tmp_path: Path) -> None:
    """The broker has a certificate of the new one by then, and what would say so comes through the broker."""
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        office.registrar.rotate()
        p1.doubted = True
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=1000))
        await until(lambda: p1.authority.der == office.registrar.authorities[-1])
        assert not p1.doubted
        certificate = p1.certificate
        p1.doubted = True  # again, with nothing new: whoever shows us something else is no broker of ours
        own = Identity.load(p1.directory)
        own.evictions.accept(office.registrar.evictions)
        assert own.certificate == certificate
        office.registrar.evict(p1.holder.id)
        p1.evictions.accept(office.registrar.evictions)
        await until(lambda: p1.evicted)
        task.cancel()
    assert p1.certificate == certificate


async def test_a_service_that_is_away_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        port = office.service.port
        office.registrar.rotate()
        evictions = office.registrar.evictions
    p1.evictions.accept(evictions)
    task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
    await until(lambda: "connection refused; is `edgepeer fleet serve` running" in caplog.text)
    assert not task.done()
    registrar = Registrar.open(tmp_path / "own")
    async with EnrolmentService(registrar, "127.0.0.1", port):
        await renew_now(p1)
    registrar.close()
    task.cancel()
    assert p1.authority.der != p1.evictions.authorities[0].der


async def test_who_has_expired_says_so_though_the_service_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To start the service is no cure any more."""
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
    later = time.time() + 2000
    monkeypatch.setattr(time, "time", lambda: later)
    task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
    await until(lambda: "connection refused" in caplog.text)
    task.cancel()
    (line,) = [record.getMessage() for record in caplog.records if "connection refused" in record.getMessage()]
    assert "of peer p1 of greenhouse has expired on 20" in line
    assert "edgepeer join HOST STRING; nor is there a new one: enrolment at" in line


async def test_nothing_that_is_put_there_ends_the_renewal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        good = {path: path.read_bytes() for path in p1.directory.iterdir()}
        office.registrar.rotate()
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        where, place = good[p1.directory / "fleet.toml"], f"127.0.0.1:{office.service.port}".encode()
        for name, wrong, told in (
            (
                "fleet.toml",
                where.replace(place, b"hub:port"),
                "fleet.toml: service = hub:port: must be",
            ),
            ("fleet.toml", b"a = " + b"[" * 10_000, "fleet.toml: "),
            ("fleet.toml", b"\xff", "can't decode byte"),
            ("certificate.pem", b"", "certificate.pem: holds no certificate"),
            ("authorities.pem", b"\0", "authorities.pem: "),
            ("evictions", b"\x93\x01", "evictions: an eviction list is malformed"),
        ):
            caplog.clear()
            write_whole(p1.directory / name, wrong)
            write_whole(p1.directory / "certificate.pem", b"" if name == "certificate.pem" else b"another")
            await until(lambda told=told: told in caplog.text)
            assert "Traceback" not in caplog.text
            for path, data in good.items():
                write_whole(path, data, private=path.name == "key.pem")
        # What TLS takes from the files can't be had when it is time for a new certificate.
        (p1.directory / "key.pem").unlink()
        p1.evictions.accept(office.registrar.evictions)
        await until(lambda: "can't be used any more: " in caplog.text)
        write_whole(p1.directory / "key.pem", good[p1.directory / "key.pem"], private=True)
        assert not task.done()
        task.cancel()


async def test_what_is_wrong_with_the_device(office: Office, tmp_path: Path) -> None:
    string = office.registrar.token()
    assert "id ../p1" not in await office.refused("p1", JoinString(bytes(16), string.token, string.secret))
    with pytest.raises(ConfigError, match=r"id '../p1': must be 1 to 63 letters"):
        await join(tmp_path / "x", "127.0.0.1", office.service.port, string, name="../p1")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="file/fleet: can't write there: "):
        await join(file / "fleet", "127.0.0.1", office.service.port, string)
    state = tmp_path / "state"
    state.mkdir()
    (state / "identity").write_text("p5 1 1\n")
    with pytest.raises(ConfigError, match="state belongs to peer p5: leave --id out"):
        await join(state / "fleet", "127.0.0.1", office.service.port, string, name="p6")
    assert (await join(state / "fleet", "127.0.0.1", office.service.port, string)).where.id == "p5"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write there"):
        await join(open_to_all, "127.0.0.1", office.service.port, office.registrar.token())


async def test_a_member_of_another_fleet_must_mean_it(office: Office, tmp_path: Path) -> None:
    await office.join("p1")
    key = (tmp_path / "p1" / "fleet" / "key.pem").read_bytes()
    async with open_office(tmp_path, role="other") as other:
        string = other.registrar.token()
        assert "is peer p1 of greenhouse, another fleet than the join string is for: --again" in await other.refused(
            "p1", string
        )
        assert (await other.join("p1", string, again=True)).anew
    assert (tmp_path / "p1" / "fleet" / "key.pem").read_bytes() != key


async def test_who_was_evicted_joins_anew_with_another_key(office: Office) -> None:
    p1 = await office.member("p1")
    office.registrar.evict("p1")
    p1.evictions.accept(office.registrar.evictions)
    # Who is not let in stays who it was.
    kept = {path.name: path.read_bytes() for path in p1.directory.iterdir()}
    string = office.registrar.token()
    assert "not known here" in await office.refused("p1", JoinString(string.authority, string.token, bytes(16)))
    assert kept.items() <= {path.name: path.read_bytes() for path in p1.directory.iterdir()}.items()
    again = await office.member("p1")
    assert sorted(path.name for path in p1.directory.iterdir()) == sorted(kept)
    assert again.holder.serial > p1.holder.serial
    assert again.key.public_key() != p1.key.public_key()
    p1.evictions.accept(office.registrar.evictions)
    assert p1.check(again.certificate).holder.id == "p1"


class PowerLost(BaseException):
    pass


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Power fails at that write or rename of those to come: the first number; the second counts them."""
    state = [-1, 0]

    def failing(real):  # type: ignore[no-untyped-def]
        def call(*arguments, **named):  # type: ignore[no-untyped-def]
            if state[0] == state[1]:
                raise PowerLost
            state[1] += 1
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink))
    return state


async def test_power_lost_at_each_step_of_joining(office: Office, writes: list[int]) -> None:
    string, steps = office.registrar.token(), 0
    while True:
        writes[:] = [steps, 0]
        try:
            await office.join("p1", string)
            break
        except PowerLost:
            steps += 1
            writes[:] = [-1, 0]
            with contextlib.suppress(ConfigError):  # it is one of the fleet, or it isn't
                Identity.load(office.home / "p1" / "fleet")
    assert steps > 10
    writes[:] = [-1, 0]
    assert Identity.load(office.home / "p1" / "fleet").holder.id == "p1"
    assert len(office.registrar.members()) == 1


async def test_power_lost_at_each_step_of_joining_anew(office: Office, writes: list[int]) -> None:
    old = await office.member("p1")
    office.registrar.evict("p1")
    old.evictions.accept(office.registrar.evictions)
    string, steps = office.registrar.token(), 0
    while True:
        writes[:] = [steps, 0]
        try:
            await office.join("p1", string)
            break
        except PowerLost:
            steps += 1
    writes[:] = [-1, 0]
    assert steps > 10
    assert Identity.load(old.directory).holder.serial > old.holder.serial
    assert len(list(old.directory.iterdir())) == 5


async def test_power_lost_at_each_step_of_renewal_and_of_a_new_list(office: Office, writes: list[int]) -> None:
    p1 = await office.member("p1")
    office.registrar.rotate()
    steps = 0
    while True:
        p1 = Identity.load(p1.directory)
        writes[:] = [steps, 0]
        try:
            await renew_at(office, p1)
            break
        except PowerLost:
            steps += 1
            writes[:] = [-1, 0]
            assert Identity.load(p1.directory).holder.id == "p1"
    writes[:] = [-1, 0]
    assert steps >= 3
    assert Identity.load(p1.directory).authority.der == office.registrar.authorities[-1]


async def test_a_full_disk(office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    p1 = await office.member("p1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as there:
        there.setattr(os, "fsync", full)
        said = await office.refused("p2")
        assert "can't write there: no space left on device; the device has not joined" in said
        before = p1.holder
        with pytest.raises(OSError, match="No space"):
            await renew_at(office, p1)
        assert p1.holder == before
        office.registrar.rotate()
        assert p1.evictions.accept(office.registrar.evictions)  # it counts, and is said to be kept nowhere
        assert "can't be kept in" in caplog.text
    assert not [path for path in p1.directory.iterdir() if path.name.startswith(".")]
    assert Identity.load(p1.directory).holder == before
    with pytest.raises(OSError, match="Is a directory"):
        write_whole(p1.directory, b"")


async def test_no_secret_is_in_a_log(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    string = office.registrar.token()
    await office.refused("p1", JoinString(string.authority, string.token, bytes(15) + b"1"))
    await office.join("p1", string)
    await office.refused("p2", string)
    assert "has joined" in caplog.text
    for shown in (string.text(), string.secret.hex(), string.text()[30:], str(string.secret)):
        assert shown not in caplog.text
    assert string.secret.hex() not in repr(messages.Enrol(string.token, string.secret, b"x", "p1", True))


@pytest.mark.parametrize("say", ["nothing", "ask"])
async def test_strangers_behind_the_same_router_keep_nobody_out(
    office: Office, monkeypatch: pytest.MonkeyPatch, say: str
) -> None:
    """Nor does who has its answer, and does not hang up: to ask for the authority needs no secret."""
    monkeypatch.setattr("edgepeer.enrol.service._OF_ONE_SOURCE", 3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    writers = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", office.service.port, ssl=None if say == "nothing" else context
        )
        writers.append(writer)
        if say == "ask":
            messages.send(writer, messages.Ask())
            assert await reader.read(1)
    await until(lambda: len(office.service._silent) == 3)
    before = set(office.service._connections)
    await office.join("p1")
    assert len(before & office.service._connections) < 3  # one has given way, or two: it connects twice
    for writer in writers:
        writer.transport.abort()
    await until(lambda: not office.service._sources and not office.service._silent)


async def test_a_service_that_is_away_is_asked_ever_more_rarely_about_a_strange_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
    p1.doubted, looks, refresh = True, 0, p1.refresh

    def count() -> None:
        nonlocal looks
        looks += 1
        refresh()

    monkeypatch.setattr(p1, "refresh", count)
    monkeypatch.setattr("edgepeer.enrol.renewal._AT_FIRST_S", 1000.0)
    task = asyncio.create_task(keep_renewed(p1, look_s=1e-4, spread_s=1000))
    await until(lambda: "connection refused" in caplog.text)
    asked = looks
    await until(lambda: looks >= asked + 20)
    task.cancel()
    assert caplog.text.count("connection refused") == 1
