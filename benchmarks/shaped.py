"""Links of given kinds for a benchmark's processes, each in a network namespace of its own."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fleet import rank_names

from edgepeer.emulation.network import EmulatedNetwork, open_network, parse_links
from edgepeer.errors import ConfigError

__all__ = ["link_name", "shaped_network"]

_MOST = 1000
"""Ranks that a link may name, before it is known how many there are."""


@contextmanager
def shaped_network(peers: int, links: Sequence[str]) -> Iterator[EmulatedNetwork]:
    """A namespace for each rank of a fleet, with such links. Raises ConfigError."""
    names = rank_names(peers)
    with asyncio.Runner() as runner:
        opening = open_network(names, mode="namespaces", links=parse_links(links, names))
        network = runner.run(opening.__aenter__())
        print(network.description, file=sys.stderr)
        try:
            yield network
        finally:
            runner.run(opening.__aexit__(None, None, None))


def link_name(text: str) -> str:
    """Check the name of a link, such as 100mbit,5ms or 3,7,11=10mbit,5ms, for argparse."""
    try:
        parse_links([text], rank_names(_MOST))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
