"""The code that a peer's rounds run by, as the protocol and as the peer itself need it."""

from __future__ import annotations

from functools import cached_property, lru_cache

from edgepeer.coding.code import Code
from edgepeer.coding.spec import parse_code
from edgepeer.coding.wait import parse_wait
from edgepeer.protocol.code import Coding

__all__ = ["CodeInUse"]


class CodeInUse:
    """A code and a policy by name, such as "partial:l=2,replication=3" and "exact".

    Raises:
        ConfigError: there is no such code, or no such policy.
    """

    def __init__(self, code: str, wait: str = "exact") -> None:
        self._spec = parse_code(code)
        self._wait = parse_wait(wait)
        self._built = lru_cache(maxsize=4)(self._spec.build)

    @property
    def blocks(self) -> int:
        """By how many times a worker's vector is shorter than the sum."""
        return self._spec.blocks

    def build(self, workers: int, fanout: int) -> Code:
        """The code for so many workers, in a tree of that fan-out.

        Raises:
            ConfigError: it can't be had for these.
        """
        return self._built(workers, fanout)

    @cached_property
    def for_protocol(self) -> Coding:
        return Coding(
            name=f"{self._spec} {self._wait}",
            build=self.build,
            enough=self._wait.enough,
            deadline_s=self._wait.deadline_s,
        )
