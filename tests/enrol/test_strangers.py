"""Whoever else speaks to the service, and what is asked of it that is not to be had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from office import DEADLINE_S, Office, until

from edgepeer.enrol import client, joining, messages
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import FabricError, TrustError
from edgepeer.trust.certificates import check, make_key
from edgepeer.trust.certificates import request as make_request
from edgepeer.trust.names import Role


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


async def test_a_port_that_speaks_something_else_is_not_the_service(office: Office) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.0 400 Bad request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as web:
        port, string = web.sockets[0].getsockname()[1], office.registrar.token()
        with pytest.raises(FabricError, match=r"does not speak TLS; is `edgepeer fleet serve` running at 127"):
            await client.enrol("127.0.0.1", port, string, make_request(make_key()), "p1", exact=True)


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
