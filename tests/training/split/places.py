"""Where soft errors may happen."""

from __future__ import annotations

from edgepeer.training.split.faults import Place
from edgepeer.training.split.network import Network


def chances(network: Network) -> list[tuple[Place, str]]:
    """Every place in every step."""
    in_steps: tuple[Place, ...] = ("product", "encoding", "decoded", "activation", "verdict")
    in_updates: tuple[Place, ...] = ("stored", "encoding")
    return [
        *((place, str(step)) for step in network.steps() for place in in_steps),
        *((place, f"update {layer}") for layer in range(network.layers) for place in in_updates),
    ]
