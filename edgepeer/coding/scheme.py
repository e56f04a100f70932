"""How a run's rounds are coded: which code, and when a round may be closed. Made once, and handed through.

Everybody who needs the code asks one scheme for it, so each is built once however many ask.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from edgepeer.coding.code import GradientCode
from edgepeer.coding.spec import CodeSpec, parse_code
from edgepeer.coding.wait import WaitPolicy, parse_wait
from edgepeer.errors import ConfigError

__all__ = ["CodingScheme", "parse_scheme"]

_REMEMBERED: Final = 8
"""Codes, for other numbers of workers: views come and go."""


class CodingScheme:
    """A code for any number of workers, and the policy by which the root closes a round."""

    def __init__(self, spec: CodeSpec, wait: WaitPolicy) -> None:
        self.spec = spec
        self.wait = wait
        self._build = lru_cache(maxsize=_REMEMBERED)(spec.build)

    def __repr__(self) -> str:
        return f"CodingScheme({self.name!r})"

    @property
    def name(self) -> str:
        """The same for the same scheme, whatever it was made of; peers of one run must have one."""
        return f"{self.spec} {self.wait}"

    @property
    def blocks(self) -> int:
        """By how many times a worker's vector is shorter than the sum."""
        return self.spec.blocks

    @property
    def deadline_s(self) -> float | None:
        """So long after it has begun the root closes a round in any case; None: never."""
        return self.wait.deadline_s

    def enough(self, error: float) -> bool:
        """Whether the root may close a round whose sum has that expected squared error."""
        return self.wait.enough(error)

    def build(self, workers: int, fanout: int) -> GradientCode:
        """The code for so many workers, in a tree of that fan-out.

        Raises:
            ConfigError: it can't be had for these.
        """
        return self._build(workers, fanout)


def parse_scheme(code: str, wait: str = "exact") -> CodingScheme | None:
    """The scheme that two texts name, such as "partial:l=2,replication=3" and "error<0.5"; None: rounds are not coded.

    Raises:
        ConfigError: there is no such code or policy, or a policy without a code.
    """
    spec, policy = parse_code(code), parse_wait(wait)
    if spec.kind != "none":
        return CodingScheme(spec, policy)
    if str(policy) != "exact":
        raise ConfigError(f"wait = {wait}: only coded rounds can end early; add a code, such as first:s=1")
    return None
