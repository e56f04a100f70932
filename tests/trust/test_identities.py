"""A device's identity: what it loads, whom it believes, and what it refuses in one line."""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from fleets import Fleet, Identity, Role
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ConfigError, Expired, TrustError
from edgepeer.trust import clock
from edgepeer.trust.certificates import key_of_request, make_key, request
from edgepeer.trust.evictions import LONGEST, Listed, sign_list
from edgepeer.trust.names import Holder


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def refusal(identity: Identity, certificate: bytes) -> str:
    with pytest.raises(TrustError) as caught:
        identity.check(certificate)
    assert str(caught.value).isprintable()
    return str(caught.value)


def unloadable(directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        Identity.load(directory)
    assert str(caught.value).isprintable()
    assert str(directory) in str(caught.value)
    return str(caught.value)


def test_members_know_each_other(fleet: Fleet) -> None:
    p1, alice = fleet.member("p1"), fleet.operator("alice")
    assert (p1.holder.fabric, p1.holder.role, p1.holder.id) == ("greenhouse", Role.PEER, "p1")
    assert alice.holder.common_name == "@alice"
    assert abs(p1.holder.issued - time.time()) < 60
    assert p1.holder.serial < alice.holder.serial < 2**63
    for own, other in ((p1, alice), (alice, p1)):
        credential = own.check(other.certificate)
        assert credential.holder == other.holder
        assert own.check(other.certificate) is credential
        credential.verify(other.sign(b"data"), b"data")
        for signature, data in ((other.sign(b"data"), b"date"), (own.sign(b"data"), b"data"), (b"", b"data")):
            with pytest.raises(TrustError, match="has not signed"):
                credential.verify(signature, data)


def test_another_fleet_of_the_same_name_is_another(fleet: Fleet) -> None:
    assert "issued by no authority of this fleet" in refusal(fleet.member("p1"), fleet.other().member("p2").certificate)


def test_another_fabric_of_the_same_authority_is_another(fleet: Fleet) -> None:
    stranger = fleet.founder.issue(Holder("orchard", Role.PEER, "p2", 77), make_key().public_key())
    assert refusal(fleet.member("p1"), stranger) == (
        "certificate 4d is of peer p2 of orchard, another fabric than greenhouse: bring the device into this one: "
        "edgepeer join HOST STRING"
    )


def test_an_expired_certificate_counts_as_long_as_the_clock_can_not_be_believed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    p1.check(p2.certificate)
    ends = p2.ends
    for now, refused in ((0, False), (ends - 1, False), (ends + 1, True), (4_102_444_800, False)):
        monkeypatch.setattr(clock.time, "time", lambda now=now: now)
        if refused:
            assert "of peer p2 of greenhouse has expired on 20" in refusal(p1, p2.certificate)
            with pytest.raises(
                Expired, match=f"{p1.directory}/certificate.pem: certificate .* of peer p1 .* expired on"
            ):
                Identity.load(p1.directory)
        else:
            p1.check(p2.certificate)
            Identity.load(p1.directory)


def test_the_evicted_are_refused_from_then_on_and_after_a_restart(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    p1.check(p2.certificate)
    told: list[int] = []
    end = p1.on_change(lambda: told.append(p1.evictions.number))
    began = int(time.time())
    signed = fleet.evict("p2")
    assert p1.evictions.accept(signed)
    assert not p1.evictions.accept(signed)
    for identity in (p1, Identity.load(p1.directory)):
        assert refusal(identity, p2.certificate) in [
            f"peer p2 of greenhouse was evicted on {clock.minute(when)} (certificate {p2.holder.serial:x}, list 2): "
            "if it is to be in again, bring it in anew: edgepeer join HOST STRING"
            for when in (began, time.time())
        ]
    assert (told, p1.evicted, p2.evicted) == ([2], False, False)
    end()
    p2.evictions.accept(signed)
    assert p2.evicted
    assert "peer p2 of greenhouse was evicted" in unloadable(p2.directory)
    with monkeypatch.context() as late:  # which does not pass, unlike that its certificate is over
        late.setattr(clock.time, "time", lambda ends=p2.ends: ends + 1)
        assert "peer p2 of greenhouse was evicted" in unloadable(p2.directory)
    assert p1.evictions.accept(fleet.evict())
    assert told == [2]
    assert not p1.evictions.accept(signed)
    assert p1.evictions.signed != signed


def test_lists_that_do_not_say_when_count_too(fleet: Fleet) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    serial, authority = p2.holder.serial, fleet.founder.authorities[0]
    assert p1.evictions.accept(_list(fleet, ["greenhouse", 2, [serial], [authority]]))
    assert refusal(p1, p2.certificate).startswith(
        f"peer p2 of greenhouse was evicted (certificate {serial:x}, list 2): "
    )
    for times in ([1], [2**32], [-1], [1, 2, 3]):
        with pytest.raises(TrustError, match="an eviction list is malformed"):
            p1.evictions.accept(_list(fleet, ["greenhouse", 3, [serial, serial + 1], [authority], times]))
    assert p1.evictions.accept(_list(fleet, ["greenhouse", 3, [serial], [authority], [0]]))
    assert refusal(p1, p2.certificate).startswith(
        f"peer p2 of greenhouse was evicted (certificate {serial:x}, list 3): "
    )


def test_lists_of_later_builds_that_say_more_count_too(fleet: Fleet) -> None:
    """Else a device that is upgraded last would not hear of who is out."""
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    body = ["greenhouse", 2, [p2.holder.serial], [fleet.founder.authorities[0]], [0], {"why": "stolen"}]
    assert p1.evictions.accept(_list(fleet, body))
    assert "was evicted" in refusal(p1, p2.certificate)


def test_the_longest_list_can_be_read(fleet: Fleet) -> None:
    """And passed on: all that takes one has room for as much."""
    p1, founder = fleet.member("p1"), fleet.founder
    out = {2**63 - 1 - number: 2**32 - 1 for number in range(LONGEST)}
    signed = sign_list("greenhouse", 2, out, founder.authorities, founder._signers)
    assert len(signed) < 1 << 20
    assert p1.evictions.accept(signed)


def _list(fleet: Fleet, body: list[object]) -> bytes:
    packed = msgspec.msgpack.encode(body)
    signature = fleet.founder._signers[0].sign(b"edgepeer-evictions-1\0" + packed, ec.ECDSA(hashes.SHA256()))
    return msgspec.msgpack.encode([1, packed, [signature]])


@pytest.mark.parametrize("cut", [0, 1, 20, 200])
def test_lists_that_are_none_of_the_fleet(fleet: Fleet, cut: int) -> None:
    p1 = fleet.member("p1")
    fleet.evict("p1")
    signed = fleet.founder.signed
    with pytest.raises(TrustError, match="signed by no authority"):
        p1.evictions.accept(fleet.other().founder.signed)
    with pytest.raises(TrustError):
        p1.evictions.accept(signed[:cut])
    changed = bytearray(signed)
    changed[cut + 10] ^= 1
    with pytest.raises(TrustError):
        p1.evictions.accept(bytes(changed))
    assert p1.evictions.number == 1


def test_another_fabrics_list(fleet: Fleet) -> None:
    p1 = fleet.member("p1")
    fleet.founder.fabric = "orchard"  # an authority that is used for two
    with pytest.raises(TrustError, match="of fabric orchard, not of greenhouse"):
        p1.evictions.accept(fleet.evict())


def test_the_authority_is_rotated_under_members(fleet: Fleet) -> None:
    p1, p2, late = fleet.member("p1"), fleet.member("p2"), fleet.member("p3")
    both = fleet.founder.add_authority()
    assert [p.evictions.accept(both) for p in (p1, p2)] == [True, True]
    renewed = fleet.founder.renew("p2", p2.key.public_key(), Role.PEER)
    p2.renewed(renewed)
    assert p2.authority.name != p1.authority.name
    assert p1.check(p2.certificate).holder.id == p2.check(p1.certificate).holder.id[:1] + "2"
    assert "of before the authority was rotated" in refusal(late, p2.certificate)
    p1.renewed(fleet.founder.renew("p1", p1.key.public_key(), Role.PEER))
    last = fleet.drop_authority()
    for identity in (p1, p2):
        assert identity.evictions.accept(last)
        assert refusal(identity, late.certificate)
        assert Identity.load(identity.directory).evictions.number == 3
    assert p1.check(p2.certificate).holder == p2.holder
    # Power that fails between the two files leaves an older list, which the authorities of the newer one have signed.
    (p1.directory / "evictions").write_bytes(both)
    assert Identity.load(p1.directory).evictions.number == 2


def test_what_another_process_renews_is_taken(fleet: Fleet) -> None:
    p1 = fleet.member("p1")
    told: list[int] = []
    p1.on_change(lambda: told.append(p1.holder.serial))
    before, context = p1.holder.serial, p1.context(server=True)
    assert not p1.refresh()
    fleet.founder.renew("p1", p1.key.public_key(), Role.PEER)
    assert p1.refresh()
    assert not p1.refresh()
    assert told == [p1.holder.serial]
    assert p1.holder.serial > before
    assert p1.context(server=True) is not context


def test_that_it_is_out_a_device_takes_from_its_directory_as_well(fleet: Fleet) -> None:
    p1 = fleet.member("p1")
    told: list[bool] = []
    p1.on_change(lambda: told.append(p1.evicted))
    (p1.directory / "evictions").write_bytes(fleet.evict("p1"))
    assert p1.refresh()
    assert not p1.refresh()
    assert told == [True]
    before = p1.directory.joinpath("evictions").stat().st_mtime_ns
    assert not p1.evictions.accept(fleet.founder.signed)
    assert p1.directory.joinpath("evictions").stat().st_mtime_ns == before


def test_a_later_list_that_another_process_keeps_is_not_undone(fleet: Fleet) -> None:
    """Else a broker that shows an old list to one of them lets who is out in again when the device restarts."""
    first, second, *_ = (fleet.member(name) for name in ("p1", "p1", "p2", "p3"))
    older, newer = fleet.evict("p2"), fleet.evict("p3")
    assert first.evictions.accept(newer)
    assert second.evictions.accept(older)
    assert fleet.member("p1").evictions.signed == newer
    assert second.refresh()
    assert second.evictions.signed == newer


def test_another_identity_in_the_directory_is_not_taken(fleet: Fleet) -> None:
    p1, p2 = fleet.member("p1"), fleet.directory("p2")
    for path in p2.iterdir():
        (p1.directory / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="another identity was put there: start again to use it"):
        p1.refresh()
    assert p1.holder.id == "p1"


@pytest.mark.parametrize("where", ["another fleet", "another name", "another key"])
def test_a_process_of_before_leaves_alone_whom_the_directory_belongs_to_now(
    fleet: Fleet, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who was in the directory before `edgepeer join --again` still runs, hears of evictions, and is renewed."""
    p1 = fleet.member("p1")
    fleet.directory("p2")
    if where == "another key":
        shutil.rmtree(p1.directory)
        fleet.founder.member("p1")
    else:
        now = fleet.other().directory("p1") if where == "another fleet" else fleet.directory("p3")
        shutil.copytree(now, p1.directory, dirs_exist_ok=True)
    owner = Identity.load(p1.directory)
    kept = {path.name: path.read_bytes() for path in p1.directory.iterdir()}
    assert p1.evictions.accept(fleet.evict("p2"))
    assert "can't be kept in" in caplog.text
    certificate = fleet.founder.issue(Holder("greenhouse", Role.PEER, "p1", p1.holder.serial + 9), p1.key.public_key())
    with pytest.raises(ConfigError, match="another identity was put there: start again to use it"):
        p1.renewed(certificate)
    assert {path.name: path.read_bytes() for path in p1.directory.iterdir()} == kept
    assert Identity.load(p1.directory).certificate == owner.certificate


def test_a_certificate_for_something_else_is_no_renewal(fleet: Fleet) -> None:
    p1 = fleet.member("p1")
    kept = (p1.directory / "certificate.pem").read_bytes()
    own, key = p1.key.public_key(), make_key().public_key()
    serial = p1.holder.serial + 1
    for holder, of, said in (
        (Holder("greenhouse", Role.PEER, "p1", serial), key, "another key"),
        (Holder("greenhouse", Role.PEER, "p2", serial), own, "is of peer p2"),
        (Holder("greenhouse", Role.OPERATOR, "p1", serial), own, "is of operator p1"),
    ):
        with pytest.raises(TrustError, match=said):
            p1.renewed(fleet.founder.issue(holder, of))
    assert (p1.directory / "certificate.pem").read_bytes() == kept


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A TLS handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    done = [False, False]
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                pass
    assert done == [True, True]
    return ends


def test_tls_between_members(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    monkeypatch.setattr(clock.time, "time", lambda: 0)
    client, server = shake_hands(p1.context(server=True), p2.context(server=False))
    assert client.version() == "TLSv1.3"
    for end, own, other in ((client, p2, p1), (server, p1, p2)):
        certificate = end.getpeercert(binary_form=True)
        assert certificate is not None
        assert own.check(certificate).holder == other.holder
    assert p1.context(server=True) is p1.context(server=True)


@pytest.mark.parametrize("case", ["stranger", "nobody", "old TLS", "operator as server"])
def test_tls_with_others(fleet: Fleet, case: str) -> None:
    p1 = fleet.member("p1")
    server, client = p1.context(server=True), p1.context(server=False)
    if case == "stranger":
        client = fleet.other().member("p2").context(server=False)
    elif case == "operator as server":
        server = fleet.operator().context(server=True)
    else:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        if case == "old TLS":
            client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("key.pem", "key.pem: can't read it: no such file or directory"),
        ("authorities.pem", "authorities.pem: can't read it"),
        ("evictions", "evictions: can't read it"),
        ("fleet.toml", "fleet.toml: can't read it"),
        ("certificate.pem", "no fleet was joined there (certificate.pem is missing)"),
    ],
)
def test_files_that_are_missing_or_spoilt(fleet: Fleet, file: str, said: str) -> None:
    directory = fleet.directory("p1")
    path = directory / file
    whole = path.read_bytes()
    for spoilt in (b"", whole[: len(whole) // 2], b"\xff" * 99, b"-----BEGIN CERTIFICATE-----\n", whole[:-40] + whole):
        path.write_bytes(spoilt)
        if file != "certificate.pem" or spoilt != whole[:-40] + whole:
            assert f"{file}: " in unloadable(directory)
    path.unlink()
    assert said in unloadable(directory)


def test_a_key_that_others_can_read_is_refused(fleet: Fleet) -> None:
    directory = fleet.directory("p1")
    for mode in (0o640, 0o604, 0o660, 0o644):
        (directory / "key.pem").chmod(mode)
        said = unloadable(directory)
        assert f"others on this machine can read the key (mode {mode:o}): chmod 600 {directory}/key.pem" in said
    (directory / "key.pem").chmod(0o400)
    Identity.load(directory)


@pytest.mark.parametrize("name", ["key.pem", "authorities.pem", "evictions", "certificate.pem", "fleet.toml"])
@pytest.mark.parametrize("data", [b"", b"spoilt", None])
def test_what_to_do_where_a_directory_was_copied_by_halves(fleet: Fleet, name: str, data: bytes | None) -> None:
    path = fleet.directory("p1") / name
    path.unlink() if data is None else path.write_bytes(data)
    said = unloadable(fleet.directory("p1"))
    assert name in said
    assert said.endswith(": edgepeer join HOST STRING") or "`edgepeer fleet token` prints the line that does it" in said


def test_a_directory_that_others_can_write_to_is_refused(fleet: Fleet) -> None:
    directory = fleet.directory("p1")
    for mode in (0o777, 0o770, 0o702):
        directory.chmod(mode)
        assert f"others may write there (mode {mode:o}): chmod 700 {directory}" in unloadable(directory)
    directory.chmod(0o755)
    Identity.load(directory)


def test_directories_of_two_devices_that_were_mixed(fleet: Fleet) -> None:
    p1, p2 = fleet.directory("p1"), fleet.directory("p2")
    (p1 / "key.pem").write_bytes((p2 / "key.pem").read_bytes())
    assert "certificate.pem: is for another key than the one in key.pem" in unloadable(p1)
    (p2 / "fleet.toml").write_bytes((p1 / "fleet.toml").read_bytes())
    assert "certificate.pem: is of peer p2 of greenhouse, but fleet.toml says peer p1" in unloadable(p2)


Change = Callable[[x509.CertificateBuilder], x509.CertificateBuilder]


def names(*given: x509.GeneralName) -> Change:
    return lambda builder: builder.add_extension(x509.SubjectAlternativeName(given), critical=False)


def uri(text: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(text)


P2 = "edgepeer://greenhouse/peer/p2"


@pytest.mark.parametrize(
    ("change", "common", "said"),
    [
        (names(uri(P2), uri("edgepeer://greenhouse/peer/p3")), "p2", "has 2 names, not one"),
        (names(uri(P2), x509.DNSName("p2")), "p2", "has 2 names, not one"),
        (names(x509.DNSName("p2")), "p2", "has 1 names, not one"),
        (names(uri(P2 + "\0.evil")), "p2", "which is nobody in a fleet"),
        (names(uri(P2 + "\n")), "p2", "which is nobody in a fleet"),
        (names(uri("edgepeer://greenhouse/king/p2")), "p2", "which is nobody in a fleet"),
        (names(uri("edgepeer://greenhouse/peer/../p2")), "p2", "which is nobody in a fleet"),
        (names(uri("edgepeer://greenhouse/peer/@alice")), "@alice", "which is nobody in a fleet"),
        (names(uri(P2)), "@alice", "has another common name than that"),
        (names(uri("x" * 65_536)), "p2", "malformed"),
        (lambda builder: builder, "p2", "malformed"),
    ],
)
def test_certificates_that_no_authority_would_issue(fleet: Fleet, change: Change, common: str, said: str) -> None:
    p1, signer = fleet.member("p1"), fleet.founder._signers[0]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]))
        .issuer_name(x509.load_der_x509_certificate(fleet.founder.authorities[0]).subject)
        .public_key(make_key().public_key())
        .serial_number(5)
        .not_valid_before(datetime(1970, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    certificate = change(builder).sign(signer, hashes.SHA256()).public_bytes(Encoding.DER)
    assert said in refusal(p1, certificate)
    fleet.founder.issue(Holder("greenhouse", Role.PEER, "p2", 5), make_key().public_key())


def test_an_authority_is_no_member(fleet: Fleet) -> None:
    assert refusal(fleet.member("p1"), fleet.founder.authorities[0])


def test_requests_for_certificates() -> None:
    key = make_key()
    good = request(key)
    assert key_of_request(good).public_numbers() == key.public_key().public_numbers()
    bad = bytearray(good)
    bad[-1] ^= 1
    large = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    other = large.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()).public_bytes(Encoding.DER)
    weak = large.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256()).public_bytes(Encoding.DER)
    for wrong, said in ((bytes(bad), "is"), (other, "P-256"), (weak, "P-256"), (b"", "malformed"), (good * 30, "malf")):
        with pytest.raises(TrustError, match=said):
            key_of_request(wrong)


@given(st.binary(max_size=600) | st.integers(0, 464).map(lambda at: at))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes | int) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("fleet") / "f")
    p1 = fleet.member("p1")
    if isinstance(data, int):
        changed = bytearray(p1.certificate)
        changed[data % len(changed)] ^= 0x41
        data = bytes(changed)
    assert refusal(p1, data)
    for kind in (lambda: Listed.read(data, "greenhouse", p1.evictions.authorities), lambda: key_of_request(data)):
        with pytest.raises(TrustError):
            kind()


def test_the_revocations_for_other_brokers(fleet: Fleet, tmp_path: Path) -> None:
    p1 = fleet.member("p1")
    fleet.evict("p1")
    found = x509.load_pem_x509_crl(fleet.founder.revocations())
    assert [each.serial_number for each in found] == [p1.holder.serial]
    assert found.next_update_utc is not None
    assert found.next_update_utc > datetime.now(UTC) + timedelta(days=3600)

    # OpenSSL reads them so: whoever is in the list is refused in the handshake already, and nobody else.
    context = fleet.a_broker().context(server=True)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    lists = tmp_path / "revoked.pem"
    lists.write_bytes(fleet.founder.revocations())
    context.load_verify_locations(cafile=lists)
    shake_hands(context, fleet.member("p2").context(server=False))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shake_hands(context, p1.context(server=False))
