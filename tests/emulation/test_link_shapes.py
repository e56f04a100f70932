"""Lines as text: what is read, and what is refused in one line that says what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.emulation.network import LinkShape, parse_links, parse_peers
from edgepeer.errors import ConfigError

NAMES = tuple(f"p{number:02d}" for number in range(12))


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("100mbit,5ms", LinkShape(up_bits_per_s=100e6, down_bits_per_s=100e6, delay_s=0.005)),
        ("5ms, 100mbit", LinkShape(up_bits_per_s=100e6, down_bits_per_s=100e6, delay_s=0.005)),
        ("2.5Gbit", LinkShape(up_bits_per_s=2.5e9, down_bits_per_s=2.5e9)),
        ("250us", LinkShape(delay_s=0.00025)),
        ("56kbit,0.5s", LinkShape(up_bits_per_s=56e3, down_bits_per_s=56e3, delay_s=0.5)),
        ("10mbit/50mbit,20ms", LinkShape(up_bits_per_s=10e6, down_bits_per_s=50e6, delay_s=0.02)),
        ("10mbit / 2gbit", LinkShape(up_bits_per_s=10e6, down_bits_per_s=2e9)),
        ("loss=1%", LinkShape(loss=0.01)),
        ("Jitter=20ms, loss = 0.5%", LinkShape(jitter_s=0.02, loss=0.005)),
        ("queue=1s,1mbit", LinkShape(up_bits_per_s=1e6, down_bits_per_s=1e6, queue_s=1.0)),
    ],
)
def test_a_link_as_text(text: str, link: LinkShape) -> None:
    read = LinkShape.parse(text)
    for field in ("up_bits_per_s", "down_bits_per_s", "delay_s", "jitter_s", "loss", "queue_s"):
        assert getattr(read, field) == pytest.approx(getattr(link, field))


@pytest.mark.parametrize(
    "text",
    [
        *("", "fast", "100", "5ms,5ms", "100mbit,", "-5ms", "1bit", "1000gbit", "0.6s", "1e9bit", "5ms/5ms", "1mbit/"),
        *("1mbit/2", "/1mbit", "1mbit,2mbit", "1mbit/2mbit/3mbit", "loss=1", "loss=51%", "1%", "jitter=1%", "queue=0s"),
        *("loss=1%,loss=1%", "jitter=", "=5ms", "rate=1mbit", "jitter=0.6s", "p3=5ms", "5ms;1mbit"),
        *("queue=11s,1mbit", "queue=1s", "queue=1s,5ms"),
    ],
)
def test_what_no_link_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^link .*: .*must be[^\n]*$"):
        LinkShape.parse(text)


def test_which_of_several_links_is_out_of_bounds() -> None:
    with pytest.raises(ConfigError, match=r"^link '10mbit,9s': delay 9 s: must be 0 to 0.5 s$"):
        parse_links(["100mbit,5ms", "3,5=10mbit,9s"], NAMES)


@given(st.text(alphabet="0123456789.mkgbitus%=/, losjqer", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        link = LinkShape.parse(text)
    except ConfigError:
        return
    assert 0 <= link.loss <= 0.5


def test_links_of_some_follow_those_of_all() -> None:
    links = parse_links(["100mbit,5ms", "3,p11=10mbit,loss=1%", "3=5ms"], NAMES)
    assert list(links) == list(NAMES)
    assert links["p00"] == LinkShape.parse("100mbit,5ms")
    assert links["p11"] == LinkShape.parse("10mbit,loss=1%")
    assert links["p03"] == LinkShape.parse("5ms")
    assert parse_links(["2=loss=1%"], NAMES) == {"p02": LinkShape(loss=0.01)}
    assert parse_links([], NAMES) == {}


@pytest.mark.parametrize("text", ["12=5ms", "p12=5ms", "3,99=5ms", "x=5ms", "3,=5ms", "3=", "=5ms"])
def test_links_of_nobody(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^link .*: .*must be[^\n]*$"):
        parse_links([text], NAMES)


def test_peers_by_number_and_by_name() -> None:
    assert parse_peers("3, p05,P7", NAMES, "nat") == ["p03", "p05", "p07"]
    for text in ("", "12", "p", "3,", "root", "-1", "²"):
        with pytest.raises(ConfigError, match=r"^nat: peer .* is unknown: must be 0 to 11$"):
            parse_peers(text, NAMES, "nat")
