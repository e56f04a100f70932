"""All that is parsed before a peer is known, each as one function of bytes, and what it begins to guess from.

Whatever the bytes are, they are understood or refused: by the documented error, whose text is one line of characters
that a terminal shows.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from fleets import Fleet

from edgepeer.enrol import messages
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.strings import JoinString, fingerprint
from edgepeer.errors import ConfigError, EdgepeerError, TrustError, WireError
from edgepeer.fabric import inbox
from edgepeer.fabric.documents import Answer, Ask, Presence
from edgepeer.fabric.envelope import Envelope
from edgepeer.fabric.gate import FleetGate
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.sockets import host_and_port
from edgepeer.transport.handshake import Handshake, Refused
from edgepeer.transport.news import News
from edgepeer.transport.records import HEAD_BYTES, OVERHEAD_BYTES, Opener, Sealer, measure
from edgepeer.trust import certificates
from edgepeer.trust.certificates import Authority
from edgepeer.trust.directory import Whereabouts
from edgepeer.trust.evictions import Listed, sign_list
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role
from edgepeer.wire.codec import PRELUDE, decode_header, decode_prelude, encode, unwrap, wrap
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Hello, Reduce, Via

__all__ = ["Parser", "parsers"]


@dataclass(frozen=True)
class Parser:
    """One of them."""

    understand: Callable[[bytes], object]
    refusals: tuple[type[EdgepeerError], ...]
    seeds: tuple[bytes, ...]

    def __call__(self, data: bytes) -> None:
        try:
            self.understand(data)
        except self.refusals as error:
            _in_one_line(error)


def _in_one_line(error: Exception) -> None:
    assert str(error).isprintable(), f"a refusal that is not one line: {str(error)!r}"


@contextmanager
def parsers(root: Path) -> Iterator[dict[str, Parser]]:
    """By name. They share a fleet that is made in that directory."""
    fleet = Fleet(root / "fleet", "g")
    p1, p2, operator = fleet.member("p1"), fleet.member("p2"), fleet.operator()
    (authority,) = p1.evictions.authorities
    evictions = p1.evictions.signed
    where = Whereabouts(fabric="g", role=Role.PEER, id="p1", broker=("mqtts://b",), service="b:7701")
    evicted = fleet.evict("alice")
    granted = messages.Granted(p1.certificate, (authority.der,), evictions, where)
    ours = Topics("g")
    with closing(_Registrar(root / "home")) as registrar:
        yield {
            "join_string": Parser(
                _text, (ConfigError,), (JoinString.fresh(authority.der).text().encode(), b"[::1]:7701", b"host:1")
            ),
            "question": Parser(registrar.ask, (WireError, TrustError), registrar.seeds),
            "answer": Parser(
                messages.answer,
                (WireError,),
                tuple(map(msgspec.msgpack.encode, (granted, messages.Authorities((b"a",)), messages.Refused("no")))),
            ),
            "certificate": Parser(
                lambda data: _certificate(data, authority), (TrustError,), (p1.certificate, operator.certificate)
            ),
            "authority": Parser(Authority.read, (TrustError,), (authority.der,)),
            "file": Parser(
                _file, (), (certificates.pem([authority.der]), certificates.private_pem(certificates.make_key()))
            ),
            "request": Parser(
                certificates.key_of_request, (TrustError,), (certificates.request(certificates.make_key()),)
            ),
            "evictions": Parser(p2.evictions.accept, (TrustError,), (evictions, evicted)),
            "signed_evictions": Parser(
                _Signed(fleet, p1).evictions,
                (TrustError,),
                tuple(msgspec.msgpack.decode(each)[1] for each in (evictions, evicted)),
            ),
            "envelope": Parser(_Gate(p2, ours).take, (WireError,), tuple(_signed_documents(p1, operator, ours))),
            "document": Parser(_Gate(p2, ours, p1, operator).sign_and_take, (WireError,), tuple(_documents())),
            "dialled": Parser(lambda data: _handshake(p1, data, server=False), (Refused,), (_hello(p1, p2),)),
            "answered": Parser(lambda data: _handshake(p1, data, server=True), (Refused,), (_hello(p2, None),)),
            "card": Parser(
                lambda data: _card(p1, p2, data), (Refused,), (b"EPL1\1" + bytes(3 + 8 + 32), b"EPNO\5sorry")
            ),
            "records": Parser(_records, (WireError,), (_record(b"\0\0\0\4list"),)),
            "news": Parser(lambda data: News().take(memoryview(data)), (WireError,), (b"\0\0\0\4list",)),
            "frames": Parser(_frames, (WireError,), tuple(_frame_seeds())),
        }


# -- enrolment -----------------------------------------------------------------------------------------------


def _text(data: bytes) -> None:
    text = data.decode(errors="replace")
    try:
        host_and_port(text, 7701)
    except ConfigError as error:
        _in_one_line(error)
    string = JoinString.parse(text)
    assert JoinString.parse(string.text()) == string


class _Registrar:
    """The service's side. Whoever guesses knows a token, so that all that is behind it is reached."""

    def __init__(self, home: Path) -> None:
        self._registrar = Registrar.found(home, "g", broker=("mqtts://b",), service="b:7701")
        self._string = self._registrar.token(role=Role.PEER, uses=4096)
        ask = certificates.request(certificates.make_key())
        enrol = messages.Enrol(self._string.token, self._string.secret, ask, "p1", False)
        assert self._string.authority == fingerprint(self._registrar.authorities[0])
        self.seeds = tuple(map(msgspec.msgpack.encode, (messages.Ask(), enrol, messages.Renew())))

    def ask(self, data: bytes) -> None:
        asked = messages.question(data)
        if isinstance(asked, messages.Enrol):
            string = self._string
            self._registrar.enrol(string.token, string.secret, asked.request, asked.name, exact=asked.exact)

    def close(self) -> None:
        self._registrar.close()


# -- trust ---------------------------------------------------------------------------------------------------


def _certificate(data: bytes, authority: Authority) -> None:
    checked = certificates.check(data, [authority])
    certificates.expired(checked)


def _file(data: bytes) -> None:
    for read in (certificates.certificates_in, certificates.load_key):
        try:
            read(data)
        except ValueError as error:
            _in_one_line(error)


class _Signed:
    """A list that the authority has signed, whatever is in it."""

    def __init__(self, fleet: Fleet, member: Identity) -> None:
        self._signer = fleet.founder._signers[0]
        self._authorities = member.evictions.authorities

    def evictions(self, data: bytes) -> None:
        outer = msgspec.msgpack.decode(sign_list("g", 1, {}, (), [self._signer]))
        signature = self._signer.sign(b"edgepeer-evictions-1\0" + data, certificates._ECDSA)
        Listed.read(msgspec.msgpack.encode([outer[0], data, [signature]]), "g", self._authorities)


# -- MQTT ----------------------------------------------------------------------------------------------------

_GROUPS = (Group.PEERS, Group.VIEW, Group.JOB, Group.REPORTS, Group.LINKS, Group.TELEMETRY, Group.ASK, Group.ANSWERS)
_AT = ("peer/p1", "view", "job", "report/j/p1", "links/p1", "telemetry/p1", "ask", "answer/p2")


class _Gate:
    """What comes from the broker: the first byte says on which topic."""

    def __init__(self, listens: Identity, topics: Topics, *signers: Identity) -> None:
        self._listens, self._topics, self._signers = listens, topics, signers
        self._gate = FleetGate(listens, listens.holder.id)

    def take(self, data: bytes) -> None:
        self._take(f"edgepeer/v1/g/{_AT[data[0] % len(_AT)]}" if data else "edgepeer/v1/g/view", data[1:])

    def sign_and_take(self, data: bytes) -> None:
        """As a member says it: what is in the envelope is reached."""
        name = f"edgepeer/v1/g/{_AT[data[0] % len(_AT)]}" if data else "edgepeer/v1/g/view"
        signer = self._signers[name.endswith("/job")]
        signature = signer.sign(Envelope.signed_bytes(name, data[1:]))
        self._take(name, Envelope(1, signer.certificate, signature, data[1:]).pack())

    def _take(self, name: str, payload: bytes) -> None:
        topic = self._topics.parse(name)
        assert topic is not None, name
        body, holder = self._gate.opened(name, topic, payload)
        if topic.group is Group.ASK:
            inbox.read_ask(body)
        elif topic.group is Group.ANSWERS:
            inner, answer = inbox.read_answer(self._topics, body)
            inbox.read(inner, self._gate.opened(answer.topic, inner, answer.payload)[0])
        elif (event := inbox.read(topic, body)) is not None:
            self._gate.passed(event, holder)


def _documents() -> list[bytes]:
    presence = pack(Presence(id=PeerId("p1"), incarnation=1, addresses=("127.0.0.1:1",)))
    answer = pack(Answer(topic="edgepeer/v1/g/peer/p1", payload=presence))
    return [b"\0" + presence, b"\6" + pack(Ask(client="p1")), b"\7" + answer, b"\2" + pack(Ask(client="x"))]


def _signed_documents(peer: Identity, operator: Identity, topics: Topics) -> list[bytes]:
    gates = FleetGate(peer, "p1"), FleetGate(operator, "alice")
    found = []
    for document in _documents():
        name = f"edgepeer/v1/g/{_AT[document[0]]}"
        topic = topics.parse(name)
        assert topic is not None
        gate = gates[topic.group is Group.JOB]
        found.append(document[:1] + gate.sealed(name, topic, document[1:]))
    return found


# -- links ---------------------------------------------------------------------------------------------------


def _hello(speaks: Identity, to: Identity | None) -> bytes:
    """What one end says first: who has dialled, or who answers it."""
    dials = Handshake(speaks, server=False)
    dials.begin()
    if to is None:
        return dials.outgoing()
    listens = Handshake(to, server=True)
    listens.take(dials.outgoing())
    return listens.outgoing()


def _handshake(identity: Identity, data: bytes, *, server: bool) -> None:
    end = Handshake(identity, server=server)
    end.begin()
    for at in range(0, len(data), 1000):
        end.take(data[at : at + 1000])
    end.outgoing()


def _card(listens: Identity, dials: Identity, data: bytes) -> None:
    """A member that says something else inside of TLS than it should."""
    end = Handshake(listens, server=True)
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = dials.context(server=False).wrap_bio(into, out)
    for _ in range(3):
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            end.take(out.read())
            into.write(end.outgoing())
    tls.write(data or b"\0")
    end.take(out.read())


_KEY = bytes(range(32))


def _record(data: bytes) -> bytes:
    room = bytearray(len(data) + OVERHEAD_BYTES)
    Sealer(_KEY, aes=False).seal(1, data, memoryview(room))
    return bytes(room)


def _records(data: bytes) -> None:
    view, at, opener, news = memoryview(data), 0, Opener(_KEY, aes=False), News()
    while at + HEAD_BYTES <= len(data):
        _, length = measure(view, at)
        end = at + HEAD_BYTES + length
        if end > len(data):
            break
        plain = bytearray(end - at - OVERHEAD_BYTES)
        opener.open(view[at:end], memoryview(plain))
        news.take(memoryview(plain))
        at = end


def _frame_seeds() -> list[bytes]:
    hello = Hello(fabric="g", peer=PeerId("p1"), incarnation=1)
    kind, header = wrap(Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\1", weight=1.0))
    via = Via(source=PeerId("p1"), target=PeerId("p2"), tunnel=1, serial=0, kind=kind, header=header)
    return [encode(hello), encode(via, 4)]


def _frames(data: bytes) -> None:
    at = 0
    while at + PRELUDE.size <= len(data):
        kind, header_bytes, payload_bytes = decode_prelude(data, at)
        at += PRELUDE.size
        if at + header_bytes > len(data):
            break
        frame = decode_header(kind, data[at : at + header_bytes], payload_bytes)
        if isinstance(frame, Via):
            unwrap(frame, payload_bytes)
        at += header_bytes + payload_bytes
