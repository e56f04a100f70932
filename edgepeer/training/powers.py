"""Powers and cosines that every machine computes alike, to the last bit.

What the C library makes of `pow` and `cos` may be off in the last bit, and not by the same on processors with another
set of instructions. Here is integer arithmetic instead, with more digits than a float64 has.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Final

__all__ = ["half_wave", "power"]

_WITH: Final = Context(prec=34)
_PI: Final = Decimal("3.141592653589793238462643383279502884")


def power(base: float, exponent: float) -> float:
    """`base` to the `exponent`, neither of them negative; 0 to the 0 is 1."""
    if not exponent:
        return 1.0
    return float(_WITH.power(Decimal(base), Decimal(exponent)))


def half_wave(passed: float) -> float:
    """The cosine of `passed` times pi, for 0 to 1."""
    square = _WITH.power(_WITH.multiply(_PI, Decimal(passed)), 2)
    total = term = Decimal(1)
    for number in range(1, 40, 2):
        term = _WITH.divide(_WITH.multiply(term, -square), Decimal(number * (number + 1)))
        total = _WITH.add(total, term)
    return float(total)
