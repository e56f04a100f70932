"""What is parsed before anybody is known: any bytes are a message, or are refused as such."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.enrol import messages
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import ConfigError, WireError
from edgepeer.sockets import host_and_port
from edgepeer.trust.directory import Whereabouts
from edgepeer.trust.names import Role

WHERE = Whereabouts(fabric="g", role=Role.PEER, id="p1", broker=("mqtts://b",), service="b:7701")
GOOD = [
    messages.Ask(),
    messages.Enrol(b"toke", b"s" * 16, b"request", "p1", True),
    messages.Renew(),
    messages.Authorities((b"a", b"b")),
    messages.Granted(b"c", (b"a",), b"e", WHERE),
    messages.Refused("no"),
]


def readings(data: bytes) -> list[object]:
    found: list[object] = []
    for read in (messages.question, messages.answer):
        try:
            found.append(read(data))
        except WireError:
            continue
    return found


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_messages_arrive_as_they_were_sent(message: messages.Question | messages.Answer) -> None:
    assert readings(msgspec.msgpack.encode(message)) == [message]


@given(st.data())
def test_any_bytes_are_a_message_or_refused(data: st.DataObject) -> None:
    good = msgspec.msgpack.encode(data.draw(st.sampled_from(GOOD)))
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    for each in (data.draw(st.binary(max_size=64)), bytes(changed), good[: data.draw(st.integers(0, len(good)))]):
        for message in readings(each):
            assert isinstance(message, messages.Question | messages.Answer)


@pytest.mark.parametrize("data", [b"\x91" * 5000, b"\xdf\xff\xff\xff\xff", b"\x92\x02" + b"\xc6\xff\xff\xff\xff", b""])
def test_what_claims_to_be_deep_or_large(data: bytes) -> None:
    assert readings(data) == []


@pytest.mark.parametrize("change", [{"name": "a" * 64}, {"secret": b"s"}, {"token": b""}, {"request": b"x" * 4097}])
def test_bounds_of_a_question(change: dict[str, object]) -> None:
    asked = msgspec.structs.replace(GOOD[1], **change)
    assert readings(msgspec.msgpack.encode(asked)) == []


@given(st.text(max_size=80) | st.from_regex(r"epj1-[a-z2-7]{58}", fullmatch=True))
def test_any_text_is_a_join_string_or_refused(text: str) -> None:
    try:
        string = JoinString.parse(text)
    except ConfigError as error:
        said = str(error)
    else:
        said = "good"
        assert JoinString.parse(string.text()) == string
    assert said.isprintable()


@pytest.mark.parametrize("body", ["ß" * 8 + "a" * 50, "ﬁ" * 8 + "a" * 50, "é" + "a" * 57, "1" * 58])
def test_letters_that_no_join_string_has(body: str) -> None:
    """Some of them become two where small letters are made large ones."""
    with pytest.raises(ConfigError, match="has a character that none has"):
        JoinString.parse("epj1-" + body)


@given(st.text(max_size=30) | st.from_regex(r"\[?[a-f0-9.:]{1,20}\]?(:[0-9]{1,6})?", fullmatch=True))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    try:
        host, port = host_and_port(text, 7701)
    except ConfigError as error:
        said = str(error)
    else:
        said = "good"
        assert host
        assert 0 < port < 65536
    assert said.isprintable()


def test_where_the_fleet_is_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "certificate.pem").touch()
    (tmp_path / "fleet.toml").write_bytes(WHERE.toml())
    assert Whereabouts.read(tmp_path) == WHERE
    assert tomllib.loads(WHERE.toml().decode())["broker"] == ["mqtts://b"]
    for wrong in (
        "",
        "fabric = 3",
        WHERE.toml().decode() + "more = 1\n",
        "fabric = [",
        WHERE.toml().decode() + "id = 1",
        "a = " + "[" * 10_000,
        *(WHERE.toml().decode().replace("b:7701", place) for place in ("b:x", "b", "b:0", "b:70000", ":7701", "b:-1")),
    ):
        (tmp_path / "fleet.toml").write_text(wrong)
        with pytest.raises(ConfigError, match=r"fleet\.toml: .*bring the device in again: edgepeer join HOST STRING"):
            Whereabouts.read(tmp_path)
    with pytest.raises(ConfigError, match=r"fleet\.toml: service = b:-1: must be host:port"):
        Whereabouts.read(tmp_path)
