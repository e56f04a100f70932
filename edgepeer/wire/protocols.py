"""The names of the protocols that a fabric's rounds can run by. All its peers use one, and say which in their Hello."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["PROTOCOLS", "STATIC_TIMEOUT_S", "ProtocolName"]

ProtocolName: TypeAlias = Literal["ft-tree", "ft-tree-static", "tree", "ring", "ps-sync", "ps-async"]
"""ft-tree is what edgepeer is about; the others are baselines."""
PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)
STATIC_TIMEOUT_S: Final = 0.5
"""The shorter of the two timeouts that ft-tree-static is measured with in the thesis (Padrão 2020, §7.2)."""
