"""Addresses, topics and documents: what is read is what was written, and nothing else is."""

from __future__ import annotations

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ConfigError, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.documents import MAX_LINKS, LinkEntry, LinkReport, PeerReport, Presence, RoundRecord, Telemetry
from edgepeer.fabric.topics import Group, Topic, Topics
from edgepeer.ids import PeerId
from edgepeer.wire.documents import pack, unpack

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True)
HOSTS = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,10}){0,3}", fullmatch=True
) | st.ip_addresses().map(str)
LOGINS = st.none() | st.tuples(
    st.text(min_size=1, max_size=20).filter(str.isprintable), st.none() | st.text(max_size=20)
)


@pytest.mark.parametrize(
    ("text", "host", "port", "username", "password"),
    [
        ("mqtt://broker.local", "broker.local", 1883, None, None),
        ("mqtt://broker.local/", "broker.local", 1883, None, None),
        ("MQTT://Broker:8883", "broker", 8883, None, None),
        ("mqtt://10.0.0.1:2000", "10.0.0.1", 2000, None, None),
        ("mqtt://[::1]:2000", "::1", 2000, None, None),
        ("mqtt://lab@host", "host", 1883, "lab", None),
        ("mqtt://lab:s3cret@host:1", "host", 1, "lab", "s3cret"),
        ("mqtt://l%40b:s%2F%3A%20@host", "host", 1883, "l@b", "s/: "),
        ("mqtt://lab:@host", "host", 1883, "lab", ""),
    ],
)
def test_addresses(text: str, host: str, port: int, username: str | None, password: str | None) -> None:
    assert BrokerAddress.parse(text) == BrokerAddress(host=host, port=port, username=username, password=password)


@given(HOSTS, st.integers(1, 65535), LOGINS)
def test_what_url_writes_parse_reads(host: str, port: int, login: tuple[str, str | None] | None) -> None:
    username, password = login or (None, None)
    address = BrokerAddress(host=host, port=port, username=username, password=password)
    assert BrokerAddress.parse(address.url()) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "mqtt", "mqtt:", "mqtt://", "mqtt:///x", "mqtt://:1883", "mqtt://@host", "mqtt://:s3cret@host"),
        *("broker.local", "broker.local:1883", "lab:s3cret@host", "http://host", "ws://lab:s3cret@host", "//host"),
        *("mqtt://host:", "mqtt://host:0", "mqtt://host:65536", "mqtt://host:x", "mqtt://host:-1", "mqtt://host:1 "),
        *("mqtt://host/path", "mqtt://host?x", "mqtt://host#x", "mqtt://ho st", "mqtt://host\n", "mqtt://-host"),
        *("mqtt://[::1", "mqtt://[::g]", "mqtt://::1", "mqtt://a..b", "mqtt://" + "a" * 64, "mqtt://h:1:2"),
        *("mqtt://lab:s3cret/x@host", "mqtt://lab:s3cret#@host", "mqtt://lab:s3cret?@host:1", "mqtt://lab:s3cret"),
        *("mqtt://lab:s3cret@", "mqtt://lab:s3cret@ho st", "mqtt://lab:s3cret@host:99999", "mqtt://%00:s3cret@host"),
        "mqtt://lab:s3cret" + "x" * 66000 + "@host",
    ],
)
def test_malformed_addresses_are_one_line_without_the_password(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerAddress.parse(text)
    line = str(caught.value)
    assert line.startswith("broker '")
    assert line.isprintable()
    assert len(line) < 400
    assert "s3cret" not in line


@given(st.text() | st.text(alphabet="mqt:/@[]%.?#a1s ").map("mqtt://".__add__))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        address = BrokerAddress.parse(text)
        assert BrokerAddress.parse(address.url()) == address


def test_tls_has_a_port_of_its_own() -> None:
    address = BrokerAddress.parse("mqtts://lab:s3cret@host")
    assert address == BrokerAddress(host="host", port=8883, username="lab", password="s3cret", tls=True)
    assert str(address) == "mqtts://lab@host:8883"
    assert BrokerAddress.parse(address.url()) == address


def test_the_password_does_not_show() -> None:
    address = BrokerAddress.parse("mqtt://lab:s3cret@host")
    assert str(address) == "mqtt://lab@host:1883"
    assert "s3cret" not in f"{address!r} {address}"
    assert str(BrokerAddress(host=str(ipaddress.IPv6Address(1)))) == "mqtt://[::1]:1883"


@given(NAMES, NAMES, NAMES)
def test_what_topics_build_they_read(fabric: str, peer: str, job: str) -> None:
    topics, owner = Topics(fabric), PeerId(peer)
    assert topics.parse(topics.presence(peer)) == Topic(group=Group.PEERS, peer=owner)
    assert topics.parse(topics.view) == Topic(group=Group.VIEW)
    assert topics.parse(topics.job) == Topic(group=Group.JOB)
    assert topics.parse(topics.report(job, peer)) == Topic(group=Group.REPORTS, peer=owner, job=job)
    assert topics.parse(topics.telemetry(peer)) == Topic(group=Group.TELEMETRY, peer=owner)
    assert topics.parse(topics.links(peer)) == Topic(group=Group.LINKS, peer=owner)
    assert topics.parse(topics.relay(peer)) == Topic(group=Group.RELAY, peer=owner)
    assert topics.parse(topics.marker(peer)) is None


def test_topics_are_those_of_the_contract() -> None:
    topics = Topics("lab")
    assert topics.presence("a") == "edgepeer/v1/lab/peer/a"
    assert topics.view == "edgepeer/v1/lab/view"
    assert topics.job == "edgepeer/v1/lab/job"
    assert topics.report("j", "a") == "edgepeer/v1/lab/report/j/a"
    assert topics.telemetry("a") == "edgepeer/v1/lab/telemetry/a"
    assert topics.filters(Group.EVERYTHING, "a") == [
        *("edgepeer/v1/lab/peer/+", "edgepeer/v1/lab/view", "edgepeer/v1/lab/job"),
        *("edgepeer/v1/lab/report/+/+", "edgepeer/v1/lab/telemetry/+", "edgepeer/v1/lab/links/+"),
    ]
    assert topics.filters(Group.RELAY, "a") == ["edgepeer/v1/lab/relay/a"]
    assert topics.filters(Group.VIEW | Group.JOB, "a") == [topics.view, topics.job]
    assert topics.filters(Group.NOTHING, "a") == []


@pytest.mark.parametrize(
    "topic",
    [
        *("", "/", "edgepeer", "edgepeer/v1/lab", "edgepeer/v1/lab/", "edgepeer/v1/lab/peer", "edgepeer/v1/lab/peer/"),
        *("edgepeer/v1/lab/peer/a/", "edgepeer/v1/lab/peer/a/b", "edgepeer/v1/lab/peer/+", "edgepeer/v1/lab/peer/a b"),
        *(
            "edgepeer/v1/lab/peer/a\n",
            "edgepeer/v1/lab/peer/" + "a" * 64,
            "edgepeer/v1/other/view",
            "/edgepeer/v1/lab/view",
        ),
        *("edgepeer/v2/lab/view", "edgepeer/v1/lab/view/", "edgepeer/v1/lab/VIEW", "edgepeer/v1/lab/views", "$SYS/x"),
        *(
            "edgepeer/v1/lab/report/j",
            "edgepeer/v1/lab/report//a",
            "edgepeer/v1/lab/report/j/a/b",
            "edgepeer/v1/lab/job/x",
        ),
    ],
)
def test_foreign_topics_are_nobodys(topic: str) -> None:
    assert Topics("lab").parse(topic) is None


@given(st.text())
def test_any_text_is_a_topic_that_could_have_been_built_or_nobodys(text: str) -> None:
    topics = Topics("lab")
    for topic in (text, topics.root + text, f"{topics.root}peer/{text}"):
        parsed = topics.parse(topic)
        if parsed is not None and parsed.group is Group.PEERS:
            assert parsed.peer is not None
            assert topics.presence(parsed.peer) == topic


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a b", "ä", "-a", "a" * 64, "a\n"])
def test_names_that_no_topic_may_hold_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="fabric"):
        Topics(name)
    topics = Topics("lab")
    for build in (topics.presence, topics.telemetry, topics.marker, lambda name: topics.report("j", name)):
        with pytest.raises(ConfigError, match="peer id"):
            build(name)
    with pytest.raises(ConfigError, match="job id"):
        topics.report(name, "a")


RECORD = RoundRecord(
    round=1,
    epoch=1,
    seconds=0,
    allreduce_seconds=0,
    compute_seconds=0,
    contributors=("a",),
    exact=True,
    loss=float("-inf"),
)


@pytest.mark.parametrize(
    "document",
    [
        Presence(id="a", incarnation=2, addresses=("h:1", "[::1]:2"), version="1", started=1.5),
        Telemetry(job="j", peer="a", records=(RECORD, RECORD)),
        PeerReport(job="j", peer="a", state="failed", error="out of memory", loss=0.25, coordinator=True),
        LinkReport(peer="a", links=(LinkEntry(peer="b", role="backup", up=True, path="via c", rtt_s=0.001),)),
    ],
)
def test_documents_survive_the_wire(document: Presence | Telemetry | PeerReport | LinkReport) -> None:
    assert unpack(pack(document), type(document)) == document


@pytest.mark.parametrize(
    "document",
    [
        Presence(id="", incarnation=2, addresses=()),
        Presence(id="a\n", incarnation=2, addresses=()),
        Presence(id="a", incarnation=-1, addresses=()),
        Presence(id="a", incarnation=2**63, addresses=()),
        Presence(id="a", incarnation=1, addresses=("h:1",) * 17),
        Presence(id="a", incarnation=1, addresses=(), started=float("nan")),
        Telemetry(job="j", peer="a", records=(RECORD,) * 1025),
        PeerReport(job="j" * 64, peer="a", state="done"),
        PeerReport(job="j", peer="a", state="done", round=-1),
        PeerReport(job="j", peer="a", state="done", digest="0" * 65),
        PeerReport(job="j", peer="a", state="done", accuracy=-0.1),
        LinkReport(peer="a", links=(LinkEntry(peer="b", role="child", up=True),) * (MAX_LINKS + 1)),
        LinkReport(peer="a", links=(LinkEntry(peer="b", role="child", up=True, path="x" * 273),)),
        LinkReport(peer="a", links=(LinkEntry(peer="b", role="child", up=True, rtt_s=-1.0),)),
    ],
)
def test_documents_beyond_their_bounds_are_refused(document: Presence | Telemetry | PeerReport | LinkReport) -> None:
    with pytest.raises(WireError):
        unpack(pack(document), type(document))
