"""What may come in from MQTT, by who has signed it; and the signing of what we say ourselves.

In a fleet the broker is not believed, and neither is whoever else can write there:

    topic                 | counts if it is signed by | and
    ----------------------+---------------------------+-----------------------------------------------------------
    peer/<id>             | that peer                 | its serial grows
    view                  | the head of the view      | it names no earlier life of ours than the view we are in
    job                   | an operator               | it is later than the last, over restarts, too (announced.py)
    report, links,        | that peer                 |
    telemetry             |                           |
    ask                   | any of the fleet          |
    answer                | any of the fleet          | what is in it counts as if it had come on its own topic
    evicted               | the fleet's authority     | its number grows (trust/evictions.py)
    relay/<id>            | nobody: it is sealed      | (relay.py)

Clearing a topic takes no signature, and so means little: a presence that is cleared may be that of a peer that lives,
which then says it again; a job is taken back by announcing that there is none. Without a fleet everything comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from edgepeer.errors import ConfigError, TrustError, WireError
from edgepeer.fabric import inbox
from edgepeer.fabric.announced import Announced
from edgepeer.fabric.documents import Announcement
from edgepeer.fabric.envelope import MARGIN_BYTES, Envelope
from edgepeer.fabric.events import FabricEvent, PresenceGone, PresenceSeen, ViewSeen
from edgepeer.fabric.topics import Group, Topic
from edgepeer.ids import PeerId
from edgepeer.topology.view import MAX_MEMBERS, View
from edgepeer.trust.names import Holder, Role
from edgepeer.wire.documents import pack, unpack

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["FleetGate", "Gate", "OpenGate", "Outdated"]

_ANYBODY: Final = frozenset({Role.PEER, Role.OPERATOR, Role.VIEWER})
_WRITERS: Final = {
    Group.PEERS: frozenset({Role.PEER}),
    Group.VIEW: frozenset({Role.PEER}),
    Group.JOB: frozenset({Role.OPERATOR}),
    Group.REPORTS: frozenset({Role.PEER}),
    Group.LINKS: frozenset({Role.PEER}),
    Group.TELEMETRY: frozenset({Role.PEER}),
    Group.ASK: _ANYBODY,
    Group.ANSWERS: _ANYBODY,
}
_OWN: Final = Group.PEERS | Group.REPORTS | Group.LINKS | Group.TELEMETRY
"""What only the peer that the topic names may say."""
_KNOWN: Final = 4 * MAX_MEMBERS
_REMEMBERED_BYTES: Final = 8 << 10


class Outdated(WireError):
    """Whoever has signed a document is of the fleet no more, or was of another."""


class Gate(Protocol):
    """Between a client and MQTT."""

    hears: Group
    """What is heard beside all else."""

    def sealed(self, name: str, topic: Topic, body: bytes) -> bytes:
        """What to publish, so that others take it.

        Raises:
            ConfigError: none of them would: our certificate is not for that.
        """

    def opened(self, name: str, topic: Topic, payload: bytes) -> tuple[bytes, Holder | None]:
        """The document in what has come, and who says so.

        Raises:
            WireError: it does not count.
        """

    def passed(self, event: FabricEvent, holder: Holder | None) -> None:
        """What was in it has been read.

        Raises:
            WireError: it does not count all the same.
        """


class OpenGate:
    """Without a fleet."""

    hears = Group.NOTHING

    def sealed(self, name: str, topic: Topic, body: bytes) -> bytes:
        return body

    def opened(self, name: str, topic: Topic, payload: bytes) -> tuple[bytes, Holder | None]:
        return payload, None

    def passed(self, event: FabricEvent, holder: Holder | None) -> None:
        pass


class FleetGate:
    """Of one client of a fleet."""

    hears = Group.EVICTED

    def __init__(self, identity: Identity, client_id: str) -> None:
        self.identity: Final = identity
        self.announced: Final = Announced(identity.directory / "announced", identity.later)
        """The last job of the fleet that was heard of."""
        if not self._is_of_fleet(self.announced.signed):
            self.announced.forget()
        self.view: View | None = None
        """The one that this peer is in, as its links tell."""
        self._client_id = client_id
        self._newest: dict[str, tuple[int, int, Holder]] = {}  # serial, incarnation, certificate of each presence
        self._gone: dict[str, None] = {}  # those of them whose presence was taken back, longest ago first
        self._verified: dict[str, bytes] = {}  # what has last come on a topic, and was in order

    def _is_of_fleet(self, signed: bytes) -> bool:
        try:
            return self.identity.is_of_fleet(Envelope.unpack(signed).certificate)
        except WireError:
            return False

    # -- going out -----------------------------------------------------------------------------------------------

    def sealed(self, name: str, topic: Topic, body: bytes) -> bytes:
        holder = self.identity.holder
        writers = _WRITERS.get(topic.group)
        if not body and topic.group is not Group.JOB:
            return body
        if writers is None:
            return body
        if holder.role not in writers:
            raise ConfigError(
                f"fleet = {self.identity.directory}: the certificate there is that of {holder}, and {_what(topic)} "
                f"must be signed by an {'operator' if Role.OPERATOR in writers else 'enrolled peer'}"
                + (": edgepeer fleet operator add" if topic.group is Group.JOB else "")
            )
        if topic.group is not Group.JOB:
            return self._signed(name, body)
        out = self.identity.evictions.serials
        at = self.announced.next_time(out)
        signed = self._signed(name, pack(Announcement(at=at, job=body)))
        self.announced.take(at, signed, holder, out)
        return signed

    def _signed(self, name: str, body: bytes) -> bytes:
        signature = self.identity.sign(Envelope.signed_bytes(name, body))
        return Envelope(1, self.identity.certificate, signature, body).pack()

    # -- coming in -----------------------------------------------------------------------------------------------

    def opened(self, name: str, topic: Topic, payload: bytes) -> tuple[bytes, Holder | None]:
        writers = _WRITERS.get(topic.group)
        if writers is None or (not payload and topic.group is not Group.JOB):
            return payload, None
        if not payload:
            raise WireError("cleared, which nobody can sign")
        limit = inbox.LIMIT_BYTES[topic.group] + MARGIN_BYTES
        if len(payload) > limit:
            raise WireError(f"{len(payload)} bytes, over the limit of {limit}")
        envelope = Envelope.unpack(payload)
        try:
            credential = self.identity.check(envelope.certificate)
        except TrustError as error:
            raise Outdated(str(error)) from None
        try:
            holder = credential.holder
            if holder.role not in writers:
                raise WireError(f"signed by {holder}, who may not say what {_what(topic)} is")
            if topic.group in _OWN and holder.id != topic.peer:
                raise WireError(f"signed by {holder}, on another's topic")
            if self._verified.get(name) != payload:
                credential.verify(envelope.signature, Envelope.signed_bytes(name, envelope.body))
                self._remember(name, payload)
        except TrustError as error:
            raise WireError(str(error)) from None
        if topic.group is Group.JOB:
            return self._announced(payload, envelope.body, holder), holder
        return envelope.body, holder

    def _remember(self, name: str, payload: bytes) -> None:
        """After a reconnect all comes again as it was."""
        if len(payload) <= _REMEMBERED_BYTES:
            if len(self._verified) >= _KNOWN:
                self._verified.clear()
            self._verified[name] = payload

    def _announced(self, payload: bytes, body: bytes, holder: Holder) -> bytes:
        announcement = unpack(body, Announcement, limit=inbox.LIMIT_BYTES[Group.JOB])
        self.announced.take(announcement.at, payload, holder, self.identity.evictions.serials)
        return announcement.job

    def passed(self, event: FabricEvent, holder: Holder | None) -> None:
        if isinstance(event, PresenceGone) and event.peer_id in self._newest:
            self._gone[event.peer_id] = None
        if holder is None:
            return
        match event:
            case PresenceSeen(presence):
                said = presence.serial, presence.incarnation, holder
                before = self._newest.get(presence.id)
                if before is not None and said[:2] != before[:2] and presence.serial <= before[0]:
                    raise WireError(f"said before: number {presence.serial} of {presence.id}, after {before[0]}")
                if before is None and len(self._newest) >= _KNOWN:
                    self._forget_one()
                self._newest[presence.id] = said
                self._gone.pop(presence.id, None)
            case ViewSeen(view):
                if view.coordinator != holder.id:
                    raise WireError(f"a view with {view.coordinator} at its head, signed by {holder}")
                self._refuse_old_life(view)

    def _forget_one(self) -> None:
        """Whoever has been gone for longest: what it has said may count again, as after a restart of ours."""
        if not self._gone:
            raise WireError(f"more than {_KNOWN} peers are here")
        peer = next(iter(self._gone))
        del self._gone[peer], self._newest[peer]

    def _refuse_old_life(self, view: View) -> None:
        mine, me = self.view, PeerId(self._client_id)
        if mine is None or me not in mine or me not in view:
            return
        life = mine.member(me).incarnation
        if view.member(me).incarnation < life:
            raise WireError(f"a view of an earlier life of this peer ({view.member(me).incarnation}, now {life})")

    def out(self) -> list[tuple[PeerId, Holder]]:
        """Peers that were announced, and whose certificates count no more; forgets them."""
        serials = self.identity.evictions.serials
        found = [(PeerId(peer), holder) for peer, (_, _, holder) in self._newest.items() if holder.serial in serials]
        for peer, _ in found:
            del self._newest[peer]
            self._gone.pop(peer, None)
        self._verified.clear()
        return sorted(found)


def _what(topic: Topic) -> str:
    name = (topic.group.name or "").lower().rstrip("s")
    return {"peer": "presence"}.get(name, name)
