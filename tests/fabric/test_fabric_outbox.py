"""The outbox against a plain model of what the broker ends up with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepeer.fabric.outbox import BREAKS, LONG_BYTES, Letter, Outbox

ACTIONS = st.lists(
    st.tuples(st.just("keep"), st.sampled_from("xyz"), st.sampled_from([b"", b"1", b"2"]))
    | st.tuples(st.just("event"), st.sampled_from("xyz"), st.binary(max_size=2))
    | st.tuples(st.sampled_from(["say", "lose receipt", "reconnect"]), st.none(), st.none())
)


@given(ACTIONS)
def test_the_broker_ends_with_the_last_values_and_every_event_in_order(
    actions: list[tuple[str, str, bytes]],
) -> None:
    outbox = Outbox()
    retained: dict[str, bytes] = {}  # at the broker
    wanted: dict[str, bytes] = {}
    told: list[tuple[str, bytes]] = []  # events at the broker
    meant: list[tuple[str, bytes]] = []

    def say() -> Letter | None:
        letter = outbox.next()
        if letter is not None and letter.retain:
            retained[letter.topic] = letter.payload
        elif letter is not None:
            told.append((letter.topic, letter.payload))
        return letter

    for action, topic, payload in actions:
        match action:
            case "keep":
                outbox.keep(topic, payload)
                wanted[topic] = payload
            case "event":
                outbox.add_event(topic, payload)
                meant.append((topic, payload))
            case "reconnect":
                retained.clear()  # the broker forgot everything
                outbox.repeat_all()
            case "lose receipt":
                if (letter := say()) is not None and not letter.retain:
                    told.pop()  # arrives again
            case _:
                if (letter := say()) is not None:
                    outbox.acknowledged(letter)
    while outbox:
        letter = say()
        assert letter is not None
        outbox.acknowledged(letter)
    assert {topic: value for topic, value in retained.items() if value} == {
        topic: value for topic, value in wanted.items() if value
    }
    assert told == meant
    assert outbox.next() is None


def test_too_many_events_drop_the_oldest() -> None:
    outbox = Outbox(max_events=3)
    for number in range(5):
        outbox.add_event("t", bytes([number]))
    assert outbox.dropped_events == 2
    on_its_way = outbox.next()
    assert on_its_way == Letter("t", b"\x02", retain=False)
    outbox.add_event("t", b"\x05")  # drops what is on its way
    outbox.acknowledged(on_its_way)
    told = []
    while (letter := outbox.next()) is not None:
        told.append(letter.payload)
        outbox.acknowledged(letter)
    assert told == [b"\x03", b"\x04", b"\x05"]
    assert outbox.dropped_events == 3


def test_a_receipt_is_only_for_what_was_said() -> None:
    outbox = Outbox()
    outbox.keep("presence", b"here")
    said = outbox.next()
    assert said is not None
    outbox.repeat("presence")  # somebody cleared it before the receipt came
    outbox.acknowledged(said)
    assert outbox.next() == said
    outbox.keep("presence", b"there")
    outbox.acknowledged(said)
    assert outbox.next() == Letter("presence", b"there", retain=True)


def test_what_is_forgotten_is_said_at_most_once_more() -> None:
    outbox = Outbox()
    outbox.keep("job", b"1")
    outbox.forget("job")
    assert "job" not in outbox.kept
    letter = outbox.next()
    assert letter == Letter("job", b"1", retain=True)
    outbox.acknowledged(letter)
    outbox.repeat_all()
    assert not outbox


def test_what_is_on_its_way_is_not_held_back() -> None:
    outbox = Outbox()
    outbox.keep("job", b"1")
    outbox.keep("view", b"2")
    job = outbox.next()
    assert job is not None
    assert not outbox.hold_back("job")
    outbox.acknowledged(job)
    assert not outbox.hold_back("job")
    assert outbox.hold_back("view")
    assert outbox.next() is None
    outbox.repeat_all()  # the connection has ended: there it has yet to be said
    assert [letter.topic for letter in outbox.kept.values()] == ["job"]
    assert outbox.hold_back("job")
    outbox.repeat_all()
    assert not outbox


def test_so_is_what_is_said_nowhere() -> None:
    outbox = Outbox()
    outbox.keep("job", LONG)
    while not break_off(outbox):
        pass
    assert outbox.hold_back("job")
    outbox.repeat_all()
    assert not outbox


LONG = b"x" * LONG_BYTES


def break_off(outbox: Outbox) -> bool:
    """The next connection, which ends with what is said first."""
    outbox.repeat_all()
    letter = outbox.next()
    assert letter is not None
    return outbox.broke_off(letter)


def say_all(outbox: Outbox) -> list[str]:
    """The next connection, which lasts."""
    outbox.repeat_all()
    said = []
    while (letter := outbox.next()) is not None:
        said.append(letter.topic)
        outbox.acknowledged(letter)
    return said


def test_what_ends_one_connection_after_the_other_is_given_up_and_tried_once_more_some_time() -> None:
    outbox = Outbox()
    outbox.keep("view", LONG)
    outbox.keep("job", LONG)
    outbox.keep("presence", b"me")
    for _ in ("view", "job"):
        assert [break_off(outbox) for _ in range(BREAKS)] == [False] * (BREAKS - 1) + [True]
    assert say_all(outbox) == ["presence"]
    assert outbox.given_up == {"view", "job"}
    assert break_off(outbox)  # that one has ended without them: there may be another broker now
    assert break_off(outbox)
    assert say_all(outbox) == ["presence"]
    outbox.keep("job", LONG + b"another")
    assert outbox.given_up == {"view"}
    assert say_all(outbox) == ["job", "view", "presence"]
    assert not break_off(outbox)  # once it was taken, all that has been is forgotten


def test_an_event_that_ends_one_connection_after_the_other_is_dropped() -> None:
    outbox = Outbox()
    outbox.add_event("telemetry", LONG)
    outbox.add_event("telemetry", b"short")
    assert [break_off(outbox) for _ in range(BREAKS)] == [False] * (BREAKS - 1) + [True]
    assert outbox.dropped_events == 1
    assert say_all(outbox) == ["telemetry"]
    assert not outbox


def test_what_is_short_is_never_given_up() -> None:
    outbox = Outbox()
    outbox.keep("presence", LONG[:-1])
    assert not any(break_off(outbox) for _ in range(100))
