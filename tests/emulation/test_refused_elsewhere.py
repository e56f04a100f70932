"""Peers that nobody can dial, as processes in networks of their own: what refuses there is another machine."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import AsyncExitStack
from typing import Any

import pytest

from edgepeer.emulation.network import BROKER, open_network
from edgepeer.errors import ConfigError

DEADLINE_S = 120.0
ANEW_S = 20.0
"""After so long, whoever may begin a generation alone has."""
PROGRAM = """
import asyncio, json, sys
import numpy as np
from edgepeer import Peer
from edgepeer.errors import EdgepeerError

async def main(broker, name, listen, patience):
    async with Peer(broker, "lab", peer_id=name, listen=listen, insecure=True) as peer:
        await peer.ready(1, timeout=60)
        print(json.dumps(["", []]), flush=True)
        await peer.ready(3, timeout=60)
        while True:
            try:
                outcome = await peer.allreduce(np.ones(100, np.float32), timeout=float(patience))
                said = [outcome.generation, list(outcome.contributors)]
            except EdgepeerError as error:
                said = [type(error).__name__, str(error)]
            print(json.dumps(said), flush=True)
            await asyncio.sleep(0.05)  # as a user's program computes between rounds; no test waits by it

asyncio.run(main(*sys.argv[1:]))
"""


async def said(process: Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def until(process: Process, contributors: list[str]) -> str:
    """The generation in which it first has a round of these."""
    while sorted((found := await said(process))[1]) != contributors:
        pass
    return str(found[0])


@pytest.mark.slow
async def test_a_head_that_is_cut_off_does_not_take_those_behind_nat_for_ended() -> None:
    """By default a peer listens on its loopback, and says so. There is one here as well, where nobody listens."""
    listens = {"a": "{}:7700", "c": "127.0.0.1:0", "e": "127.0.0.1:0"}
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        try:
            network = await stack.enter_async_context(open_network(tuple(listens), mode="namespaces"))
        except ConfigError as error:
            pytest.skip(str(error))

        async def run(*command: str) -> Process:
            process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)

            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                await process.communicate()

            stack.push_async_callback(end)
            return process

        place = f"{network.broker_address()}:1883"
        edgepeer = (sys.executable, "-m", "edgepeer")
        await run(*network.broker_prefix(), *edgepeer, "broker", "--listen", place, "--insecure")
        program = (sys.executable, "-c", PROGRAM, f"mqtt://{place}")
        peers: dict[str, Process] = {}
        for name, listen in listens.items():
            at = listen.format(network.address(name))
            peers[name] = await run(*network.prefix(name), *program, name, at, str(ANEW_S))
            if name == "a":
                assert (await said(peers[name]))[1] == []  # it is in a view by now, at the head, and stays there
        first = await until(peers["a"], ["a", "c", "e"])
        others = [("a", "c"), ("c", "a"), ("a", "e"), ("e", "a")]
        await network.cut(*others, ("a", BROKER))
        assert await until(peers["c"], ["c", "e"]) == first
        while (last := await said(peers["a"]))[0] == first:
            assert (last[1][0], sorted(last[1])) == ("a", ["a", "c", "e"])
        assert last[0] == "RoundTimeout"
        # The cut falls anywhere in a round: what one of them had sent before is here.
        assert re.search(r"waiting for (c|e)\b", last[1]), last[1]
