"""Learning rates and steps are the same bits on processors with other instructions."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from edgepeer.training.powers import half_wave, power

RATES = """
import hashlib, struct
from edgepeer.training.optimizers import unbiased
from edgepeer.training.schedules import parse_schedule
digest = hashlib.sha256()
for text in ("step:every=1,factor=0.999", "exponential:steps=100,rate=0.9", "cosine", "polynomial:power=0.9"):
    schedule = parse_schedule(text, rounds=10_000)
    for step in range(10_000):
        digest.update(struct.pack("<d", schedule.rate(0.1, step)))
for step in range(1, 10_000):
    digest.update(struct.pack("<d", unbiased(0.9, 0.999, step)))
print(digest.hexdigest())
"""


def test_rates_are_the_same_on_every_processor() -> None:
    """The C library has other functions for processors that can't multiply and add in one."""
    found = set()
    for without in ("", "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX2_Usable,-FMA_Usable"):
        environment = {**os.environ, "GLIBC_TUNABLES": without}
        done = subprocess.run(
            [sys.executable, "-c", RATES], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.parametrize("base", [0.0, 1e-9, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("exponent", [0, 0.3, 1, 7, 1e7])
def test_powers(base: float, exponent: float) -> None:
    assert power(base, exponent) == pytest.approx(math.pow(base, exponent), rel=1e-15, abs=1e-300)


def test_half_a_wave() -> None:
    for step in range(1001):
        assert half_wave(step / 1000) == pytest.approx(math.cos(math.pi * step / 1000), abs=1e-15)
    assert (half_wave(0), half_wave(1)) == (1.0, -1.0)
