"""One machine, spoken to by hand: events in with literal times, effects out as short lines of text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.node import Node
from edgepeer.protocol.rollcall import letter
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import MAX_MEMBERS, Member, View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import elements_in

VIEWS: dict[int, View] = {}
"""The views that a test has made, by epoch: what it calls an epoch is a stamp on the wire."""


def member(name: str, life: int = 1) -> Member:
    return Member(id=name, incarnation=life)


def view(
    epoch: int,
    names: str,
    *,
    fanout: int = 2,
    lanes: int = 1,
    run: str = "",
    first_round: int = 1,
    quorum: int = 0,
    slots: str = "",
    after: View | None = None,
    **lives: int,
) -> View:
    """A view of one-letter peers, like view(3, "abc"); `b=2` gives b its second life, slots="abb" slots 1 and 2;
    `after` is a view before it of which something may still be open."""
    members = tuple(member(name, lives.get(name, 1)) for name in names)
    VIEWS[epoch] = View(
        epoch=epoch,
        members=members,
        fanout=fanout,
        lanes=lanes,
        run=run,
        first_round=first_round,
        quorum=quorum,
        slots=tuple(slots),
        guards=(after.guard,) if after is not None else (),
    )
    return VIEWS[epoch]


def without(world: View, names: str, head: str | None = None) -> View:
    """What follows a view that does without these."""
    gone = set(map(PeerId, names))
    return world.successor(first_round=1, without=gone, coordinator=PeerId(head) if head else None)


QUIET: tuple[type[fr.Frame], ...] = (fr.Ping, fr.Knock, fr.Call, fr.Here)
"""What is not worth a line in most tests: signs of life, and the search for ways around broken links and for peers."""


def letter_to(target: str, source: str, frame: fr.Frame, document: bytes = b"") -> ev.Relayed:
    """What a peer has sent to another through the broker."""
    relay = letter(PeerId(source), PeerId(target), frame)
    return ev.Relayed(relay.frame, document)


def when(said: list[str], what: str) -> float:
    """The time of the first line of `Machine.until` that ends with `what`; infinity if there is none."""
    return next((float(line.split(": ")[0]) for line in said if line.endswith(what)), float("inf"))


def vector(*values: float, dtype: str = "<f4") -> ev.FloatVector:
    return np.array(values, dtype=dtype)


def from_digits(done: str) -> bytes:
    """What frames say of slots: "2.0" for two chunks computed of the first, nothing heard of the second."""
    return bytes(0 if digit == "." else 1 + int(digit) for digit in done)


def to_digits(done: bytes) -> str:
    return "".join("." if not value else str(value - 1) for value in done)


class Machine:
    """A node and what it has said. `hidden`: kinds of frames that get no line, sent by whatever path.

    `others` are there, and for it: they answer Calls in the life that was announced last, and promise, and accept,
    whatever it asks for, at once and by way of any of its neighbours. With `broker`, its letters to itself come back.
    The rest is up to the test.
    """

    def __init__(
        self,
        name: str = "b",
        *,
        life: int = 1,
        limits: Limits | None = None,
        fanout: int = 2,
        quorum: int = 0,
        hidden: tuple[type[fr.Frame], ...] = QUIET,
    ) -> None:
        self.node = Node(member(name, life), fanout=fanout, quorum=quorum, limits=limits, now=0.0)
        self.hidden = hidden
        self.effects: list[fx.Effect] = []
        self.now = 0.0
        self.others: Collection[str] = ""
        self.broker = False
        self.asked: fr.Poll | fr.Propose | None = None
        """What this machine has asked the members of its view last."""
        self._lives: dict[str, int] = {}
        self._answered = 0

    # -- events --------------------------------------------------------------------------------------------

    def hear(self, event: ev.Event, at: float | None = None) -> list[str]:
        self.now = self.now if at is None else at
        if isinstance(event, ev.PresenceSeen):
            self._lives[event.member.id] = event.member.incarnation
        self.effects = self.node.handle(event, self.now)
        return self._heard_out()

    def tick(self, at: float) -> list[str]:
        self.now = at
        self.effects = self.node.tick(at)
        return self._heard_out()

    def _heard_out(self) -> list[str]:
        """Let the others answer what it has said."""
        at = 0
        while at < len(self.effects):  # answers add to them
            effect = self.effects[at]
            at += 1
            match effect:
                case fx.Send(_, fr.Poll(_, candidate) | fr.Propose(_, candidate) as asked):
                    if candidate == self.node.id:
                        self.asked = asked
                case fx.Relay(peer, via) if peer == self.node.id and self.broker:
                    self.effects += self.node.handle(ev.Relayed(via, b""), self.now)
                case fx.Relay(peer, via) if peer in self.others and codec.unwrap(via, 0) == self.node.attendance.call():
                    self.effects += self.node.handle(letter_to(self.node.id, peer, self._here(peer)), self.now)
            if at == len(self.effects) and self.asked is not None and self.asked.number != self._answered:
                self._answered = self.asked.number
                for voter in sorted(self.others):
                    if self._here(voter).epoch == self.asked.epoch:
                        self.effects += self._vote(voter, self.asked)
        return self.said

    @property
    def _stamp_now(self) -> int:
        return self.node.view.stamp if self.node.view is not None else 0

    def _here(self, peer: str) -> fr.Here:
        world, life = self.node.view, self._lives.get(peer, 1)
        if world is None or peer not in world or world.member(PeerId(peer)).incarnation != life:
            return fr.Here(incarnation=life, echo=self.now)
        return fr.Here(incarnation=life, generation=world.generation, epoch=world.stamp, echo=self.now)

    def until(self, at: float) -> list[str]:
        """Tick whenever the machine wants to, up to a time."""
        said = []
        while (due := max(self.node.next_deadline(), self.now)) <= at:
            said += [f"{due:g}: {line}" for line in self.tick(due)]
        self.now = at
        return said

    def stamped(self, frame: fr.Frame) -> fr.Frame:
        """The frame with stamps where a test has put epochs."""
        changes: dict[str, Any] = {}
        if 0 < (epoch := getattr(frame, "epoch", 0)) < 1 << 20:
            changes["epoch"] = self.stamp(epoch)
        if isinstance(frame, fr.Sync) and frame.epoch:
            changes["generation"] = Generation()
        if isinstance(frame, fr.Result) and frame.commit is not None:
            commit = frame.commit
            stamps = {name: getattr(commit, name) for name in ("decided_in", "held_in")}
            stamps = {name: self.stamp(epoch) if 0 < epoch < 1 << 20 else epoch for name, epoch in stamps.items()}
            changes["commit"] = msgspec.structs.replace(commit, **stamps)
        return msgspec.structs.replace(frame, **changes) if changes else frame

    def stamp(self, epoch: int) -> int:
        """Of the view of that epoch that this machine or, else, a test has made last."""
        here = self.node.view
        if here is not None and here.epoch == epoch:
            return here.stamp
        return VIEWS[epoch].stamp if epoch in VIEWS else epoch << 32

    def frame(self, peer: str, frame: fr.Frame, data: ev.FloatVector | bytes | None = None) -> list[str]:
        """A frame arrives, its payload by way of the sink."""
        frame = self.stamped(frame)
        if isinstance(data, bytes) and codec.has_document(frame):
            return self.document(peer, frame, data)
        raw = data if isinstance(data, bytes) else data.tobytes() if data is not None else b""
        sink = self.node.sink(PeerId(peer), frame, len(raw))
        if sink is not None:
            sink[:] = raw
        return self.hear(ev.FrameReceived(PeerId(peer), frame, None, len(raw), sink is not None, 1e-3))

    def document(self, peer: str, frame: fr.Frame, data: bytes) -> list[str]:
        """A frame arrives with a document."""
        return self.hear(ev.FrameReceived(PeerId(peer), frame, data, len(data)))

    def learn(self, world: View, at: float | None = None) -> list[str]:
        """A member of a view that has been decided says so, through the broker."""
        source = next((m for m in world.members if m.id != self.node.id), member("x"))
        echo = self.now if at is None else at
        here = fr.Here(incarnation=source.incarnation, generation=world.generation, epoch=world.stamp, echo=echo)
        self.hear(letter_to(self.node.id, source.id, here), at)
        return self.hear(letter_to(self.node.id, source.id, fr.ViewFrame(epoch=world.stamp), pack(world)))

    def join(self, world: View, *, up: str = "", committed: int = 0) -> Machine:
        """Install a view, with level links to the neighbours named in `up`, and want its run."""
        self.hear(ev.RunWanted(world.run or None))
        self.learn(world)
        for name in up:
            self.level(name, committed)
        return self

    def level(self, name: str, committed: int = 0, have: int = 0) -> list[str]:
        """A link comes up, and the other end says that it is in our view, and what it has of our part of the round."""
        assert self.node.view is not None
        self.hear(ev.LinkUp(PeerId(name), self.node.view.member(PeerId(name)).incarnation))
        return self.sync(name, committed, have)

    def sync(self, name: str, committed: int, have: int = 0) -> list[str]:
        world = self._world
        return self.frame(
            name, fr.Sync(epoch=world.epoch, run=world.run, committed=committed, have=(have,) if have else ())
        )

    def reduce(
        self,
        child: str,
        values: ev.FloatVector,
        who: str,
        *,
        number: int = 1,
        weight: float = 1.0,
        offset: int = 0,
        total: int | None = None,
        epoch: int | None = None,
        lane: int = 0,
    ) -> list[str]:
        """A child's segment; `who`: whose contributions are in it."""
        world = self.node.view
        assert world is not None
        frame = fr.Reduce(
            epoch=world.epoch if epoch is None else epoch,
            round=number,
            offset=offset,
            total=values.size if total is None else total,
            dtype="<f4" if values.dtype.itemsize == 4 else "<f8",
            contributors=fr.pack_set(sum(1 << world.position(PeerId(name)) for name in who)),
            weight=weight,
            lane=lane,
        )
        return self.frame(child, frame, values)

    def result(
        self,
        peer: str,
        values: ev.FloatVector,
        who: str,
        *,
        number: int = 1,
        decided_in: int = 0,
        held_in: int = 0,
        of: str = "",
        final: bool = True,
        up: bool = False,
        lane: int = 0,
        whole: int = 0,
    ) -> list[str]:
        """The whole result with its commit; or of a `lane`, of a vector of `whole` elements. `of`: the members of the
        view it was decided in, if not in ours."""
        world = self.node.view
        assert world is not None
        commit = fr.Commit(
            decided_in=decided_in or world.epoch,
            held_in=held_in or decided_in or world.epoch,
            contributors=fr.pack_set(sum(1 << (of or "".join(world.ids)).index(name) for name in who)),
            weight=float(len(who)),
            exact=True,
            digest=digest_of(values),
            final=final,
        )
        total = whole or values.size
        frame = fr.Result(
            epoch=world.epoch, round=number, offset=0, total=total, dtype="<f4", commit=commit, up=up, lane=lane
        )
        return self.frame(peer, frame, values)

    def drop(
        self, peer: str, cause: fr.Cause, *, number: int = 1, made: View | None = None, final: bool = False
    ) -> list[str]:
        """The round is to end without a sum, says the root, in our view or in an earlier one."""
        world = self.node.view
        assert world is not None
        commit = fr.Commit(
            decided_in=(made or world).stamp,
            held_in=world.stamp,
            contributors=b"",
            weight=0.0,
            exact=False,
            digest=digest_of(vector()),
            final=final,
            dropped=cause,
            reason="so",
        )
        frame = fr.Result(epoch=world.stamp, round=number, offset=0, total=0, dtype="<f4", commit=commit)
        return self.frame(peer, frame, vector())

    def have(self, child: str, *, number: int = 1, who: str = "") -> list[str]:
        """`who`: of a coded round, those that hold it."""
        return self.frame(child, fr.Have(epoch=self._world.epoch, round=number, holding=self._set(who)))

    @property
    def _world(self) -> View:
        assert self.node.view is not None
        return self.node.view

    def _set(self, who: str) -> bytes:
        return fr.pack_set(sum(1 << self._world.position(PeerId(name)) for name in who))

    def did(self, counts: dict[int, int], *, number: int = 1) -> list[str]:
        """The owner has computed so many chunks of each of its slots."""
        return self.hear(ev.ChunksDone(self._world.stamp, number, counts))

    def progress(
        self, child: str, who: str, done: str, code: str, *, number: int = 1, holding: bool = False
    ) -> list[str]:
        """`done`: of each slot a digit, the chunks that are computed, or . where nobody has spoken for it."""
        epoch, began = self._world.epoch, self._set(who)
        frame = fr.Progress(epoch=epoch, round=number, code=code, began=began, holding=holding, done=from_digits(done))
        return self.frame(child, frame)

    def release(self, parent: str, done: str, *, number: int = 1, anew: bool = False, code: str = "") -> list[str]:
        frame = fr.Release(epoch=self._world.epoch, round=number, done=from_digits(done), anew=anew, code=code)
        return self.frame(parent, frame)

    def votes(self, voters: str, **said: Any) -> list[str]:
        """These members are for this machine: so they answer what it has asked last. `said`: what else is in their
        votes than this; `proposal` is the view that comes along."""
        asked = self.asked
        self.effects = [effect for voter in voters for effect in self._vote(voter, asked, **said)]
        return self._heard_out()

    def agree(self, voters: str, **said: Any) -> list[str]:
        """These members promise, and accept, whatever it asks for now."""
        lines: list[str] = []
        before = None
        while self.asked is not None and self.asked.epoch == self._stamp_now and self.asked != before:
            before = self.asked
            lines += self.votes(voters, **said)
        return lines

    def _vote(self, voter: str, asked: fr.Poll | fr.Propose | None, **said: Any) -> list[fx.Effect]:
        by_way_of = next((p for p, link in self.node.parts.links.connected() if link.direct), None)
        if asked is None or by_way_of is None or self._stamp_now != asked.epoch:
            return []
        accepted = asked.ballot if isinstance(asked, fr.Propose) else -1
        proposal = said.pop("proposal", None)
        document = pack(proposal) if proposal is not None else b""
        answer = {"promised": asked.ballot, "accepted": accepted, "committed": 0} | said
        vote = fr.Vote(epoch=asked.epoch, candidate=asked.candidate, number=asked.number, voter=voter, **answer)
        return self.node.handle(ev.FrameReceived(by_way_of, vote, document or None, len(document)), self.now)

    def decide(self, parent: str, *, number: int = 1) -> list[str]:
        assert self.node.view is not None
        return self.frame(parent, fr.Decide(epoch=self.node.view.epoch, round=number))

    def view_frame(self, peer: str, world: View) -> list[str]:
        return self.frame(peer, fr.ViewFrame(epoch=world.epoch), pack(world))

    def contribute(self, *values: float, weight: float = 1.0) -> list[str]:
        return self.hear(ev.Contribute(vector(*values), weight))

    # -- effects -------------------------------------------------------------------------------------------

    @property
    def said(self) -> list[str]:
        return [line for effect in self.effects if (line := describe(effect, self.hidden))]


def describe(effect: fx.Effect, hidden: tuple[type[fr.Frame], ...] = ()) -> str:
    """One line; empty for what is hidden."""
    match effect:
        case fx.Send(peer, frame, payload) | fx.Relay(peer, frame, payload):
            inner = codec.unwrap(frame, len(payload or b"")) if isinstance(frame, fr.Via) else frame
            if isinstance(inner, hidden):
                return ""
            relay = "relay " if isinstance(effect, fx.Relay) else ""
            return f"{relay}{peer} <- {describe_frame(frame, payload)}"
        case fx.Dial(who):
            return f"dial {who.id}"
        case fx.CloseLink(peer, reason):
            return f"close {peer}: {reason}"
        case fx.PublishView(world):
            return f"publish view {world.epoch} {''.join(world.ids)}" if world is not None else "retract the view"
        case fx.PublishPresence():
            return "publish presence"
        case fx.ClearPresence(who):
            return f"clear presence of {who.id}"
        case fx.ViewInstalled(world):
            return f"view {world.epoch} {''.join(world.ids)}"
        case fx.Removed(_, wanted):
            return "left" if wanted else "removed"
        case fx.RoundCommitted():
            sums = " ".join(f"{value:g}" for value in effect.sum)
            inexact = "" if effect.exact else " inexact"
            mine = "" if effect.mine else " (not mine)"
            return f"round {effect.round} = {sums} of {''.join(effect.contributors)}{inexact}{mine}"
        case fx.RoundAborted():
            return f"round {effect.round} aborted: {effect.cause}{'' if effect.mine else ' (not mine)'}"
        case fx.ProvideState(peer, run, number):
            return f"provide {peer} with {run} after {number}"
        case fx.StateReceived(run, number, state):
            return f"state of {run} after {number}: {bytes(state).decode()}"
        case fx.EncodeWanted():
            narrow = f", slot {effect.narrow} as it is" if effect.narrow is not None else ""
            return f"encode {effect.round} of {''.join(map(str, effect.done))}{narrow}"
        case fx.Behind(committed):
            return f"behind: {committed}"
        case fx.Note() | fx.Refused():
            return ""
    raise AssertionError(effect)


def describe_ballot(ballot: int) -> str:
    """Like 2c: the second that a member at position 2 has led."""
    return f"{ballot // MAX_MEMBERS}{'abcdefghij'[ballot % MAX_MEMBERS]}" if ballot else "0"


def describe_values(frame: fr.Reduce | fr.Result, payload: memoryview | bytes | None) -> str:
    """What a segment holds, as it is decoded."""
    data, encoded = payload or b"", codec_of(frame.precision)
    if encoded is None:
        return " ".join(f"{value:g}" for value in np.frombuffer(data, dtype=frame.dtype))
    values = np.empty(elements_in(frame.precision, len(data)), dtype=np.float32)
    wrong = encoded.decode(data, values)
    return f"({frame.precision}) " + (wrong or " ".join(f"{value:g}" for value in values))


def describe_frame(frame: fr.Frame, payload: memoryview | bytes | None) -> str:
    match frame:
        case fr.Sync(epoch, run, committed):
            return f"sync {epoch >> 32}{' ' + run if run else ''} after {committed}"
        case fr.ViewFrame(epoch):
            return f"view {epoch >> 32}"
        case fr.Ping(waiting):
            return "ping waiting" if waiting else "ping"
        case fr.Reduce():
            sums = describe_values(frame, payload)
            lane = f" lane {frame.lane}" if frame.lane else ""
            return f"reduce {frame.round}{lane} [{frame.offset}:] {sums} of {fr.unpack_set(frame.contributors):b}"
        case fr.Result():
            ending = "" if frame.commit is None else " committed" if frame.commit.final else " complete"
            if frame.commit is not None and frame.commit.dropped is not None:
                return f"drop {frame.round}: {frame.commit.dropped}{ending}"
            sums = describe_values(frame, payload)
            lane = f" lane {frame.lane}" if frame.lane else ""
            return f"result {frame.round}{lane} [{frame.offset}:] {sums}{ending}"
        case fr.Abort():
            return f"abort {frame.round}: {frame.cause}"
        case fr.Suspect(_, peer, _):
            return f"suspect {peer}"
        case fr.Leave(peer, _, until):
            return f"leave {peer} until {until}"
        case fr.StateRequest(run, number, received):
            return f"state of {run}?" if not received else f"state {number} [{received}:]?"
        case fr.State():
            return f"state {frame.round} [{frame.offset}:] {bytes(payload or b'').decode()}"
        case fr.Have(_, number, holding):
            return f"have {number}{f' in {fr.unpack_set(holding):b}' if holding else ''}"
        case fr.Progress(_, number, _, began, holding, done):
            held = " holding" if holding else ""
            return f"progress {number} of {fr.unpack_set(began):b}: {to_digits(done)}{held}"
        case fr.Release(_, number, done, anew):
            return f"release {number}: {to_digits(done)}{' anew' if anew else ''}"
        case fr.Decide(_, number):
            return f"decide {number}"
        case fr.Knock(_, answer):
            return "come in" if answer else "knock"
        case fr.Via(source, target, tunnel, serial):
            inner = describe_frame(codec.unwrap(frame, len(payload or b"")), payload)
            return f"{source}>{target} {tunnel & 0xFFFFF}.{serial}: {inner}"
        case fr.NoWay(target):
            return f"no way to {target}"
        case fr.Poll(epoch, candidate, number, ballot):
            led = f" by ballot {describe_ballot(ballot)}" if ballot else ""
            return f"poll {number} for {candidate} in {epoch >> 32}{led}"
        case fr.Propose(_, candidate, number, ballot):
            world = unpack(payload or b"", View)
            led = f" by ballot {describe_ballot(ballot)}" if ballot else ""
            return f"propose {number} for {candidate}{led}: {world.epoch} {''.join(world.ids)}"
        case fr.Vote(_, candidate, number, voter):
            promise = f", promises {describe_ballot(frame.promised)}" if frame.promised else ""
            accepts = f", accepts {describe_ballot(frame.accepted)}" if frame.accepted >= 0 else ""
            return f"vote {number} of {voter} for {candidate}{promise}{accepts}"
        case fr.Call():
            return "call"
        case fr.Here():
            return "here"
    raise AssertionError(frame)
