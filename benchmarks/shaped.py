"""Links of a given rate and delay for a benchmark's processes, each in a network namespace of its own."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fleet import rank_names

from edgepeer.emulation.network import EmulatedNetwork, LinkShape, open_network
from edgepeer.errors import ConfigError

__all__ = ["link_name", "shaped_network"]


@contextmanager
def shaped_network(peers: int, link: str) -> Iterator[EmulatedNetwork]:
    """A namespace for each rank of a fleet, with such a link."""
    with asyncio.Runner() as runner:
        opening = open_network(rank_names(peers), link=LinkShape.parse(link))
        network = runner.run(opening.__aenter__())
        print(network.description, file=sys.stderr)
        try:
            yield network
        finally:
            runner.run(opening.__aexit__(None, None, None))


def link_name(text: str) -> str:
    """Check the name of a link, such as 100mbit,5ms, for argparse."""
    try:
        LinkShape.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
