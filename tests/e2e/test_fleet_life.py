"""A fleet from its founding on, in processes of its own: joining, training, eviction, rotation, power cuts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from real_programs import DEADLINE_S, Program, clean_environment, edgepeer

from edgepeer.enrol.strings import JoinString
from edgepeer.peer.round_log import LoggedRound, read_round
from edgepeer.trust.directory import is_joined
from edgepeer.trust.identity import Identity

pytest.importorskip("amqtt", reason="the embedded broker needs it")

BATCH_S = 0.02
"""How long devices compute: rounds that only go on meanwhile leave the machine to the test."""
POWER_CUT = Path(__file__).parents[1] / "enrol" / "power_cut.py"


class Realm:
    """A fleet, its broker and its enrolment service."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.broker_port, self.service_port = free_port(), free_port()
        self.programs: list[Program] = []
        self.secrets: list[bytes] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Realm:
        places = ("--broker", f"127.0.0.1:{self.broker_port}", "--service", f"127.0.0.1:{self.service_port}")
        await self.do("fleet", "init", "greenhouse", *places, "--home", "f")
        await self.open_broker()
        await self.serve()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()
        for program in self.programs:  # shown where the test has failed
            print(f"=== exit status {program.process.returncode}\n{program.everything()}")

    async def run(self, *arguments: object) -> Program:
        program = await self._stack.enter_async_context(edgepeer(*arguments, home=self.home))
        self.programs.append(program)
        return program

    async def open_broker(self) -> Program:
        listen = ("--listen", f"127.0.0.1:{self.broker_port}")
        self.broker = await self.run("broker", "--fleet", "f/broker", *listen)
        await self.broker.said("broker ready at mqtts://")
        return self.broker

    async def serve(self) -> Program:
        self.service = await self.run("fleet", "serve", "--home", "f", "--listen", f"127.0.0.1:{self.service_port}")
        await self.service.said("enrolment of fleet greenhouse ready at")
        return self.service

    async def do(self, *arguments: object, stdin: str = "") -> str:
        """Run something to its good end; what it has printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgepeer", *map(str, arguments)),
            cwd=self.home,
            env=clean_environment(self.home),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode == 0, (arguments, err.decode())
        return out.decode()

    async def json(self, *arguments: object) -> Any:
        return json.loads(await self.do(*arguments, "--json"))

    async def token(self, *more: object) -> str:
        string: str = (await self.json("fleet", "token", "--home", "f", *more))["string"]
        self.secrets += [string[26:].encode(), JoinString.parse(string).secret.hex().encode()]
        return string

    async def join(self, name: str) -> Path:
        where = (f"127.0.0.1:{self.service_port}", "--stdin", "--dir", f"{name}/fleet", "--id", name)
        await self.do("join", *where, stdin=await self.token() + "\n")
        return self.home / name / "fleet"

    async def peer(self, name: str) -> Program:
        log = ("--round-log", self.home / f"{name}.rounds")
        return await self.run("peer", "--state-dir", name, *log, "--device-speed", f"constant:{BATCH_S}")

    async def members(self) -> list[str]:
        status = await self.json("status", "--fleet", "f/operator")
        return status["view"]["members"] if status["view"] else []

    async def until_in(self, *names: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while set(await self.members()) != set(names):
                pass

    def rounds(self, name: str) -> list[LoggedRound]:
        """Those that the peer has taken part in. The end of the last line may not be written yet."""
        lines = (self.home / f"{name}.rounds").read_bytes().splitlines(keepends=True)
        return [read_round(line) for line in lines if line.endswith(b"\n")]

    async def states(self) -> dict[str, str]:
        members = (await self.json("fleet", "list", "--home", "f"))["members"]
        return {member["name"]: member["state"] for member in members}


def last_round(training: Program) -> int:
    lines = [line for line in training.out if line.startswith("round ")]
    return int(lines[-1].split("/")[0].removeprefix("round ")) if lines else 0


async def more_rounds(training: Program, count: int) -> None:
    began = last_round(training)
    await training.until(lambda: last_round(training) >= began + count)


@pytest.mark.slow
async def test_a_fleet_trains_evicts_and_rotates(tmp_path: Path) -> None:
    async with Realm(tmp_path) as realm:
        names = ["p0", "p1", "p2", "p3"]
        for name in names:
            await realm.join(name)
        peers = {name: await realm.peer(name) for name in names}
        await realm.until_in(*names)
        job = ("--trainer", "numpy", "--peers", 4, "--rounds", 1_000_000, "--eval-every", 100_000)
        training = await realm.run("train", "--fleet", "f/operator", *job)
        await more_rounds(training, 20)

        # Off every peer within two seconds: they drop its links at once, and the coordinator makes a view without it.
        # They are counted in rounds, which stand still where a process does that they wait for.
        assert (await realm.json("fleet", "evict", "p3", "--home", "f"))["told"]
        told_at = realm.rounds("p0")[-1].round
        await asyncio.gather(*(peers[name].said("p3 of greenhouse was evicted on ") for name in names[:3]))
        await realm.until_in(*names[:3])
        await more_rounds(training, 20)
        without = [each.round for each in realm.rounds("p0") if "p3" not in each.contributors]
        assert min(number for number in without if number > told_at) <= told_at + 2 / BATCH_S
        assert not [why for why in (await realm.json("status", "--fleet", "f/operator"))["refused"] if "p3" in why]

        # An empty broker, and all of p3 that was lost, change nothing: it stays out.
        realm.broker.signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):  # it has ended, if it was told that it is out
            peers["p3"].signal(signal.SIGKILL)
        assert await realm.broker.end() == 0, realm.broker.everything()
        await peers["p3"].end()
        await realm.open_broker()
        again = await realm.peer("p3")
        await again.said("p3 of greenhouse was evicted|this device has been evicted")
        await more_rounds(training, 20)

        # All take certificates of a new authority, and the old one goes, while rounds go on.
        await realm.until_in(*names[:3])
        first = last_round(training) + 1
        await realm.json("fleet", "rotate-ca", "--home", "f")
        async with asyncio.timeout(DEADLINE_S):
            while {state for name, state in (await realm.states()).items() if name != "p3"} != {"member"}:
                pass
        await more_rounds(training, 20)
        assert (await realm.json("fleet", "rotate-ca", "--finish", "--home", "f"))["left_out"] == []
        # Nor is the service needed.
        realm.service.signal(signal.SIGTERM)
        assert await realm.service.end() == 0, realm.service.everything()
        await more_rounds(training, 20)
        assert training.process.returncode is None, training.everything()
        last = last_round(training)  # which one peer has told of: the others are about to write it down
        await training.until(lambda: all(realm.rounds(name)[-1].round >= last for name in names[:3]))
        for name in names[:3]:  # no round is lost, and none is anybody's missing
            rounds = [each for each in realm.rounds(name) if first <= each.round <= last]
            assert [each.round for each in rounds] == [*range(first, last + 1)]
            assert {(each.exact, frozenset(each.contributors)) for each in rounds} == {(True, frozenset(names[:3]))}
        await realm.until_in(*names[:3])
        for name in names[:3]:
            assert "Traceback" not in peers[name].everything()
        said = "\n".join(program.everything() for program in realm.programs).encode()
        for secret in realm.secrets:
            assert secret not in said


@pytest.mark.slow
async def test_a_job_that_was_left_alone_outlives_the_authority(tmp_path: Path) -> None:
    """Who joins after the rotation takes part in it."""
    async with Realm(tmp_path) as realm:
        await realm.join("p0")
        await realm.peer("p0")
        job = ("--trainer", "numpy", "--rounds", 1_000_000, "--eval-every", 100_000)
        training = await realm.run("train", "--fleet", "f/operator", *job)
        await more_rounds(training, 5)
        training.signal(signal.SIGINT)
        assert await training.end() == 130, training.everything()
        await realm.json("fleet", "rotate-ca", "--home", "f")
        async with asyncio.timeout(DEADLINE_S):
            while {*(await realm.states()).values()} != {"member"}:
                pass
        assert (await realm.json("fleet", "rotate-ca", "--finish", "--home", "f"))["left_out"] == []
        await realm.join("p1")
        await realm.peer("p1")
        async with asyncio.timeout(DEADLINE_S):
            while not (tmp_path / "p1.rounds").exists() or not realm.rounds("p1"):
                await realm.states()
        assert {*realm.rounds("p1")[-1].contributors} == {"p0", "p1"}
        assert not (await realm.json("status", "--fleet", "f/operator"))["refused"]


@pytest.mark.slow
async def test_a_fleet_moves_while_it_trains(tmp_path: Path) -> None:
    async with Realm(tmp_path) as realm:
        names = ["p0", "p1", "p2", "p3"]
        for name in names:
            await realm.join(name)
        peers = {name: await realm.peer(name) for name in names[:3]}
        await realm.until_in(*names[:3])
        job = ("--trainer", "numpy", "--peers", 3, "--rounds", 1_000_000, "--eval-every", 100_000)
        training = await realm.run("train", "--fleet", "f/operator", *job)
        await more_rounds(training, 5)

        # The broker alone: members ask the service.
        realm.broker.signal(signal.SIGTERM)
        assert await realm.broker.end() == 0, realm.broker.everything()
        realm.broker_port = free_port()
        place = f"127.0.0.1:{realm.broker_port}"
        same = ("--service", f"127.0.0.1:{realm.service_port}")
        assert (await realm.json("fleet", "move", "--home", "f", "--broker", place, *same))["changed"]
        await realm.open_broker()
        await asyncio.gather(*(peer.said(f"broker mqtts://{place}: connected again") for peer in peers.values()))
        await more_rounds(training, 5)
        await realm.until_in(*names[:3])
        # One that was off meanwhile.
        peers["p3"] = await realm.peer("p3")
        await realm.until_in(*names)

        # Both: they are told.
        peers["p3"].signal(signal.SIGTERM)
        assert await peers["p3"].end() == 0
        for program in (realm.broker, realm.service):
            program.signal(signal.SIGTERM)
            assert await program.end() == 0, program.everything()
        realm.broker_port, realm.service_port = free_port(), free_port()
        place, service = (f"127.0.0.1:{port}" for port in (realm.broker_port, realm.service_port))
        said = await realm.do("fleet", "move", "--home", "f", "--broker", place, "--service", service)
        assert f"\n  edgepeer join {service}\n" in said
        await realm.open_broker()
        await realm.serve()
        for name in names:
            assert (await realm.json("join", service, "--dir", f"{name}/fleet"))["changed"]
        peers["p3"] = await realm.peer("p3")
        await realm.until_in(*names)
        await more_rounds(training, 5)
        await realm.join("p4")
        await realm.peer("p4")
        await realm.until_in(*names, "p4")
        assert training.process.returncode is None, training.everything()
        for name in names:
            assert "Traceback" not in peers[name].everything()
            rounds = [each.round for each in realm.rounds(name)]
            assert rounds == sorted({*rounds})
        rounds = [each.round for each in realm.rounds("p0")]
        assert rounds == [*range(1, len(rounds) + 1)]


@pytest.mark.slow
async def test_models_are_fetched_from_a_fleet(tmp_path: Path) -> None:
    async with Realm(tmp_path) as realm:
        names = ["p0", "p1", "p2", "p3"]
        for name in names:
            await realm.join(name)
            await realm.peer(name)
        await realm.until_in(*names)
        for more in (("--trainer", "numpy"), ("--split", "none:m=2,n=2")):
            said = await realm.do(
                "train", "--fleet", "f/operator", "--peers", 4, "--rounds", 5, "--save", "m.npz", *more
            )
            assert "wrote m.npz" in said
            (tmp_path / "m.npz").unlink()


async def test_a_join_string_on_standard_input_is_in_no_list_of_processes(tmp_path: Path) -> None:
    string = JoinString(bytes(16), b"toke", b"secret secret se").text()
    come = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        come.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgepeer", "join", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "--stdin"),
            *("--dir", "d"),
            cwd=tmp_path,
            env=clean_environment(tmp_path),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(f"{string}\n".encode())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await come.wait()
                for file in ("cmdline", "environ"):
                    assert string.encode() not in (tmp_path / f"/proc/{process.pid}" / file).read_bytes()
                process.send_signal(signal.SIGINT)
                assert string.encode() not in await process.stderr.read()
                assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        server.close()


@contextlib.asynccontextmanager
async def power_cuts(*arguments: object, home: Path) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """What does it, with a power cut at that step; whether it came to its end before."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, POWER_CUT, *map(str, arguments)),
        cwd=home,
        env=clean_environment(home),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    async def cut(step: int) -> bool:
        asked.write(b"%d\n" % step)
        async with asyncio.timeout(DEADLINE_S):
            status = int(await told.readline())
        assert status in (0, -signal.SIGKILL)
        return status == 0

    try:
        yield cut
    finally:
        asked.close()
        async with asyncio.timeout(DEADLINE_S):
            await process.wait()


@pytest.mark.slow
async def test_power_cuts_while_a_device_joins(tmp_path: Path) -> None:
    async with Realm(tmp_path) as realm:
        string, step = await realm.token(), 0
        directory = tmp_path / "p1" / "fleet"
        arguments = ("join", f"127.0.0.1:{realm.service_port}", string, "--dir", "p1/fleet", "--id", "p1")
        async with power_cuts(*arguments, home=tmp_path) as cut:
            # The last cut that does harm is before the certificate is written: who has one does nothing any more.
            while not is_joined(directory) and not await cut(step):
                step += 1
            assert step > 10
            assert await cut(-1)
        assert Identity.load(directory).holder.id == "p1"
        assert {name for name in await realm.states() if name[0] == "p"} == {"p1"}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["init", "token", "evict", "rotate-ca"])
async def test_power_cuts_while_the_fleet_is_changed(tmp_path: Path, verb: str) -> None:
    founding = ("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f", "--operator", "alice")
    arguments: tuple[object, ...] = {
        "init": founding,
        "token": ("fleet", "token", "--home", "f"),
        "evict": ("fleet", "evict", "broker:broker", "--home", "f", "--timeout", "0.1"),
        "rotate-ca": ("fleet", "rotate-ca", "--home", "f", "--timeout", "0.1"),
    }[verb]
    async with power_cuts(*founding, home=tmp_path) as found, power_cuts(*arguments, home=tmp_path) as cut:
        if verb != "init":
            assert await found(-1)
        step = 0
        while not await cut(step) and not changed(tmp_path / "f" / "fleet.db", verb):
            step += 1
        assert step > 5
        assert await found(-1)  # what is missing of the directories is made
    assert Identity.load(tmp_path / "f" / "operator").holder.id == "alice"


def changed(path: Path, verb: str) -> bool:
    """Whether the change was made, after which the same is another; it must be a whole one."""
    if not path.exists():
        return False
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not connection.execute("SELECT * FROM sqlite_master").fetchall():
            return False
        facts = dict(connection.execute("SELECT name, value FROM facts").fetchall())
        out, authorities, tokens = (
            connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0]
            for what in ("certificates WHERE out = 1", "authorities", "tokens")
        )
        assert int(facts["number"]) == authorities + out
        assert len(facts["evictions"]) > 100
        return bool({"init": False, "token": tokens, "evict": out, "rotate-ca": authorities == 2}[verb])
    finally:
        connection.close()
