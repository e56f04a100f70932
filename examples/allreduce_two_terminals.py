"""The mean of two vectors, one from each of two terminals.

    terminal 1:  python examples/allreduce_two_terminals.py --embedded-broker --value 1
    terminal 2:  python examples/allreduce_two_terminals.py --value 3

Both print the same mean, [2. 2. 2. 2.]. With --peers 3 it waits for a third terminal. With --broker, all of them
meet at a broker of yours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import numpy as np

import edgepeer


async def main(arguments: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if arguments.embedded_broker:
            from edgepeer.fabric.address import BrokerAddress
            from edgepeer.fabric.broker import EmbeddedBroker

            # Entered first, so it ends last: this peer leaves before its broker goes.
            place = BrokerAddress.parse(arguments.broker)
            broker = await stack.enter_async_context(
                EmbeddedBroker(place.host, place.port, insecure=arguments.insecure)
            )
            print(f"broker ready at {broker.address}", flush=True)
            arguments.broker = str(broker.address)

        peer = await stack.enter_async_context(edgepeer.Peer(arguments.broker, fabric="two-terminals"))
        print(f"peer {peer.id} waits for {arguments.peers} peers", flush=True)
        view = await peer.ready(peers=arguments.peers, timeout=300)
        print(f"view {view.epoch}: {', '.join(view.ids)}")

        mine = np.full(4, arguments.value, dtype=np.float32)
        outcome = await peer.allreduce(mine)
        print(f"mean {outcome.mean} over {len(outcome.contributors)} peers, exact: {outcome.exact}")
        print(f"took {outcome.seconds * 1e3:.1f} ms, digest {outcome.digest}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="mqtt://127.0.0.1:1883", help="default: %(default)s")
    parser.add_argument("--embedded-broker", action="store_true", help="run the broker in this terminal, too")
    parser.add_argument("--insecure", action="store_true", help="let that broker listen on a network that you trust")
    parser.add_argument("--value", type=float, default=1.0, help="what this terminal's vector holds")
    parser.add_argument("--peers", type=int, default=2, help="how many terminals to wait for")
    asyncio.run(main(parser.parse_args()))
