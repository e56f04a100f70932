"""How members of a fleet meet, and whom they send away. Both ends without a socket between them."""

from __future__ import annotations

import itertools
import ssl
from dataclasses import replace

import pytest
from fleets import Fleet, Identity, Role
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.transport import handshake
from edgepeer.transport.handshake import Handshake, Met, Refused
from edgepeer.transport.records import OVERHEAD_BYTES
from edgepeer.trust import clock
from edgepeer.trust.directory import CERTIFICATE, KEY
from edgepeer.trust.names import Holder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def meet(dials: Identity, listens: Identity, cut: int = 1 << 20) -> tuple[Met | str, Met | str]:
    """What comes of it at both ends; a text is why one refuses. What they say goes in pieces of so many bytes."""
    ends = (Handshake(dials, server=False), Handshake(listens, server=True))
    found: list[Met | str | None] = [None, None]
    ends[0].begin()
    for here, there in itertools.cycle(((0, 1), (1, 0))):
        said = ends[here].outgoing()
        try:
            for at in range(0, len(said), cut):
                ends[there].take(said[at : at + cut])
        except Refused as error:
            found[there] = str(error)
        found[there] = found[there] or ends[there].met
        if not said and here == 1:
            break
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


def speak(here: Met, there: Met, text: bytes) -> bytes:
    room = memoryview(bytearray(len(text) + OVERHEAD_BYTES))
    here.sealer.seal(0, text, room)
    plain = bytearray(len(text))
    there.opener.open(room, memoryview(plain))
    return bytes(plain)


@pytest.mark.parametrize("aes", [(True, True), (True, False), (False, True), (False, False)])
def test_members_meet_and_understand_each_other(
    fleet: Fleet, aes: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AES is for where both processors have it."""
    asked = iter(aes)
    monkeypatch.setattr(handshake, "has_aes", lambda: next(asked))
    one, other = meet(fleet.member("p1"), fleet.member("p2"))
    assert isinstance(one, Met)
    assert isinstance(other, Met)
    assert (one.holder.id, other.holder.id) == ("p2", "p1")
    assert one.sealer._aes == one.opener._aes == other.sealer._aes == other.opener._aes == all(aes)
    assert speak(one, other, b"hello") == speak(other, one, b"hello") == b"hello"


def test_no_two_meetings_have_the_same_keys_nor_the_two_directions_of_one(fleet: Fleet) -> None:
    keys = set()
    for _ in range(3):
        met, _there = meet(fleet.member("p1"), fleet.member("p2"))
        assert isinstance(met, Met)
        keys |= {met.sealer._key, met.opener._key}
    assert len(keys) == 6


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_a_handshake_in_pieces(fleet: Fleet, cut: int) -> None:
    one, other = meet(fleet.member("p1"), fleet.member("p2"), cut)
    assert isinstance(one, Met)
    assert isinstance(other, Met)


def test_what_follows_the_card_is_left_alone(fleet: Fleet) -> None:
    dials, listens = Handshake(fleet.member("p1"), server=False), Handshake(fleet.member("p2"), server=True)
    dials.begin()
    listens.take(dials.outgoing())
    dials.take(listens.outgoing())
    listens.take(dials.outgoing() + b"\x16\x03\x01 records")
    assert listens.met is not None
    assert listens.rest == b"\x16\x03\x01 records"


# -- who is sent away ----------------------------------------------------------------------------------------


def test_who_is_of_another_fleet_of_the_same_name(fleet: Fleet) -> None:
    stranger = fleet.other().member("p1")
    for pair in ((stranger, fleet.member("p2")), (fleet.member("p2"), stranger)):
        one, other = meet(*pair)
        assert "its certificate is not of this fleet: " in str(one)
        assert "the other end refuses this device's certificate" in str(other)


def test_who_has_expired_and_what_says_so(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Identity.load(fleet.directory("old", lifetime_s=3600.0))
    now = clock.believable()
    assert now is not None
    monkeypatch.setattr("edgepeer.trust.certificates.believable", lambda: now + 7200.0)
    for one, other in (meet(old, fleet.member("p2")), meet(fleet.member("p2"), old)[::-1]):
        assert "peer old of greenhouse has expired on" in str(other)
        assert "the other end refuses this device: " in str(one) or "has expired" in str(one)


def test_who_was_evicted(fleet: Fleet) -> None:
    out, p2 = fleet.member("out"), fleet.member("p2")
    assert isinstance(meet(out, p2)[1], Met)
    p2.evictions.accept(fleet.evict("out"))
    for one, other in (meet(out, p2), meet(p2, out)[::-1]):
        assert "peer out of greenhouse was evicted" in str(other)
        assert "edgepeer join" in str(other)
        assert "peer out of greenhouse was evicted on 20" in str(one)
        assert str(one).endswith("bring it in anew: edgepeer join HOST STRING")


@pytest.mark.parametrize("role", [Role.BROKER, Role.VIEWER, Role.ENROLMENT])
def test_no_other_role_is_let_in_or_spoken_to(fleet: Fleet, role: Role) -> None:
    someone, p2 = fleet.member(f"some-{role}", role), fleet.member("p2")
    for met in (*meet(someone, p2), *meet(p2, someone)):
        assert not isinstance(met, Met)


def test_an_operator_may_ask_but_is_no_peer(fleet: Fleet) -> None:
    alice, p2 = fleet.operator(), fleet.member("p2")
    _, met = meet(alice, p2)
    assert isinstance(met, Met)
    assert met.holder.common_name == "@alice"
    found, _ = meet(p2, alice)
    assert not isinstance(found, Met)


def test_who_is_of_another_fabric_of_the_same_authority(fleet: Fleet) -> None:
    moved, p2 = fleet.member("moved"), fleet.member("p2")
    holder = replace(moved.holder, fabric="barn", serial=Holder.serial_after(0, 2e9))
    certificate = fleet.founder.issue(holder, moved.key.public_key())
    moved.certificate = certificate  # what it shows
    _, found = meet(moved, p2)
    assert "is of peer moved of barn, another fabric than greenhouse" in str(found)


def talk(client: ssl.SSLContext, listens: Identity, say: bytes = b"") -> str:
    """Somebody else's TLS dials a peer, and says something inside of it. Why the peer refuses."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing)
    here = Handshake(listens, server=True)
    done = False
    try:
        while here.met is None:
            try:
                if not done:
                    tls.do_handshake()
                    done = True
                    tls.write(say) if say else tls.unwrap()
            except ssl.SSLWantReadError:
                pass
            said = outgoing.read()
            here.take(said)
            incoming.write(here.outgoing())
            if not said and done:
                return "waits for more"
    except Refused as error:
        return str(error)
    except ssl.SSLError as error:
        return f"the client gives up: {error.reason}"
    return "lets it in"


def anonymous(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return context


def member_context(identity: Identity) -> ssl.SSLContext:
    context = anonymous()
    context.load_cert_chain(identity.directory / CERTIFICATE, identity.directory / KEY)
    return context


def test_who_shows_no_certificate(fleet: Fleet) -> None:
    assert "shows no certificate" in talk(anonymous(), fleet.member("p2"), b"hello")


def test_who_speaks_an_older_tls(fleet: Fleet) -> None:
    assert talk(anonymous(ssl.TLSVersion.TLSv1_2), fleet.member("p2")) == "TLS fails: unsupported protocol"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "where its card should be"),
        (b"EPL1" + bytes(100), "where its card should be"),
        (b"EPL", "waits for more"),
        (b"EPL1" + bytes(43), "waits for more"),
        (b"EPNO\x05later", "the other end refuses this device: later"),
        (b"EPNO\xff", "waits for more"),
        (b"EPNO\x02\x1b\n", r"the other end refuses this device: \x1b\n"),
        (b"", "closed by the other end"),
        (bytes(1 << 20), "where its card should be"),
    ],
)
def test_what_a_member_says_in_place_of_its_card(fleet: Fleet, said: bytes, why: str) -> None:
    assert why in talk(member_context(fleet.member("p1")), fleet.member("p2"), said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"EP\x03\x01", "it speaks without encryption: it is in no fleet"),
        (b"GET / HTTP/1.1\r\n", "not TLS: starts with b'GET / HT'"),
        (b"\x17\x03\x03\x00\x05hello", "not TLS"),
        (b"\x16\x05\x03\x00\x05hello", "not TLS"),
        (b"\x16\x03\x01\xff\xff", "not TLS"),
        (b"\x16\x03\x01\x00\x05hello", "TLS fails"),
        (b"\x16\x03\x01\x00\x00" * 20_000, ""),
    ],
)
def test_what_is_no_tls(fleet: Fleet, said: bytes, why: str) -> None:
    here = Handshake(fleet.member("p2"), server=True)
    with pytest.raises(Refused) as caught:
        here.take(said)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_never_comes_to_an_end(fleet: Fleet) -> None:
    """Such as by any number of TLS records that change nothing."""
    here = Handshake(fleet.member("p2"), server=True)
    client = Handshake(fleet.member("p1"), server=False)
    client.begin()
    here.take(client.outgoing())
    ignored = b"\x14\x03\x03\x00\x01\x01"  # those for the sake of middleboxes
    with pytest.raises(Refused):
        here.take(ignored * 20_000)


@given(noise=st.binary(max_size=200), at=st.integers(0, 3000))
def test_noise_is_refused_or_waited_for(fleet: Fleet, noise: bytes, at: int) -> None:
    here, client = Handshake(fleet.member("p2"), server=True), Handshake(fleet.member("p1"), server=False)
    client.begin()
    said = client.outgoing()
    try:
        here.take(said[:at] + noise + said[at:])
        client.take(here.outgoing())
        here.take(client.outgoing())
    except Refused:
        return
    assert here.met is None or not noise or at >= len(said)
