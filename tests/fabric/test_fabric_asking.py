"""Clients that ask each other: who keeps what, and who is alive?"""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, presence

from edgepeer.fabric.asking import MAX_ANSWERS, Answers
from edgepeer.fabric.documents import Answer, Ask
from edgepeer.fabric.events import Answered, Connected, PresenceGone, PresenceSeen, Synced, ViewSeen
from edgepeer.fabric.gate import OpenGate
from edgepeer.fabric.outbox import Letter, Outbox
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.topology.view import Member, View
from edgepeer.wire.documents import pack, unpack

TOPICS = Topics("lab")
VIEW = View(epoch=3, members=(Member(id="a", incarnation=1), Member(id="b", incarnation=1)))


async def test_who_keeps_something_says_it_to_whoever_asks_and_to_nobody_else(broker: Broker, invite: Invite) -> None:
    a = await invite(broker.address, "a", present=True)
    b = await invite(broker.address, "b", present=True)
    b.client.publish_retained(TOPICS.view, VIEW)
    asker = await invite(broker.address, "asker")
    for guest in (a, b):
        await guest.until_seen(PresenceSeen(presence("a")), PresenceSeen(presence("b")), ViewSeen(VIEW))
    bystanders_heard = [list(guest.events) for guest in (a, b)]
    asker.events.clear()
    asker.client.ask()
    await asker.until_seen(Answered(PeerId("a")), Answered(PeerId("b")), ViewSeen(VIEW))
    for name in "ab":
        at = asker.events.index(Answered(PeerId(name)))
        assert asker.events[at - 1] == PresenceSeen(presence(name))
    assert len(asker.events) == 5
    assert [guest.events for guest in (a, b)] == bystanders_heard


async def test_only_what_was_to_be_heard_is_told_of_an_answer(broker: Broker, invite: Invite) -> None:
    await invite(broker.address, "a", present=True)
    asker = await invite(broker.address, "asker", interests=Group.VIEW)
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        for topic, payload in (
            (TOPICS.presence("z"), pack(presence("z"))),  # not asked for
            (TOPICS.view, b"garbage"),
            (TOPICS.relay("asker"), b"what nobody keeps"),
            (TOPICS.marker("asker"), b"a note"),
            ("edgepeer/v1/other/view", pack(VIEW)),
        ):
            await raw.publish(TOPICS.answer("asker"), pack(Answer(topic=topic, payload=payload)), qos=1)
        await raw.publish(TOPICS.ask, b"garbage", qos=1)
        # Last: a guest looks again only when something is told.
        await raw.publish(TOPICS.answer("asker"), pack(Answer(topic=TOPICS.view, payload=pack(VIEW))), qos=1)
    await asker.until(lambda _: ViewSeen(VIEW) in asker.events and asker.client.rejected_documents == 5)
    assert asker.events == [Connected(), Synced(), ViewSeen(VIEW)]


async def test_only_the_presence_of_that_life_is_taken_back(broker: Broker, invite: Invite) -> None:
    guest = await invite(broker.address, "guest")
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        await raw.publish(TOPICS.presence("dead"), pack(presence("dead", 7)), qos=1, retain=True)
        await guest.until_seen(PresenceSeen(presence("dead", 7)))
        guest.client.clear_presence("dead", 6)
        guest.client.clear_presence("unknown", 7)
        await raw.publish(TOPICS.presence("dead"), pack(presence("dead", 8)), qos=1, retain=True)
        await guest.until_seen(PresenceSeen(presence("dead", 8)))
        guest.client.clear_presence("dead", 7)
        guest.client.publish_retained(TOPICS.view, VIEW)
        await guest.until_seen(ViewSeen(VIEW))
        assert guest.count(PresenceGone) == 0
        guest.client.clear_presence("dead", 8)
        await guest.until_seen(PresenceGone(PeerId("dead")))
    late = await invite(broker.address, "late")
    assert late.events == [Connected(), ViewSeen(VIEW), Synced()]


async def test_who_lives_says_again_what_was_taken_back(broker: Broker, invite: Invite) -> None:
    guest = await invite(broker.address, "guest")
    peer = await invite(broker.address, "a", present=True)
    await guest.until_seen(PresenceSeen(presence("a")))
    guest.client.clear_presence("a", 1)
    await guest.until(lambda seen: guest.count(PresenceSeen) == 2)
    assert guest.events[2:] == [PresenceSeen(presence("a")), PresenceGone(PeerId("a")), PresenceSeen(presence("a"))]
    assert peer.count(PresenceGone) == 0
    late = await invite(broker.address, "late")
    assert PresenceSeen(presence("a")) in late.events


async def test_nothing_of_the_probe_stays(broker: Broker, invite: Invite) -> None:
    await invite(broker.address, "a", present=True)
    guest = await invite(broker.address, "guest")
    assert await guest.client.flush(5)
    await guest.client.close()
    kept: list[str] = []
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        await raw.subscribe(f"{TOPICS.root}#", 1)
        await raw.publish(f"{TOPICS.root}end", b"x", qos=1)
        async for message in raw.messages:
            if str(message.topic).endswith("end"):
                break
            kept.append(str(message.topic))
    assert kept == [TOPICS.presence("a")]


async def test_nor_of_one_that_was_broken_off(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only looks has another name each time: nobody would clear it."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("edgepeer.fabric.client.subscribe", never)
    async with (
        asyncio.timeout(DEADLINE_S),
        aiomqtt.Client(broker.address.host, broker.address.port) as raw,
    ):
        await raw.subscribe(f"{TOPICS.root}#", 1)
        guest = Guest(broker.address, "guest")
        run = asyncio.create_task(guest.client.run())
        said = await anext(raw.messages)
        assert said.payload
        run.cancel()
        cleared = await anext(raw.messages)
        assert (str(cleared.topic), cleared.payload) == (str(said.topic), b"")
        await asyncio.gather(run, return_exceptions=True)


def test_answers_are_what_is_kept_when_they_are_said() -> None:
    outbox = Outbox()
    answers = Answers(TOPICS, outbox, OpenGate())
    outbox.keep(TOPICS.presence("a"), b"old")
    outbox.keep(TOPICS.view, b"view")
    outbox.keep(TOPICS.evicted, b"nobody asks for this")
    for nonce in (b"1", b"2", b"3"):
        answers.asked_by("x", nonce)
    outbox.keep(TOPICS.presence("a"), b"new")
    outbox.forget(TOPICS.view)
    letter = answers.next()
    assert letter is not None
    assert letter is answers.next()
    assert (letter.topic, letter.retain) == (TOPICS.answer("x"), False)
    assert unpack(letter.payload, Answer) == Answer(topic=TOPICS.presence("a"), payload=b"new", nonce=b"3")
    answers.acknowledged(Letter("another", b"", retain=False))
    assert answers.next() is letter
    answers.acknowledged(letter)
    assert answers.next() is None


def test_who_asks_anew_while_it_is_answered_is_answered_anew() -> None:
    """An answer to the first question shows nobody alive to who has asked again, as all do whose broker is back."""
    outbox = Outbox()
    answers = Answers(TOPICS, outbox, OpenGate())
    outbox.keep(TOPICS.presence("a"), b"old")
    answers.asked_by("x", b"1")
    first = answers.next()
    answers.asked_by("x", b"2")
    assert first is not None
    answers.acknowledged(first)
    second = answers.next()
    assert second is not None
    assert unpack(second.payload, Answer).nonce == b"2"
    # The connection breaks with that on its way; it is asked again, about what has changed.
    outbox.keep(TOPICS.presence("a"), b"new")
    answers.asked_by("x", b"3")
    third = answers.next()
    assert third is not None
    assert unpack(third.payload, Answer) == Answer(topic=TOPICS.presence("a"), payload=b"new", nonce=b"3")
    answers.acknowledged(second)
    assert answers.next() is third
    answers.acknowledged(third)
    assert answers.next() is None


def test_who_is_asked_too_much_answers_the_first() -> None:
    outbox = Outbox()
    answers = Answers(TOPICS, outbox, OpenGate())
    outbox.keep(TOPICS.presence("a"), b"x")
    for number in range(2 * MAX_ANSWERS):
        answers.asked_by(f"x{number}", b"")
    said = 0
    while (letter := answers.next()) is not None:
        assert letter.topic == TOPICS.answer(f"x{said}")
        answers.acknowledged(letter)
        said += 1
    assert said == MAX_ANSWERS


def test_a_question_names_who_asks() -> None:
    assert unpack(pack(Ask(client="a")), Ask) == Ask(client="a")
    assert TOPICS.parse(TOPICS.ask) is not None
