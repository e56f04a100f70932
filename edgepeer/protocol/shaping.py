"""The head's choice of the trees that its view forms: another form is proposed only when it pays, and rarely.

the head                                    | so
--------------------------------------------+----------------------------------------------------------------------
has heard from more than half of its view,  | looks, at most once in LOOK_S, more seldom where nothing was found: what
and rounds go on that are not short         | would a round cost over the best trees, and over these? A little at a
                                            | time, so that no round waits for it; what is found counts at its end
has found the like LOOKS times, and better  | wants it, and proposes it when nothing else is pending (views.py)
by a fifth, of the round as it was measured |
too                                         |
works in a view of that form                | measures TRIED rounds, after COLD others
finds them, by their median, no faster than | wants the old form back, and does not try that one again for a while;
those before                                | any other not before REST_S, twice as long each time
finds them faster                           | waits for REST_S
hears that a connection has broken, and     | looks at once, and wants what it finds then if that is better by MENDED_S,
could not be made again                     | too: rounds measured before say nothing of these trees any more

A head that is slow itself, or that nobody can dial, hands its place on with that. What is measured may be forged: then
the trees are bad, and slow, and nothing else; what does not make rounds faster is taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from statistics import median
from typing import Final, TypeAlias

from edgepeer.ids import PeerId
from edgepeer.protocol.estimate import Findings
from edgepeer.protocol.shape import Choice, Network, Shape, round_s, search
from edgepeer.topology.tree import Trees
from edgepeer.topology.view import Form, View
from edgepeer.wire.frames import Measured

__all__ = ["MOST_SHAPED", "Shaping"]

LOOK_S: Final = 1.0
LOOK_LIMIT_S: Final = 64.0
"""A look takes a while: where nothing is found the next one is twice as far off, until rounds take another time."""
LOOKS: Final = 3
GAIN: Final = 0.2
MENDED_S: Final = 0.05
"""Where connections have broken, less is not worth the vectors that are under way when trees change."""
LEAST_S: Final = 5e-3
"""What is gained by less is not worth another view ..."""
SHORT_S: Final = LEAST_S / GAIN
"""... so rounds of less are well as they are."""
TRIED: Final = 7
COLD: Final = 3
"""The first rounds over trees say little of them: connections have just begun, and nobody knows yet what they carry."""
BETTER: Final = 0.95
REST_S: Final = 10.0
REST_LIMIT_S: Final = 640.0
MOST_SHAPED: Final = 128
"""Larger views stay as they are."""
_SLOW: Final = 0.5
_HEADS: Final = 3

PAUSE_S: Final = 1e-3
"""Between two parts of a look: others have their turn."""

_Key: TypeAlias = tuple[tuple[PeerId, ...], int, int, int]
_Found: TypeAlias = tuple[Form | None, bool]
"""The best form that is found, None if it isn't better by enough; and whether it is wanted at once."""


class Shaping:
    """What the head of a view knows of its network, and makes of it.

    Args:
        me: this peer.
        choice: what may be chosen; None: nothing.
    """

    def __init__(self, me: PeerId, choice: Choice | None) -> None:
        self._me = me
        self._choice = choice
        self.why = ""
        """What was found at the last look, for people to read; empty before that, and where nothing is chosen."""
        self._said_s = 0.0
        self._findings = Findings()
        self._view: View | None = None
        self._began: float | None = None
        self._bytes: deque[int] = deque(maxlen=TRIED)
        self._rounds: deque[float] = deque(maxlen=TRIED)
        """How long the last rounds took from this peer's contribution on. What a round would take otherwise is reckoned
        without other work on these machines, and compared with the shortest; forms that both have been measured are
        compared by what is usual, as it comes to be: where machines are busy, one may be as fast as the other at best,
        and a tenth slower in the middle."""
        self._cold = COLD
        """How many of this view's rounds still don't count."""
        self._look_at = 0.0
        self._pause_s = LOOK_S
        self._looked: tuple[float, float] = 0.0, 0.0
        """When this peer has looked last, and how long rounds took then."""
        self._next_at = 0.0
        self._rest_s = REST_S
        self._search: Generator[None, None, _Found] | None = None
        self._found: _Found | None = None
        """What has come of it, and has not been looked at yet."""
        self._wish: Form | None = None
        self._same = 0
        self._mends = False
        """Whether what is wanted does without connections that have broken."""
        self._tried: tuple[Form, float] | None = None
        """The form before this one, and how long its rounds usually took; None if this one has proven itself."""
        self._back: Form | None = None
        self._bad: dict[_Key, float] = {}
        """What has not proven itself, and until when not to try it again."""

    # -- what happens ----------------------------------------------------------------------------------------

    def enter(self, view: View | None, now: float) -> None:
        """This peer works in another view, or in none."""
        before, wish, usual, mends = self._view, self._back or self._wish, self._usual, self._mends
        self._view, self._began, self._wish, self._same, self._back = view, None, None, 0, None
        self._mends = False
        self._search = self._found = None
        self._rounds.clear()
        self._cold = COLD
        self._look_at, self._pause_s = now + LOOK_S, LOOK_S
        self.why, self._said_s = "", 0.0
        if view is None or view.coordinator != self._me:
            self._findings, self._tried = Findings(), None
            return
        self._findings.enter(view)
        if before is None or set(before.ids) != set(view.ids):
            if self._tried is not None:  # it is judged all the same: nobody else would take back what is worse
                (old, took), form = self._tried, _form(view)
                old = _among(old, view)
                self._tried = (old, took) if _key(old) != _key(form) else None
        elif wish is not None and _key(wish) == _key(_form(view)) != _key(_form(before)):
            took_back = self._tried is not None and _key(self._tried[0]) == _key(wish)
            self._tried = None if took_back or mends or usual is None else (_form(before), usual)
            self._next_at = now + self._rest_s

    def contributed(self, vector_bytes: int, now: float) -> None:
        """The owner's vector for the next round, of so many bytes as they travel."""
        self._began = now
        self._bytes.append(vector_bytes)

    def round_ended(self, now: float) -> None:
        """A round is over."""
        if self._began is None:
            return
        if self._cold:
            self._cold -= 1
        else:
            self._rounds.append(now - self._began)
        self._began = None

    def hear(self, report: Measured, now: float) -> None:
        """A member tells what it has measured in this view."""
        view = self._view
        if (
            view is not None
            and report.epoch == view.stamp
            and report.peer in view
            and self._findings.hear(view, report, now)
        ):
            self._look_at = min(self._look_at, now)

    @property
    def _least(self) -> float | None:
        """How long a round takes at best, if enough were measured ..."""
        return min(self._rounds) if len(self._rounds) == TRIED else None

    @property
    def _usual(self) -> float | None:
        """... and in the middle."""
        return median(self._rounds) if len(self._rounds) == TRIED else None

    # -- what follows ------------------------------------------------------------------------------------------

    def think(self, now: float) -> None:
        """Look for better trees, if it is time: a part of it. To be asked whenever there is nothing else to do."""
        if self._search is None and self._found is None and self._tried is None:
            view, least = self._view, self._due(now)
            if view is not None and least is not None and least >= SHORT_S:
                self._search = self._finding(view, least, now)
        if self._search is not None:
            try:
                next(self._search)
            except StopIteration as over:
                self._search, self._found = None, over.value

    def next_deadline(self, now: float) -> float | None:
        """When to `think` again; None if nothing is begun."""
        return now + PAUSE_S if self._search is not None else None

    def _due(self, now: float) -> float | None:
        """How long rounds take, if it is time to look at these trees; then that is noted."""
        view, least = self._view, self._least
        if self._choice is None or view is None or least is None or not self._is_time(least, now):
            return None
        self._looked = now, least
        self._look_at = now + self._pause_s
        return least if not view.slots and 3 <= view.size <= MOST_SHAPED and max(self._bytes) else None

    def wanted(self, now: float) -> Form | None:
        """The form that the next view is to have, at the end of a round; None if this one is to stay."""
        view = self._view
        if view is None:
            return None
        if self._tried is not None:
            if self._due(now) is None or (usual := self._usual) is None:
                return None
            self._look_at = now + LOOK_S
            return self._judged(view, usual, now)
        if self._found is None:
            return None
        (form, self._mends), self._found = self._found, None
        self._pause_s = min(2 * self._pause_s, LOOK_LIMIT_S) if form is None else LOOK_S
        if self._look_at > now:  # else something has been heard since
            self._look_at = now + self._pause_s
        same = form is not None and self._wish is not None and _kind(form) == _kind(self._wish)
        self._wish, self._same = form, self._same + 1 if same else 1
        if form is None or not (self._mends or (self._same >= LOOKS and now >= self._next_at)):
            return None
        return form if self._bad.get(_key(form), now) <= now else None

    def _mends_by(self, view: View, form: Form) -> bool:
        """Whether connections have broken that the trees of this view use, and those of another form do not."""

        def used(order: Sequence[PeerId], trees: Trees) -> int:
            at = {peer: position for position, peer in enumerate(order)}
            links = [(at[one], at[other]) for one, other in self._findings.broken if one in at and other in at]
            return sum(trees.common(a, b) for a, b in links)

        there = used(form.order, Trees(len(form.order), form.fanout, form.lanes, form.leaves))
        return there < used(view.ids, view.plan)

    def _is_time(self, least: float, now: float) -> bool:
        """Whether to look: it is due, or rounds take another time than at the last look, which is not just over."""
        looked_at, took = self._looked
        changed = not took * 3 / 4 <= least <= took * 4 / 3
        return now >= self._look_at or (changed and now >= looked_at + LOOK_S and self._look_at > looked_at + LOOK_S)

    def _judged(self, view: View, usual: float, now: float) -> Form | None:
        """What was tried has been measured."""
        assert self._tried is not None
        before, took = self._tried
        if usual <= BETTER * took:
            self._tried, self._rest_s = None, REST_S
            return None
        if self._back is None:
            self._rest_s = min(2 * self._rest_s, REST_LIMIT_S)
            self._bad[_key(_form(view))] = now + self._rest_s
            self._bad = {key: until for key, until in self._bad.items() if until > now}
            why = f"{_words(_form(view))} took {_time(usual)} a round, and this {_time(took)}"
            self._back = Form(
                order=before.order, fanout=before.fanout, lanes=before.lanes, leaves=before.leaves, why=why
            )
        return self._back

    def _finding(self, view: View, least: float, now: float) -> Generator[None, None, _Found]:
        """A look."""
        network = self._findings.network(view, now)
        if network is None or self._choice is None:
            return None, False
        total, these = max(self._bytes), Shape(tuple(range(view.size)), view.plan)
        now_s = round_s(network, these, total)
        best = yield from search(network, these, total, choice=self._choice)
        best_s = round_s(network, best, total)
        heads = _better_heads(network)
        if heads:
            other = yield from search(network, these, total, choice=self._choice, heads=heads)
            if (other_s := round_s(network, other, total)) < (1 - GAIN) * best_s:
                best, best_s = other, other_s
        rate, trip = network.typical
        line = f"{_rate(rate)}, {1e3 * trip:.3g} ms"
        gain = now_s - best_s
        form = _named(view, best)
        if best == these or gain < max(GAIN * now_s, LEAST_S) or gain < GAIN * least:
            self._say(f"{_words(_form(view))}: {line}: {_time(now_s)} a round", now_s)
            return None, False
        mends = gain >= MENDED_S and self._mends_by(view, form)
        words, before = _words(form), _words(_form(view))
        before = "the same in the order before" if words == before else before
        why = f"{words}: {line}: {_time(best_s)} a round against {_time(now_s)} by {before}"
        return Form(order=form.order, fanout=form.fanout, lanes=form.lanes, leaves=form.leaves, why=why[:200]), mends

    def _say(self, what: str, seconds: float) -> None:
        """Nothing better is found. It goes into this peer's report, and is not said anew for every small change."""
        if not self._said_s * 3 / 4 <= seconds <= self._said_s * 4 / 3:
            self.why, self._said_s = f"{what}, and nothing is found that is much faster", seconds


def _better_heads(network: Network) -> list[int]:
    """Who may take position 0 from a head that is slow, or that nobody can dial; empty if it is neither."""
    machines = network.machines
    usual = network.typical[0]

    def fits(at: int) -> bool:
        return machines[at].dialable and min(machines[at].send, machines[at].receive) >= _SLOW * usual

    return [] if fits(0) else [at for at in range(1, len(machines)) if fits(at)][:_HEADS]


def _named(view: View, shape: Shape) -> Form:
    order, trees = tuple(view.ids[at] for at in shape.order), shape.trees
    return Form(order=order, fanout=trees.fanout, lanes=trees.lanes, leaves=trees.leaves)


def _form(view: View) -> Form:
    return Form(order=view.ids, fanout=view.fanout, lanes=view.lanes, leaves=view.leaves, why=view.why)


def _among(form: Form, view: View) -> Form:
    """A form for the members of another view. Who has come since is inside if there are no leaves."""
    inside = [peer for peer in form.order[: len(form.order) - form.leaves] if peer in view]
    leaves = [peer for peer in form.order[len(form.order) - form.leaves :] if peer in view]
    news = [peer for peer in view.ids if peer not in form.order]
    last = len(leaves) + len(news) if leaves and inside else 0
    return Form(order=(*inside, *leaves, *news), fanout=form.fanout, lanes=form.lanes, leaves=last, why=form.why)


def _key(form: Form) -> _Key:
    return form.order, form.fanout, form.lanes, form.leaves


def _kind(form: Form) -> tuple[int, int, frozenset[PeerId]]:
    """A form without its order, of which many are as good as each other."""
    return form.fanout, form.lanes, frozenset(form.order[len(form.order) - form.leaves :])


def _words(form: Form) -> str:
    """A form for people to read, without its order."""
    lanes = Trees(len(form.order), form.fanout, form.lanes, form.leaves).count
    words = f"{lanes} lane{'s' * (lanes != 1)} of fan-out {form.fanout}"
    if not form.leaves:
        return words
    last = form.order[len(form.order) - form.leaves :]
    names = ", ".join(last[:3]) + (f" and {len(last) - 3} more" if len(last) > 3 else "")
    return f"{words}, leaves only {names}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.0995 else f"{1e3 * seconds:.2g} ms"
