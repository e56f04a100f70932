"""Emulated networks: text forms, cuts, rates, delays, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from network_agents import DEADLINE_S, Agent, agents

from edgepeer.emulation.network import BROKER, EmulatedNetwork, LinkShape, Mode, open_network
from edgepeer.emulation.network.control import HubProcess, KernelRefused
from edgepeer.errors import ConfigError, EdgepeerError

PEERS = ("a", "b", "c")


@contextlib.asynccontextmanager
async def opened(
    mode: Mode, link: LinkShape | None = None, shut: tuple[str, ...] = ()
) -> AsyncIterator[EmulatedNetwork]:
    """The network, or the test is skipped and says why."""
    links = {} if link is None else dict.fromkeys(PEERS, link)
    async with contextlib.AsyncExitStack() as stack:
        try:
            network = await stack.enter_async_context(open_network(PEERS, mode=mode, links=links, shut=shut))
        except ConfigError as error:
            pytest.skip(str(error))
        yield network


async def dropped(network: EmulatedNetwork, source: str, target: str, count: int) -> None:
    """Wait until the cut has dropped so many packets."""
    async with asyncio.timeout(DEADLINE_S):
        while (await network.cuts())[source, target] < count:  # noqa: ASYNC110  # counters tell nobody
            await asyncio.sleep(0)


async def test_the_plain_network_says_that_it_can_cut_nothing() -> None:
    async with open_network(PEERS, mode="none") as network:
        assert network.mode == "none"
        assert network.prefix("a") == network.broker_prefix() == []
        assert network.address("b") == network.broker_address() == "127.0.0.1"
        assert await network.reach("a", "broker.local", 1883) == ("broker.local", 1883)
        assert await network.cuts() == {}
        with pytest.raises(ConfigError, match="link faults and NAT need"):
            await network.cut(("a", "b"))
        with pytest.raises(ConfigError, match="link faults and NAT need"):
            await network.cut(("a", BROKER))
        with pytest.raises(ConfigError, match="link faults and NAT need"):
            await network.shape("a", LinkShape(up_bits_per_s=1e6))


@pytest.mark.parametrize("mode", ["loopback", "none"])
async def test_shaped_links_take_namespaces(mode: Mode) -> None:
    with pytest.raises(ConfigError, match="only links between network namespaces"):
        async with open_network(PEERS, mode=mode, links={"a": LinkShape(delay_s=0.005)}):
            raise AssertionError("opened")


async def test_a_machine_without_the_means_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    async with open_network(PEERS) as network:
        assert network.mode == "none"
        assert "nsenter is not installed" in network.description
    with pytest.raises(ConfigError, match=r"network = namespaces: not on this machine: nsenter is not installed"):
        async with open_network(PEERS, mode="namespaces"):
            raise AssertionError("opened")


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
async def test_a_cut_drops_one_direction_only_and_counts(mode: Mode) -> None:
    async with opened(mode) as network, agents(network, *PEERS) as (a, b, c):
        assert network.mode == mode
        await a.tell(b, "before")
        await b.hears("before", a)
        await network.cut(("a", "b"))
        await network.cut(("a", "b"))
        assert await network.cuts() == {("a", "b"): 0}
        await a.tell(b, *("lost",) * 20)
        await dropped(network, "a", "b", 20)
        await b.tell(a, "back")
        await a.hears("back", b)
        await a.tell(c, "beside")
        await c.hears("beside", a)
        await c.tell(b, "beside")
        await b.hears("beside", c)
        await network.cut(("b", "a"), ("a", "b"))
        assert await network.cuts() == {("a", "b"): 20, ("b", "a"): 0}
        assert await network.heal(("a", "b"), ("a", "c")) == {("a", "b"): 20}
        assert await network.heal(("a", "b")) == {}
        assert await network.cuts() == {("b", "a"): 0}
        await a.tell(b, "after")
        await b.hears("after", a)
        assert ("lost", a.address) not in b.got
        await network.cut(("a", "b"))
        assert (await network.cuts())["a", "b"] == 0


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
async def test_an_open_connection_stalls_while_it_is_cut_and_goes_on(mode: Mode) -> None:
    async with opened(mode) as network, agents(network, "a", "b") as (a, b):
        await network.cut(("b", "a"))
        transfer = asyncio.create_task(a.transfer(b, 100_000))  # not even the handshake gets back
        await dropped(network, "b", "a", 1)
        assert not transfer.done()
        await network.heal(("b", "a"))
        assert await transfer > 0


async def test_connections_that_share_a_line_make_writes_as_long_as_a_single_one() -> None:
    """Else most of what a machine does for an emulated network is to carry small pieces of it."""
    link = LinkShape(up_bits_per_s=100e6, down_bits_per_s=100e6, delay_s=0.005)
    async with opened("namespaces", link) as network, agents(network, *"aaaaaaaab") as (*senders, b):
        async with asyncio.TaskGroup() as group:
            for sender in senders:
                group.create_task(sender.transfer(b, 500_000))
        command = [*network.prefix("a"), sys.executable, "-I", "-c", "print(open('/proc/net/dev').read())"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        said, _ = await process.communicate()
    (counts,) = (line.partition(":")[2].split() for line in said.decode().splitlines() if "eth0:" in line)
    sent_bytes, writes = int(counts[8]), int(counts[9])
    assert sent_bytes > 8 * 500_000
    assert sent_bytes / writes > 6000


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while text := await reader.readline():
        writer.write(text.upper())
    writer.close()


_CLIENT = (
    "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20); s.sendall(b'hello\\n'); "
)
_CLIENT += "print(s.recv(100).decode(), end=''); s.shutdown(socket.SHUT_WR); print(repr(s.recv(100)))"


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
async def test_a_broker_outside_is_reached_and_can_be_cut_off(mode: Mode) -> None:
    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server, opened(mode) as network:

        async def talk(name: str) -> asyncio.subprocess.Process:
            host, port = await network.reach(name, "127.0.0.1", server.sockets[0].getsockname()[1])
            command = [*network.prefix(name), sys.executable, "-I", "-c", _CLIENT, host, str(port)]
            return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)

        async def heard(client: asyncio.subprocess.Process) -> bytes:
            async with asyncio.timeout(DEADLINE_S):
                return (await client.communicate())[0]

        assert await heard(await talk("a")) == b"HELLO\nb''\n"
        await network.cut(("a", BROKER))
        assert list(await network.cuts()) == [("a", BROKER)]
        client = await talk("a")
        async with asyncio.timeout(DEADLINE_S):
            while not (await network.cuts())["a", BROKER]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await heard(await talk("b")) == b"HELLO\nb''\n"
        assert (await network.heal(("a", BROKER)))["a", BROKER] > 0
        assert await network.cuts() == {}
        assert await heard(client) == b"HELLO\nb''\n"


async def test_a_shaped_link_is_no_faster_than_it_says() -> None:
    link = LinkShape.parse("20mbit,20ms")
    async with opened("namespaces", link) as network, agents(network, *PEERS) as (a, b, c):
        round_trip = 2 * link.delay_s
        assert await a.transfer(b, 1) >= round_trip
        size = 500_000
        at_least = (size - 20_000) * 8 / 20e6  # what a bucket holds goes at once
        assert await a.transfer(b, size) >= at_least + round_trip
        began = time.perf_counter()
        await asyncio.gather(a.transfer(b, size), c.transfer(b, size))
        assert time.perf_counter() - began >= 2 * at_least + round_trip  # b's own line is as narrow
        await network.cut(("a", "b"))  # frames that were delayed are cut like others
        await a.tell(b, *("lost",) * 5)
        await dropped(network, "a", "b", 5)
        await network.heal(("a", "b"))
        await network.shape("a", LinkShape(delay_s=0.05))
        assert await a.transfer(b, 1) >= 0.05 + link.delay_s
        for name in ("a", "b"):
            await network.shape(name, LinkShape())
        await a.tell(b, "direct")
        await b.hears("direct", a)
        assert await a.transfer(b, size) > 0


async def test_processes_keep_their_pid_their_user_and_their_files(tmp_path: Path) -> None:
    for mode in ("namespaces", "loopback"):
        async with opened(mode) as network:
            script = f"import os; print(os.getpid(), os.getuid()); open('{tmp_path}/{mode}', 'w')"
            process = await asyncio.create_subprocess_exec(
                *network.prefix("a"), sys.executable, "-c", script, stdout=subprocess.PIPE
            )
            said, _ = await process.communicate()
        assert said.split() == [str(process.pid).encode(), str(os.getuid()).encode()]
        assert (tmp_path / mode).stat().st_uid == os.getuid()


async def test_unknown_names_are_refused() -> None:
    async with opened("namespaces") as network:
        with pytest.raises(KeyError):
            network.address("z")
        with pytest.raises(KeyError):
            await network.cut(("a", "z"))


def namespaces_in_use() -> set[str]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{process.pid}/ns/net"))
    return found


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
async def test_nothing_is_left_when_it_closes(mode: Mode) -> None:
    devices, files = set(os.listdir("/sys/class/net")), set(os.listdir("/proc/self/fd"))
    before = psutil.Process().children(recursive=True)  # of other tests: what multiprocessing keeps for the next time
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with opened(mode, LinkShape(delay_s=0.001) if mode == "namespaces" else None) as network:
            async with agents(network, *PEERS):
                children = [each for each in psutil.Process().children(recursive=True) if each not in before]
                assert len(children) >= 4
                homes = {os.readlink(f"/proc/{child.pid}/ns/net") for child in children}
                assert len(homes) == (4 if mode == "namespaces" else 1)
                assert os.readlink("/proc/self/ns/net") not in homes
                held = [os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY) for child in children]
            raise ZeroDivisionError
    assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == []
    assert not homes & namespaces_in_use()
    for each in held:
        os.close(each)
    assert set(os.listdir("/sys/class/net")) == devices
    assert set(os.listdir("/proc/self/fd")) <= files | {str(n) for n in range(3)}


_OWNER = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from network_agents import agents
from edgepeer.emulation.network import LinkShape, open_network

async def main():
    async with open_network(("a", "b"), mode="namespaces", links=dict(a=LinkShape(delay_s=0.001))) as network:
        async with agents(network, "a", "b"):
            print("ready", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_nothing_is_left_when_its_owner_is_killed() -> None:
    async with opened("namespaces"):
        pass  # or skipped
    script = _OWNER.format(tests=str(Path(__file__).parent))
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        assert await owner.stdout.readline() == b"ready\n"
    children = psutil.Process(owner.pid).children(recursive=True)
    homes = {os.readlink(f"/proc/{child.pid}/ns/net") for child in children}
    assert len(homes) == 3
    # While they are held here, no other namespace can be given their numbers.
    held = [os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY) for child in children]
    children[-1].send_signal(signal.SIGSTOP)  # even who can't notice
    owner.kill()
    await owner.wait()
    assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == []
    assert not homes & namespaces_in_use()
    for each in held:
        os.close(each)


async def test_what_the_kernel_refuses_leaves_the_way_to_something_simpler() -> None:
    async with opened("namespaces"):
        pass  # or skipped
    async with HubProcess() as hub:
        await hub.ask("leave")
        with pytest.raises(KernelRefused, match="File exists"):
            await hub.ask("lan", address="10.77.9.9", peers=["10.77.0.1", "10.77.0.1"])
        await hub.ask("loopback")
        await hub.ask("cut", cuts=[("127.77.0.1", "")])
        assert await hub.ask("cuts") == [["127.77.0.1", "", 0]]
        assert await hub.ask("heal", cuts=[("127.77.0.1", "")]) == [["127.77.0.1", "", 0]]
        assert await hub.ask("heal", cuts=[("127.77.0.1", "")]) == []


async def test_a_lost_hub_is_an_error_and_not_a_hang() -> None:
    before = psutil.Process().children()
    async with opened("namespaces") as network:
        (hub,) = [each for each in psutil.Process().children() if each not in before]
        hub.kill()
        with pytest.raises(EdgepeerError, match="emulated network: has ended"):
            await network.cut(("a", "b"))


async def test_up_and_down_may_differ() -> None:
    async with opened("namespaces") as network, agents(network, "a", "b") as (a, b):
        await network.shape("a", LinkShape.parse("5mbit/40mbit"))
        size = 250_000
        assert await a.transfer(b, size) >= (size - 20_000) * 8 / 5e6
        times = [await b.transfer(a, size)]
        async with asyncio.timeout(DEADLINE_S):
            while times[-1] >= size * 8 / 5e6:  # somebody was held up
                times.append(await b.transfer(a, size))
        assert min(times) >= (size - 50_000) * 8 / 40e6


async def arrived(sender: Agent, receiver: Agent, bursts: int) -> int:
    """How many of that many times 100 datagrams arrive; no more at once than a socket holds."""
    for burst in range(bursts):
        await sender.tell(receiver, *("one of many",) * 100)
        await sender.tell(receiver, *(f"end {burst}",) * 20)
        await receiver.hears(f"end {burst}", sender)
    return receiver.got.count(("one of many", sender.address))


async def test_what_a_lossy_link_takes_is_counted_and_comes_all_the_same() -> None:
    async with opened("namespaces") as network, agents(network, "a", "b") as (a, b):
        assert await network.lost("a") == 0
        await network.shape("a", LinkShape(loss=0.1))
        lost = 2000 - await arrived(a, b, bursts=20)
        back = 2000 - await arrived(b, a, bursts=20)
        assert 100 < lost < 300  # seven standard deviations
        assert 100 < back < 300
        assert lost + back <= await network.lost("a") <= lost + back + 800
        assert await network.lost("b") == 0
        await network.shape("a", LinkShape(loss=0.02))
        assert await network.lost("a") == 0
        size = 2_000_000
        assert await b.transfer(a, size) > 0  # nothing is lost to who asks again
        assert await network.lost("a") > 0.005 * size / 1448  # packets, not writes of many
        await network.shape("a", LinkShape())
        assert await network.lost("a") == 0


async def test_jitter_comes_in_bursts_and_keeps_the_order() -> None:
    async with opened("namespaces") as network, agents(network, "a", "b") as (a, b):
        await network.shape("a", LinkShape(delay_s=0.02, jitter_s=0.05))
        times = [await a.transfer(b, 1) for _ in range(20)]
        assert min(times) >= 0.02
        assert max(times) >= 0.03  # by chance of 5e-15 not
        await a.tell(b, *(str(number) for number in range(100)))
        await b.hears("99", a)
        assert [text for text, _ in b.got] == [str(number) for number in range(100)]
        await network.shape("a", LinkShape())
        await a.tell(b, "direct")
        await b.hears("direct", a)


async def test_a_longer_queue_holds_more() -> None:
    """Datagrams of a second, sent at once over a line of 1 Mbit/s: the queue is all that there is to hold them."""
    async with opened("namespaces") as network, agents(network, "a", "b") as (a, b):
        texts = [f"{number:1200}" for number in range(100)]
        await network.shape("b", LinkShape(down_bits_per_s=1e6, queue_s=0.6))
        await a.tell(b, *texts)
        await b.hears(texts[50], a)
        await network.shape("b", LinkShape(down_bits_per_s=1e6, queue_s=0.05))
        b.got.clear()
        await a.tell(b, *texts)
        await network.shape("b", LinkShape())  # what still waits is lost
        await a.tell(b, "end")
        await b.hears("end", a)
        assert len(b.got) < 50


@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
async def test_who_is_shut_dials_out_and_is_not_dialled(mode: Mode) -> None:
    async with opened(mode, shut=("a", "b")) as network, agents(network, *PEERS) as (a, b, c):
        assert await network.knocks("a") == 0
        assert await a.transfer(c, 100_000) > 0
        knocking = asyncio.create_task(c.transfer(a, 1))
        async with asyncio.timeout(DEADLINE_S):
            while not await network.knocks("a"):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not knocking.done()
        knocking.cancel()
        assert await network.knocks("b") == await network.knocks("c") == 0
        await network.shut("a")  # once more, which changes nothing
        assert await network.knocks("a") > 0
        assert await network.cuts() == {}
        await b.tell(a, "datagrams pass")
        await a.hears("datagrams pass", b)


async def test_to_be_shut_takes_a_firewall() -> None:
    with pytest.raises(ConfigError, match="can only dial out take a firewall"):
        async with open_network(PEERS, mode="none", shut=["a"]):
            raise AssertionError("opened")
    async with open_network(PEERS, mode="none") as network:
        with pytest.raises(ConfigError, match="link faults and NAT need"):
            await network.shut("a")
        assert await network.knocks("a") == await network.lost("a") == 0


async def test_a_full_queue_holds_up_nobody_else() -> None:
    """What waits in front of b's line for ten seconds is nothing to who talks with others."""
    async with opened("namespaces", LinkShape(delay_s=0.001)) as network, agents(network, *PEERS) as (a, b, c):
        await network.shape("b", LinkShape(down_bits_per_s=1e6, delay_s=0.001, queue_s=10.0))
        await a.tell(b, "here I am")  # what is sent before addresses are known is not queued but dropped
        await b.hears("here I am", a)
        await a.tell(b, *(f"{number:1200}" for number in range(1000)))
        await c.transfer(a, 1)
        assert len(b.got) < 500
        await b.hears_many(100)
