"""What an exploration has found, for people: one action a line, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator

from edgepeer.errors import WireError
from edgepeer.simulation.exploration.checks import Violation
from edgepeer.simulation.exploration.fleet import Fleet
from edgepeer.simulation.exploration.search import Find, recover
from edgepeer.simulation.exploration.state import Action, Setting, State
from edgepeer.topology.view import View
from edgepeer.wire.codec import has_document, unwrap
from edgepeer.wire.documents import unpack
from edgepeer.wire.frames import Commit, Frame, Via

__all__ = ["lines", "replay"]

_SHOWN: dict[str, tuple[str, ...]] = {
    "Ping": ("orphan", "level", "settled", "ballot"),
    "Reduce": ("round",),
    "Result": ("round", "commit", "up"),
    "Have": ("round",),
    "Decide": ("round",),
    "Sync": ("committed",),
    "Abort": ("round", "cause", "over"),
    "Progress": ("round", "code", "began", "done", "holding"),
    "Release": ("round", "code", "done", "anew"),
    "Suspect": ("peer",),
    "Measured": ("peer",),
    "Poll": ("candidate", "number", "ballot"),
    "Propose": ("candidate", "ballot"),
    "Vote": ("candidate", "voter", "promised", "accepted", "committed", "holding", "coming"),
    "Call": ("view",),
    "Here": ("aside",),
}


def replay(setting: Setting, find: Find) -> str | None:
    """What the same actions lead to; None if they break nothing, or can't be taken."""
    fleet = Fleet(setting)
    try:
        state = fleet.formed()
        for action in find.actions:
            state = fleet.after(state, action)
    except Violation as violation:
        return str(violation)
    return recover(fleet, state) if find.recovering else None


def lines(setting: Setting, find: Find) -> Iterator[str]:
    """How it comes to what was found. What a surprise is stands behind an exclamation mark."""
    fleet = Fleet(setting)
    state = fleet.formed()
    yield f"   {setting.peers} peers work in one view, round 1 is over"
    for action in find.actions:
        surprise = "!" if action != fleet.usual(state) else " "
        said = _told(fleet, state, action)
        try:
            after = fleet.after(state, action)
        except Violation as violation:
            yield f" {surprise} {said}"
            yield f"   broken: {violation}"
            return
        yield f" {surprise} {said}{''.join(f'; {each}' for each in _news(fleet, state, after))}"
        state = after
    if find.recovering:
        yield "   all is healed, and the usual takes its course"
    yield f"   broken: {find.complaint}"


def _told(fleet: Fleet, state: State, action: Action) -> str:
    kind, names = action[0], fleet.names
    if kind == "bring":
        a, b = action[1], action[2]
        return f"{names[a]} > {names[b]}  {_thing(fleet, state.channels[a * fleet.n + b][0])}"
    if kind == "word":
        return f"broker > {names[action[1]]}  {_thing(fleet, state.words[action[1]][0])}"
    if kind == "hold":
        source = fleet.sources[action[1]]
        return f"late: {_told(fleet, state, source)}"
    if kind == "wait":
        passed = fleet.waits(state)
        return f"{len(passed or ()) * 0.25:g} s pass"
    if kind == "heal":
        return f"over: {_told(fleet, state, action[1])}"
    who = [names[peer] for peer in action[1:]]
    words = {
        "connect": "{} connects to {}", "fail": "{} can't connect to {}", "contribute": "{} contributes",
        "compute": "{} computes a chunk", "will": "the broker notices that {} is gone",
        "enter": "{} connects to the broker", "restart": "restart {}",
    }  # fmt: skip
    return words[kind].format(*who) if kind in words else " ".join((kind, *who))


def _thing(fleet: Fleet, number: int) -> str:
    thing = fleet.frames[number]
    if type(thing[0]) is not str:
        return _frame(*thing)
    kind = thing[0]
    if kind == "relayed":
        return f"relayed: {_frame(*thing[1:])}"
    if kind == "view":
        return _view(thing[1])
    if kind == "seen":
        return f"{thing[1].id} is there, incarnation {thing[1].incarnation >> 16}.{thing[1].incarnation & 0xFFFF}"
    words = {"up": "accepts", "down": "closes", "reset": "resets", "gone": "is gone:", "synced": "that is all"}
    return " ".join((words[kind], *(str(each) for each in thing[1:] if kind == "gone")))


def _frame(frame: Frame, data: bytes) -> str:
    if isinstance(frame, Via):
        return f"from {frame.source} for {frame.target}: {_frame(unwrap(frame, len(data)), data)}"
    if has_document(frame):
        try:
            return _view(unpack(data, View))
        except WireError:
            return type(frame).__name__
    shown = []
    for name in _SHOWN.get(type(frame).__name__, ()):
        value = getattr(frame, name)
        if isinstance(value, Commit):
            shown.append("decided" if value.final else "commit")
        elif isinstance(value, bytes):
            shown.append(f"{name} {value.hex()}")
        elif value is True:
            shown.append(name)
        elif value is not False and value is not None:
            shown.append(f"{name} {value}")
    return " ".join((type(frame).__name__, *shown))


def _view(view: View) -> str:
    members = ", ".join(f"{member.id}/{member.incarnation >> 16}" for member in view.members)
    return f"view {view.epoch} ({members}) from round {view.first_round}"


def _news(fleet: Fleet, before: State, after: State) -> Iterator[str]:
    for peer, name in enumerate(fleet.names):
        was, now = fleet.facts(before, peer), fleet.facts(after, peer)
        if was is None or now is None or was is now:
            continue
        if now.view != was.view:
            yield f"{name} works in {_view(now.view)}" if now.view is not None else f"{name} is in no view"
        if now.over > was.over:
            yield f"round {now.over} is over at {name}"
