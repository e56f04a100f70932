"""What a fabric shows of itself, and to whom its processes listen."""

from __future__ import annotations

import ipaddress
import json
import re
import signal
from pathlib import Path

import psutil
import pytest
from real_programs import DEADLINE_S, Field

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.topics import Topics
from edgepeer.following.observe import observe
from edgepeer.topology.view import Member, View

NAMES = ("p0", "p1", "p2", "p3", "p4")


async def test_status_of_a_fleet_at_work(tmp_path: Path) -> None:
    async with Field(tmp_path, batch_s=0.02) as field:
        await field.open()
        await field.add(*NAMES, fanout=3)
        await field.watch.until(lambda: set(field.watch.members) == set(NAMES))
        training = await field.train(rounds=100_000)
        watch = field.watch
        await watch.until(lambda: watch.round > 0)
        await watch.until(lambda: [each.state for each in watch.picture.reports.values()] == ["running"] * len(NAMES))

        as_json = await field.status("--json", peers=len(NAMES))
        assert as_json.err == []
        found = json.loads("\n".join(as_json.out))
        assert [peer["id"] for peer in found["peers"]] == sorted(NAMES)
        for peer in found["peers"]:
            assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in peer["addresses"])
            assert peer["incarnation"] > 0
        view = found["view"]
        assert view["members"] == list(field.watch.members)
        assert view["coordinator"] == view["members"][0]
        assert view["fanout"] == 3
        assert found["job"]["rounds"] == 100_000
        assert {report["state"] for report in found["job"]["reports"].values()} == {"running"}

        plain = await field.status(peers=len(NAMES))
        text = "\n".join(plain.out)
        assert f"fabric default at {field.url}" in text
        root, *children = view["members"]
        tree = [line.strip() for line in plain.out[-len(NAMES) :]]
        assert tree[0] == root
        assert set(tree[1:]) == set(children)
        indents = [len(line) - len(line.lstrip()) for line in plain.out[-len(NAMES) :]]
        assert sorted(indents) == [2, 4, 4, 4, 6]

        withdraw = await field.run("train", "--broker", field.url, "--withdraw")
        assert await withdraw.end() == 0, withdraw.everything()
        assert await training.end() == 1, training.everything()
        assert "was withdrawn after round" in training.err[-1]
        # The peers stay, ready for the next job.
        report = await field.outcome(await field.train(rounds=10))
        assert set(report["parameter_digests"]) == set(NAMES)


async def test_status_tells_who_is_announced_from_who_is_there(tmp_path: Path) -> None:
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("p0")
        assert field.client is not None
        topics = field.client.topics
        view = View(epoch=9, members=(Member(id="ghost", incarnation=1),))
        other = Topics("deserted")
        async with observe(BrokerAddress.parse(field.url), "deserted", lambda _: None) as client:
            for fabric, speaker in ((topics, field.client), (other, client)):
                speaker.publish_retained(
                    fabric.presence("ghost"), Presence(id="ghost", incarnation=1, addresses=("127.0.0.1:9",))
                )
                speaker.forget(fabric.presence("ghost"))  # nobody stands behind it
            client.publish_retained(other.view, view)
            assert await client.flush(DEADLINE_S)
        assert await field.client.flush(DEADLINE_S)

        fleet = await field.status(peers=1)
        assert "announced, but silent: ghost at 127.0.0.1:9" in fleet.out
        assert any(line.startswith("  p0 at 127.0.0.1:") for line in fleet.out)

        as_json = await field.run("status", "--broker", field.url, "--fabric", "deserted", "--json")
        assert await as_json.end() == 0, as_json.everything()
        found = json.loads("\n".join(as_json.out))
        assert (found["peers"], found["view"], found["silent"]) == ([], None, {"ghost": ["127.0.0.1:9"]})


def in_this_network(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()


def listening_to(pid: int) -> set[str]:
    return {found.laddr.ip for found in psutil.Process(pid).net_connections() if found.status == psutil.CONN_LISTEN} | {
        found.laddr.ip for found in psutil.Process(pid).net_connections("udp")
    }


async def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("p0", "p1")
        emulation = await field.run("emulate", "--trainer", "numpy", "--peers", 2, "--rounds", 100_000)
        await emulation.said(r"round \d+/100000")
        assert field.broker is not None
        process = psutil.Process(emulation.process.pid)
        programs = [field.broker.process.pid, *(peer.process.pid for peer in field.peers.values()), process.pid]
        # What runs in a network of its own is reached from nowhere; besides peers there may be one that makes it.
        programs += [child.pid for child in process.children(recursive=True) if in_this_network(child.pid)]
        assert len(programs) in (4, 6)
        for pid in programs:
            found = listening_to(pid)
            assert found, f"{psutil.Process(pid).cmdline()} listens to nobody"
            assert all(ipaddress.ip_address(address).is_loopback for address in found), found


async def test_who_opens_a_port_is_told_what_that_means(tmp_path: Path) -> None:
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("open", listen="0.0.0.0:0", insecure=True)
        await field.add("shut")
        assert "0.0.0.0" in listening_to(field.peers["open"].process.pid)
        warnings = [line for line in field.peers["open"].err if "not encrypted" in line]
        assert len(warnings) == 1, field.peers["open"].everything()
        assert "not encrypted" not in field.peers["shut"].everything()
        addresses = field.watch.picture.peers["open"].addresses
        assert not any(address.startswith("0.0.0.0") for address in addresses)
        broker = await field.run("broker", "--listen", "0.0.0.0:0", "--insecure")
        await broker.said("not encrypted")


@pytest.mark.parametrize("verb", ["peer", "broker"])
async def test_told_to_stop_it_ends_well(verb: str, tmp_path: Path) -> None:
    async with Field(tmp_path) as field:
        await field.open()
        if verb == "peer":
            await field.add("p0")
            program = field.peers["p0"]
        else:
            assert field.broker is not None
            program = field.broker
        program.signal(15)
        assert await program.end() == 0, program.everything()
        assert "Traceback" not in program.everything()
        if verb == "peer":
            await field.watch.until(lambda: not field.watch.picture.peers)


async def test_a_peer_says_how_it_stands_when_it_is_asked_to(tmp_path: Path) -> None:
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("p0", "p1")
        await field.watch.until(lambda: set(field.watch.members) == {"p0", "p1"})
        await field.peers["p1"].said(r"view \d+ of generation")
        field.peers["p1"].signal(signal.SIGUSR1)
        standing = json.loads((await field.peers["p1"].said(r"asked how it stands: (.*)"))[1])
        assert (standing["peer"], set(standing["view"]["members"])) == ("p1", {"p0", "p1"})
        assert standing["links"].keys() == {"p0"}
