"""Metrics: what a scrape says, what it costs in labels, and a server that nothing from outside can hurt."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from peer_agents import agents, train
from peer_fleet import DEADLINE_S

from edgepeer.errors import ConfigError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import Generation, PeerId
from edgepeer.peer.agent import run_agent
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.outcome import Outcome, flatten
from edgepeer.peer.page_server import PageServer
from edgepeer.protocol.effects import Phases
from edgepeer.protocol.links import LinkState
from edgepeer.settings import PeerSettings
from edgepeer.topology.view import Member, View
from edgepeer.training.job import new_job
from edgepeer.training.trainer import Evaluation
from edgepeer.transport.base import Traffic

prometheus = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")


async def ask(url: str, request: bytes | None = None) -> tuple[str, str]:
    """Status line and body that the server answers with, until it hangs up."""
    found = re.fullmatch(r"http://([\d.]+):(\d+)(/\w+)", url)
    assert found is not None
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(found[1], int(found[2]))
        writer.write(request or f"GET {found[3]} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.partition("\r\n")[0], body


async def scrape(url: str) -> dict[str, float]:
    """Samples by name and labels, as Prometheus reads them."""
    status, body = await ask(url)
    assert status == "HTTP/1.1 200 OK"
    samples: dict[str, float] = {}
    for family in prometheus.text_string_to_metric_families(body):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def outcome(*, exact: bool = True) -> Outcome:
    vector, shapes = flatten(np.ones(3, np.float32))
    return Outcome(
        round=7,
        generation="3-00c0ffee",
        epoch=4,
        contributors=(PeerId("a"), PeerId("b")),
        exact=exact,
        weight=2.0,
        seconds=0.03,
        digest="",
        paths=("direct",),
        phases=Phases(waited_s=0.01, broadcast_s=0.02, decided_s=0.0),
        vector=vector,
        shapes=shapes,
    )


def a_peer(links: tuple[LinkState, ...]) -> Any:
    fabric = SimpleNamespace(
        topics=SimpleNamespace(fabric="lab"), connected_now=True, reconnects=2, rejected_documents=3
    )
    members = tuple(Member(id=name, incarnation=1) for name in "abc")
    return SimpleNamespace(
        id="a",
        fabric=fabric,
        view=View(generation=Generation(counter=3, nonce=0xC0FFEE), epoch=4, members=members),
        committed=7,
        waits="",
        traffic=Traffic(bytes_sent=10, bytes_received=20, frames_rejected=1),
        links=links,
        certificate_ends=None,
    )


def link(peer: str, role: Any, path: str, rtt_s: float | None = None, *, up: bool = True) -> LinkState:
    return LinkState(peer=PeerId(peer), role=role, up=up, path=path, rtt_s=rtt_s, rate_bytes_per_s=1000.0)


LINKS = (
    link("b", "child", "direct", 0.001),
    link("c", "child", "via b", 0.005),
    link("d", "child", "relay"),
    link("e", "child", "", up=False),
    link("f", "backup", "direct", 0.002),
)


@pytest.fixture
async def metrics() -> AsyncIterator[Metrics]:
    async with Metrics("0") as running:
        yield running


async def test_a_scrape_says_how_the_peer_is(metrics: Metrics) -> None:
    assert metrics.url.startswith("http://127.0.0.1:")
    before = await scrape(metrics.url)  # the peer has not started yet
    assert before["edgepeer_rounds_total{outcome=exact}"] == 0
    checkpoints = Checkpoints(None, every=0, keep=1)
    checkpoints.written, checkpoints.failed = 5, 1
    metrics.watch(a_peer(LINKS), checkpoints)
    metrics.committed(outcome(), 0.004)
    metrics.committed(outcome(exact=False), 0.004)
    metrics.aborted()
    seen = await scrape(metrics.url)
    expected = {
        "edgepeer_generation{name=3-00c0ffee}": 3,
        "edgepeer_rounds_total{outcome=exact}": 1,
        "edgepeer_rounds_total{outcome=inexact}": 1,
        "edgepeer_rounds_total{outcome=aborted}": 1,
        "edgepeer_round_seconds_count{phase=compute}": 2,
        "edgepeer_round_seconds_bucket{le=0.005,phase=compute}": 2,
        "edgepeer_round_seconds_bucket{le=0.0025,phase=compute}": 0,
        "edgepeer_round_seconds_sum{phase=broadcast}": 0.04,
        "edgepeer_round": 7,
        "edgepeer_contributors": 2,
        "edgepeer_view_epoch": 4,
        "edgepeer_view_size": 3,
        "edgepeer_broker_connected": 1,
        "edgepeer_broker_reconnects_total": 2,
        "edgepeer_bytes_sent_total": 10,
        "edgepeer_bytes_received_total": 20,
        "edgepeer_frames_rejected_total": 1,
        "edgepeer_documents_rejected_total": 3,
        "edgepeer_checkpoints_written_total": 5,
        "edgepeer_checkpoints_failed_total": 1,
        "edgepeer_links{path=direct,role=child}": 1,
        "edgepeer_links{path=via,role=child}": 1,
        "edgepeer_links{path=relay,role=child}": 1,
        "edgepeer_links{path=none,role=child}": 1,
        "edgepeer_links{path=none,role=parent}": 0,
        "edgepeer_link_rtt_seconds{role=child}": 0.005,
        "edgepeer_link_rtt_seconds{role=backup}": 0.002,
        "edgepeer_link_bytes_per_second{role=backup}": 1000,
    }
    assert {name: seen[name] for name in expected} == expected
    assert seen["process_resident_memory_bytes"] > 1e7
    assert not [name for name in seen if "_created" in name]


async def test_of_the_last_round_of_a_job_it_says_the_number_also_between_jobs(metrics: Metrics) -> None:
    """A view without a job counts rounds, too, as nobody has asked for."""
    peer = a_peer(LINKS)
    metrics.watch(peer, Checkpoints(None, every=0, keep=1))
    peer.committed = 2
    assert (await scrape(metrics.url))["edgepeer_round"] == 0
    metrics.begun()
    peer.view, peer.committed = replace(peer.view, run="job"), 5
    assert (await scrape(metrics.url))["edgepeer_round"] == 5  # by a neighbour's state
    metrics.committed(outcome(), 0.004)
    for view, committed in ((peer.view, 7), (peer.view, 8), (replace(peer.view, run=""), 2), (None, 2)):
        peer.view, peer.committed = view, committed
        assert (await scrape(metrics.url))["edgepeer_round"] == max(committed, 7)


async def test_a_fleet_that_can_not_go_on_shows(metrics: Metrics) -> None:
    """Its view stays as it was: who is gone is a member until the others know better."""
    peer = a_peer(LINKS)
    metrics.watch(peer, Checkpoints(None, every=0, keep=1))
    assert (await scrape(metrics.url))["edgepeer_waiting"] == 0
    peer.waits = "1 of 3 peers are in reach, too few to go on without the others"
    seen = await scrape(metrics.url)
    assert (seen["edgepeer_waiting"], seen["edgepeer_view_size"]) == (1, 3)


async def test_when_the_certificate_ends_shows_in_a_fleet(metrics: Metrics) -> None:
    peer = a_peer(LINKS)
    metrics.watch(peer, Checkpoints(None, every=0, keep=1))
    assert "edgepeer_certificate_expiry_timestamp_seconds" not in await scrape(metrics.url)
    peer.certificate_ends = 1_800_000_000.0
    assert (await scrape(metrics.url))["edgepeer_certificate_expiry_timestamp_seconds"] == 1.8e9


async def test_how_good_a_model_is_does_not_outlast_who_leads_nor_the_job(metrics: Metrics) -> None:
    metrics.watch(a_peer(LINKS), Checkpoints(None, every=0, keep=1))
    metrics.committed(outcome(), 0.004)
    metrics.learned(0.5, Evaluation(0.25, accuracy=0.75), leads=True)
    metrics.learned(0.4, None, leads=True)
    seen = await scrape(metrics.url)
    assert (seen["edgepeer_loss"], seen["edgepeer_test{of=accuracy}"]) == (0.4, 0.75)
    metrics.learned(0.3, None, leads=False)  # what another finds now is not known here
    seen = await scrape(metrics.url)
    assert seen["edgepeer_loss"] == 0.3
    assert not [name for name in seen if name.startswith("edgepeer_test")]
    metrics.learned(0.2, Evaluation(0.25, accuracy=0.75), leads=True)
    metrics.begun()
    seen = await scrape(metrics.url)
    assert math.isnan(seen["edgepeer_loss"])
    assert seen["edgepeer_contributors"] == 0
    assert not [name for name in seen if name.startswith("edgepeer_test")]
    assert seen["edgepeer_rounds_total{outcome=exact}"] == 1


async def test_labels_do_not_grow_with_the_fleet(metrics: Metrics) -> None:
    checkpoints = Checkpoints(None, every=0, keep=1)
    metrics.watch(a_peer(LINKS), checkpoints)
    few = set(await scrape(metrics.url))
    many = tuple(link(f"p{number}", "child", f"via q{number}", 0.1) for number in range(64))
    metrics.watch(a_peer((*LINKS, *many)), checkpoints)
    assert set(await scrape(metrics.url)) == few


async def test_without_a_port_nothing_is_counted() -> None:
    async with Metrics(None) as off:
        off.committed(outcome(), 0.1)
        off.aborted()
        assert off.url == ""


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "{}"])
async def test_a_port_in_use_is_refused(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port = 127.0.0.1:{port}: port is already in use; choose"):
            async with Metrics(address.format(port)):
                pass


async def test_a_port_in_use_is_refused_before_the_peer_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = PeerSettings(
            broker="mqtt://127.0.0.1:1",  # nobody is there, and nobody is asked
            metrics_port=str(taken.getsockname()[1]),
            state_dir=tmp_path / "state",
        )
        with pytest.raises(ConfigError, match="port is already in use"):
            await run_agent(settings, stop=asyncio.Event())
    assert not (tmp_path / "state").exists()


async def test_another_host_than_loopback_must_be_named() -> None:
    with pytest.raises(ConfigError, match="not an address of this machine"):
        async with Metrics("192.0.2.1:0"):
            pass


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"G" * 20_000, ""),
    ],
)
async def test_whatever_is_asked_the_server_lives(request_: bytes, status: str) -> None:
    async with PageServer(
        "here", "127.0.0.1", 0, path="/metrics", content_type="text/plain", make=lambda: b"x"
    ) as pages:
        try:
            answered, _ = await ask(pages.url, request_)
        except ConnectionResetError:
            answered = ""
        assert answered == status
        assert await ask(pages.url) == ("HTTP/1.1 200 OK", "x")


@pytest.mark.parametrize("path", ["/metrics", "/elsewhere"])
async def test_of_what_is_asked_for_its_head_there_comes_no_more(path: str) -> None:
    async with PageServer(
        "here", "127.0.0.1", 0, path="/metrics", content_type="text/plain", make=lambda: b"x"
    ) as pages:
        status, body = await ask(pages.url, f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert body
        assert await ask(pages.url, f"HEAD {path} HTTP/1.1\r\n\r\n".encode()) == (status, "")


async def test_those_who_say_nothing_keep_nobody_away() -> None:
    async with PageServer("here", "127.0.0.1", 0, path="/x", content_type="text/plain", make=lambda: b"x") as pages:
        silent = [await asyncio.open_connection("127.0.0.1", pages.port) for _ in range(40)]
        async with asyncio.timeout(DEADLINE_S):
            for reader, _ in silent[:24]:
                assert await reader.read() == b""
        assert await ask(pages.url) == ("HTTP/1.1 200 OK", "x")
        assert len(pages._connections) <= 16
        for _, writer in silent:
            writer.close()
    for _, writer in silent:
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_training_peer_can_be_scraped(
    broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(id="j1", model="linear", trainer="numpy", batch_size=20, rounds=30, wait_for=2)
    caplog.set_level(logging.INFO, logger="edgepeer")
    async with agents(broker, 2, metrics_port="0"):
        await train(broker, job)
        urls = re.findall(r"metrics at (\S+)", caplog.text)
        assert len(urls) == 2
        for url in urls:
            seen = await scrape(url)
            assert seen["edgepeer_rounds_total{outcome=exact}"] == 30
            assert seen["edgepeer_round"] == 30
            assert seen["edgepeer_view_size"] == 2
            assert seen["edgepeer_broker_connected"] == 1
            assert seen["edgepeer_bytes_sent_total"] > 30 * 650 * 4
            assert seen["edgepeer_links{path=direct,role=child}"] + seen["edgepeer_links{path=direct,role=parent}"] == 1


async def test_a_split_job_is_counted() -> None:
    async with Metrics("0") as metrics:
        metrics.watch(a_peer(()), Checkpoints(None, every=0, keep=1))
        before = await scrape(metrics.url)
        assert (before["edgepeer_cell"], before["edgepeer_held_bytes"]) == (-1, 0)
        metrics.split(
            "j1", {"corrected": 3, "restored": 1, "reverted": 2, "undetected": 4, "held_bytes": 900, "cell": 5}
        )
        samples = await scrape(metrics.url)
    assert samples["edgepeer_split_lines_corrected_total"] == 3
    assert samples["edgepeer_split_restores_total"] == 1
    assert samples["edgepeer_soft_errors_restored_total"] == 2
    assert samples["edgepeer_soft_errors_undetected"] == 4
    assert samples["edgepeer_split_contributions_erased_total"] == 0
    assert (samples["edgepeer_cell"], samples["edgepeer_held_bytes"]) == (5, 900)


async def test_what_split_jobs_count_never_falls() -> None:
    async def counted() -> tuple[float, float]:
        seen = await scrape(metrics.url)
        return seen["edgepeer_split_lines_corrected_total"], seen["edgepeer_soft_errors_found_total"]

    async with Metrics("0") as metrics:
        metrics.watch(a_peer(()), Checkpoints(None, every=0, keep=1))
        metrics.split("j1", {"corrected": 3, "found": 2, "undetected": 4, "held_bytes": 900, "cell": 5})
        metrics.split_over()
        samples = await scrape(metrics.url)
        assert [samples[f"edgepeer_{name}"] for name in ("held_bytes", "cell", "soft_errors_undetected")] == [0, -1, 0]
        assert await counted() == (3, 2)
        metrics.split("j1", {"corrected": 0, "found": 0})  # it takes part again, and has not heard from the others yet
        assert await counted() == (3, 2)
        metrics.split("j1", {"corrected": 4, "found": 1})  # the fleet has counted on, this peer from 0
        assert await counted() == (4, 3)
        metrics.split_over()
        metrics.split("j2", {"corrected": 1, "found": 0})
        assert await counted() == (5, 3)
        metrics.split("j2", {"corrected": 0, "found": 1})  # goes on from an older state
        assert await counted() == (5, 4)


async def test_a_split_job_that_is_over_has_counted(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    job = new_job(
        id="j1", model="mlp-plain", batch_size=20, rounds=4, wait_for=3, split="replicate:m=1,n=1,copies=3",
        optimizer="sgd",
    )  # fmt: skip
    caplog.set_level(logging.INFO, logger="edgepeer")
    async with agents(broker, 3, metrics_port="0"):
        await train(broker, job)
        urls = re.findall(r"metrics at (\S+)", caplog.text)
        async with asyncio.timeout(DEADLINE_S):
            while caplog.text.count("job j1 is over") < 3:  # noqa: ASYNC110  # no Event
                await asyncio.sleep(0.01)
        seen = [await scrape(url) for url in urls]
    assert [each["edgepeer_split_iterations_computed_total"] for each in seen] == [4, 4, 4]
    assert [each["edgepeer_held_bytes"] for each in seen] == [0, 0, 0]


@pytest.mark.parametrize("turns", range(1, 5))
async def test_whoever_is_there_is_sent_away_though_the_end_is_cancelled(
    turns: int, both_loops: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.peer.page_server._PATIENCE_S", 1000.0)
    pages = PageServer("here", "127.0.0.1", 0, path="/x", content_type="text/plain", make=lambda: b"x")
    await pages.__aenter__()
    reader, writer = await asyncio.open_connection("127.0.0.1", pages.port)
    async with asyncio.timeout(DEADLINE_S):
        while not pages._connections:  # noqa: ASYNC110  # no Event
            await asyncio.sleep(0)
        ending = asyncio.create_task(pages.__aexit__(None, None, None))
        for _ in range(turns):
            await asyncio.sleep(0)
        over = ending.done()
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled() or over
        assert not await reader.read()
    writer.close()
