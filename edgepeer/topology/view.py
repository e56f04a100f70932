"""A view: who is in, in which order, in which tree. Immutable; every frame names its view's stamp.

Views form chains. The first view of a chain begins a *generation*; each later one is the successor of the one before,
decided once, by a quorum of the lives in it (protocol/succession.py). So of one generation and epoch there is one view.
A life is one (peer, incarnation); one that has ended is never counted again, and a quorum never shrinks because of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Annotated

import msgspec

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.readable import readable
from edgepeer.topology import tree

__all__ = [
    "LAST_LIFE",
    "MAX_EPOCH",
    "MAX_FANOUT",
    "MAX_GUARDS",
    "MAX_LANES",
    "MAX_MEMBERS",
    "Form",
    "Guard",
    "Life",
    "Member",
    "View",
    "enough",
    "hand_on",
]

MAX_MEMBERS = 4096
MAX_FANOUT = 64
MAX_LANES = 16
MAX_EPOCH = (1 << 31) - 1
LAST_LIFE = (1 << 53) - (1 << 32)
"""None that a copy of a device has led is followed if it is as late as this: no number would be left."""
MAX_GUARDS = 64
"""How many views that are each larger than those before may follow one that is not settled, before the next waits."""

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
_Address = Annotated[str, msgspec.Meta(max_length=128)]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One peer as the others know it."""

    id: _Id
    incarnation: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Which life of the peer is meant: a restarted peer is admitted anew."""
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=16)] = ()
    """Where it listens, as host:port; the first that answers is used."""
    key: Annotated[bytes, msgspec.Meta(max_length=32)] | msgspec.UnsetType = msgspec.UNSET
    """In a fleet: what others seal with what is for this life alone. Else it is not said at all."""
    machine: Annotated[str, msgspec.Meta(max_length=32)] | msgspec.UnsetType = msgspec.UNSET
    """What tells its machine's network stack from others: those with the same reach each other on its loopback."""


class Life(msgspec.Struct, frozen=True, array_like=True):
    """One life of a peer."""

    id: _Id
    incarnation: Annotated[int, msgspec.Meta(ge=0)]


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """The lives of an earlier view of the chain, whose results may be known to none but its holders."""

    lives: Annotated[tuple[Life, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    """In the order of that view."""
    quorum: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMBERS)] = 0


def enough(order: Sequence[PeerId], there: Container[PeerId], least: int = 0) -> bool:
    """Whether those who are there are a quorum of `order`: more than half of it, or half with its head in it; and at
    least `least`. Any two quorums share a member."""
    count = sum(map(there.__contains__, order))  # of a thousand members, asked for ten times a second
    if count < min(least, len(order)):
        return False
    return 2 * count > len(order) or (2 * count == len(order) and order[0] in there)


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What trees the members of a view form, and why: see the fields of `View`."""

    order: tuple[PeerId, ...]
    fanout: int
    lanes: int
    leaves: int
    why: str = ""


@readable
class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An agreed membership."""

    generation: Generation = Generation()
    epoch: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCH)]
    """Counts the views of a generation."""
    members: Annotated[tuple[Member, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    """Position in this tuple is position in the tree; the first is root and coordinator."""
    fanout: Annotated[int, msgspec.Meta(ge=1, le=MAX_FANOUT)] = 2
    run: Annotated[str, msgspec.Meta(max_length=63)] = ""
    """The run (job id) whose rounds are counted; empty when peers only call allreduce."""
    first_round: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The next round of the run when the view was made."""
    plain_round: Annotated[int, msgspec.Meta(ge=1)] = 1
    """While there is a run: with which round plain ones go on when it is over. Its number has not been given yet."""
    quorum: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMBERS)] = 0
    """How many members must be together to go on, if that is more than `enough` asks for."""
    guards: Annotated[tuple[Guard, ...], msgspec.Meta(max_length=MAX_GUARDS)] = ()
    """Of the views before, back to the last that was settled: until this one is, see `may_go_on`. What a quorum of
    another always is one of need not stand here (`all_guards`)."""
    slots: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    """Where rounds are coded: who computes for which worker of the code; () where they are not."""
    lanes: Annotated[int, msgspec.Meta(ge=1, le=MAX_LANES)] = 1
    """Into how many ranges a vector is divided, at most, each of which moves over a tree of its own: see `plan`."""
    leaves: Annotated[int, msgspec.Meta(ge=0, lt=MAX_MEMBERS)] = 0
    """How many members, the last of the order, are leaves of all trees."""
    why: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Why order, fan-out, lanes and leaves are as they are, for people to read; empty: as they were set, and as peers
    came."""
    goes_on: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """The stamp of the view with whose rounds this generation goes on: its members were in that one, or in none. 0: all
    of them were in none."""

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.members):
            raise ValueError("a peer stands twice in the view")
        if not set(self.slots) <= set(self.ids):
            raise ValueError("a slot belongs to nobody in the view")
        if self.leaves >= self.size:
            raise ValueError("nobody in the view is no leaf")

    @cached_property
    def ids(self) -> tuple[PeerId, ...]:
        return tuple(PeerId(member.id) for member in self.members)

    @cached_property
    def _positions(self) -> dict[PeerId, int]:
        return {peer: position for position, peer in enumerate(self.ids)}

    @cached_property
    def _children(self) -> dict[tuple[PeerId, int], tuple[PeerId, ...]]:
        return {}

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def coordinator(self) -> PeerId:
        return self.ids[0]

    @cached_property
    def everyone(self) -> int:
        """The contributor set of the full view, as a bit set of positions."""
        return (1 << len(self.members)) - 1

    def __contains__(self, peer: object) -> bool:
        return peer in self._positions

    def position(self, peer: PeerId) -> int:
        """The position of a member. Raises KeyError for anyone else."""
        return self._positions[peer]

    def member(self, peer: PeerId) -> Member:
        return self.members[self._positions[peer]]

    # -- trees ---------------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> tree.Trees:
        """The trees over the positions: the one with the coordinator at its root, number 0, and the same turned, so
        that the roots are spread over the order. One only where rounds are coded, and nobody is a leaf of all there."""
        if self.slots:
            return tree.Trees(self.size, self.fanout)
        return tree.Trees(self.size, self.fanout, self.lanes, self.leaves)

    @property
    def trees(self) -> int:
        """How many trees there are."""
        return self.plan.count

    @property
    def height(self) -> int:
        """How many links lie between a root and who is the furthest from it."""
        return self.plan.height

    def parent(self, peer: PeerId, lane: int = 0) -> PeerId | None:
        above = self.plan.parent(self._positions[peer], lane)
        return None if above is None else self.ids[above]

    def children(self, peer: PeerId, lane: int = 0) -> tuple[PeerId, ...]:
        """In the order in which they are added up."""
        found = self._children.get((peer, lane))
        if found is None:  # asked for with every heartbeat
            below = self.plan.children(self._positions[peer], lane)
            found = self._children[peer, lane] = tuple(self.ids[position] for position in below)
        return found

    def below(self, peer: PeerId, lane: int = 0) -> int:
        """The positions at and below a member, as a bit set."""
        return sum(1 << position for position in self.plan.subtree(self._positions[peer], lane))

    def neighbours(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Parent (if any), then children; then those of the other trees."""
        found: dict[PeerId, None] = {}
        for lane in range(self.trees):
            above = self.parent(peer, lane)
            found.update(dict.fromkeys((*((above,) if above is not None else ()), *self.children(peer, lane))))
        return tuple(found)

    def backups(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Whom to have a backup link with: brothers, uncles, and whose uncle this one is, in any of the trees."""
        found: dict[PeerId, None] = {}
        for lane in range(self.trees):
            found.update(dict.fromkeys(self.ids[at] for at in self.plan.backups(self._positions[peer], lane)))
        for neighbour in self.neighbours(peer) if self.trees > 1 else ():
            found.pop(neighbour, None)
        return tuple(found)

    @cached_property
    def _shortest(self) -> dict[PeerId, tuple[PeerId | None, tuple[PeerId, ...]]]:
        above: dict[PeerId, PeerId | None] = {self.coordinator: None}
        below: dict[PeerId, list[PeerId]] = {self.coordinator: []}
        for peer in (order := [self.coordinator]):
            for other in self.neighbours(peer):
                if other not in above:
                    above[other], below[other] = peer, []
                    below[peer].append(other)
                    order.append(other)
        return {peer: (above[peer], tuple(below[peer])) for peer in order}

    @cached_property
    def _holders_behind(self) -> frozenset[PeerId]:
        """Who is a holder, or behind whom there is one."""
        found = set(self.ids[: self.holders])
        for holder in self.ids[: self.holders]:
            above = self.shortest(holder)[0]
            while above is not None and above not in found:
                found.add(above)
                above = self.shortest(above)[0]
        return frozenset(found)

    def held_behind(self, peer: PeerId) -> bool:
        """Whether a member, or any that `shortest` has behind it, must hold a result before it counts."""
        return peer in self._holders_behind if self.trees > 1 else self._positions[peer] < self.holders

    def shortest(self, peer: PeerId) -> tuple[PeerId | None, tuple[PeerId, ...]]:
        """The neighbours before and behind a member on the shortest ways from the coordinator over the links of all
        trees. Of one tree alone: parent and children."""
        return self._shortest[peer] if self.trees > 1 else (self.parent(peer), self.children(peer))

    def may_go_on(self, peers: Container[PeerId], *, settled: bool, majority: bool = False) -> bool:
        """Whether these members may decide what follows this view; or could, if no more than a `majority` was needed.

        They must be a quorum of it; and of each view in `guards`, unless this one is known to be settled: what was
        decided in those may have been told to nobody but their holders, of whom each quorum has one.
        """
        if not enough(self.ids, peers, 0 if majority else self.quorum):
            return False
        return settled or all(
            enough(
                [PeerId(life.id) for life in guard.lives],
                self._same_lives(guard, peers),
                0 if majority else guard.quorum,
            )
            for guard in self.guards
        )

    def _same_lives(self, guard: Guard, peers: Container[PeerId]) -> set[PeerId]:
        lives = [(PeerId(life.id), life.incarnation) for life in guard.lives]
        return {p for p, life in lives if p in peers and p in self and self.member(p).incarnation == life}

    @property
    def guard(self) -> Guard:
        """This view as a guard of those that follow."""
        return Guard(tuple(Life(member.id, member.incarnation) for member in self.members), self.quorum)

    @property
    def all_guards(self) -> tuple[Guard, ...]:
        """The guards of what follows this view while it is not settled.

        This one is none if a guard is larger, or as large with the same head. Whoever of that guard speaks in a later
        view is in this one as well, for who has been left out comes back in another life. So who are a quorum there are
        one of this view, too: however many are lost one after the other, that takes no room.
        """
        mine = self.guard
        size, head = len(mine.lives), mine.lives[0]
        covered = any(
            each.quorum >= mine.quorum
            and (len(each.lives) > size or (len(each.lives) == size and each.lives[0] == head))
            for each in self.guards
        )
        return self.guards if covered else (*self.guards, mine)

    def has_left_out(self, member: Member) -> bool:
        """Whether this life was in a view before, as far as guards tell, and is not in this one."""
        life = Life(member.id, member.incarnation)
        here = PeerId(member.id) in self and self.member(PeerId(member.id)).incarnation == member.incarnation
        return not here and any(life in guard.lives for guard in self.guards)

    @property
    def holders(self) -> int:
        """A round is decided when the first so many members hold its result: each quorum has one of them."""
        return (self.size + 1) // 2

    @cached_property
    def owned(self) -> dict[PeerId, tuple[int, ...]]:
        """The slots of each peer that has any."""
        found: dict[PeerId, tuple[int, ...]] = {}
        for slot, owner in enumerate(self.slots):
            found[PeerId(owner)] = (*found.get(PeerId(owner), ()), slot)
        return found

    def names(self, contributors: int) -> tuple[PeerId, ...]:
        """The peers of a contributor bit set, in position order."""
        if contributors == self.everyone:
            return self.ids
        return tuple(peer for position, peer in enumerate(self.ids) if contributors >> position & 1)

    @cached_property
    def stamp(self) -> int:
        """What frames name the view by: the epoch, then a checksum of all else that tells it from others."""
        lives = ";".join(f"{member.id}/{member.incarnation}" for member in self.members)
        slots = f";{','.join(self.slots)}" if self.slots else ""
        trees = f";{self.lanes} of {self.fanout}" if self.lanes > 1 or self.leaves else ""
        trees += f" but {self.leaves}" if self.leaves else ""
        plain = f";{self.plain_round}" if self.plain_round > 1 else ""
        told = f"{self.generation};{lives};{self.run};{self.first_round}{slots}{trees}{plain}"
        return self.epoch << 32 | zlib.crc32(told.encode())

    @property
    def beginning(self) -> tuple[str, int]:
        """Which beginning of which run its rounds are counted from: the same run may have been given up, and begun anew
        since another view of it."""
        return self.run, self.plain_round

    @property
    def lineage(self) -> Lineage:
        """What tells states of its run from those of other beginnings and generations."""
        return Lineage(self.generation, self.plain_round)

    @property
    def place(self) -> tuple[Generation, int]:
        """Where it stands among all views."""
        return self.generation, self.epoch

    def precedes(self, other: View) -> bool:
        """Whether `other` comes after this one: in its chain, or in a later generation."""
        return self.place < other.place

    def leads_to(self, other: View) -> bool:
        """Whether a member of this view may go on in `other`, which comes after it, with what it has: that is of the
        same chain, or its generation goes on from this very view. Whoever was counted on for another generation, and
        has begun or entered one beside it meanwhile, may have ended rounds there that nobody else knows of."""
        return self.generation == other.generation or self.stamp == other.goes_on

    def successor(
        self,
        *,
        first_round: int,
        without: Iterable[PeerId] = (),
        joined: Iterable[Member] = (),
        coordinator: PeerId | None = None,
        run: str | None = None,
        coded: bool = False,
        settled: bool = True,
        generation: Generation | None = None,
        form: Form | None = None,
        slots: tuple[str, ...] = (),
    ) -> View:
        """The next epoch's view; or, with `generation`, the first of that.

        Whoever leaves is replaced by the last of the order, or, if it is no leaf of all trees, by the last who is none,
        so that few tree links change and nobody comes to be inside by that who was not; whoever joins goes to the end.
        With `coordinator`, that peer swaps into position 0. `first_round`: what comes next in the run of this view; of
        another run it is the first, and after a run plain rounds go on where they were. `settled`: whether nothing of
        the views before this one can be lost any more. Of a run that is coded, and stays so whoever makes its views,
        each slot stays with its owner; only those of peers that are gone are handed on (`hand_on`). `slots`: whose they
        were in the run that begins here, if it goes on from a checkpoint of that: as many are there as were.
        `form`: of the members who stay, in an order that names each of them once; as it was, if not given. Why it is so
        is of these members: of others it is not said.
        """
        gone, ids = set(without), self.ids if form is None else form.order
        order = [self.member(peer) for peer in ids]
        inside = self.size - (self.leaves if form is None else form.leaves)
        order, outside = _closed_up(order[:inside], gone), _closed_up(order[inside:], gone)
        present = {member.id for member in (*order, *outside)}
        news = [member for member in joined if member.id not in present]
        leaves = len(outside) + len(news) if outside and order else 0
        order += outside + news
        if coordinator is not None:
            at = next(i for i, member in enumerate(order) if member.id == coordinator)
            order[0], order[at] = order[at], order[0]
        following = self.run if run is None else run
        plain = self.plain_round
        if following != self.run:
            if not self.run:
                plain = first_round + 1  # that one may have been decided, and be known to none but its holders
            elif following:
                plain += 1  # so that no two beginnings of a run are alike
            first_round = 1 if following else plain
        peers = tuple(member.id for member in order)
        kept = self.slots if following and following == self.run else slots if following and coded else ()
        anew = generation is not None
        return View(
            generation=generation or self.generation,
            epoch=1 if anew else self.epoch + 1,
            guards=() if anew else (self.guard,) if settled else self.all_guards,
            members=tuple(order),
            fanout=self.fanout if form is None else form.fanout,
            run=following,
            first_round=first_round,
            plain_round=plain if following else 1,
            quorum=self.quorum,
            slots=hand_on(kept, peers) if coded or kept else (),
            lanes=self.lanes if form is None else form.lanes,
            leaves=leaves,
            why=form.why if form is not None else self.why if set(peers) == set(self.ids) else "",
            goes_on=self.stamp if anew else self.goes_on,
        )


def _closed_up(members: list[Member], gone: set[PeerId]) -> list[Member]:
    """These without those who are gone: each replaced by the last."""
    for at in range(len(members) - 1, -1, -1):
        if members[at].id in gone:
            last = members.pop()
            if at < len(members):
                members[at] = last
    return members


def hand_on(slots: tuple[str, ...], peers: tuple[str, ...]) -> tuple[str, ...]:
    """The owners of a code's slots among `peers`, moving as few as possible; one slot for each peer if there are none.

    Slots of others go to those with the fewest; and from whoever then has two more than another, one goes there.
    """
    if not slots:
        return peers
    owners: list[str | None] = [owner if owner in peers else None for owner in slots]
    count = dict.fromkeys(peers, 0)
    for owner in owners:
        if owner is not None:
            count[owner] += 1

    def give(slot: int) -> None:
        least = min(count, key=count.__getitem__)
        owners[slot] = least
        count[least] += 1

    for slot, owner in enumerate(owners):
        if owner is None:
            give(slot)
    while (most := max(count, key=count.__getitem__)) and count[most] - min(count.values()) > 1:
        count[most] -= 1
        give(len(owners) - 1 - owners[::-1].index(most))
    return tuple(owner for owner in owners if owner is not None)
