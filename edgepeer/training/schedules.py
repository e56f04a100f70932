"""Learning rates over the steps of a run, by name, as both trainers use them.

constant
step:every=50,factor=0.5        times the factor after every so many steps
exponential:steps=100,rate=0.9  times the rate over so many steps, a little each step
inverse-time:steps=100,rate=0.5 divided by 1 + rate, 1 + 2 rate, ... after so many steps each, a little each step
cosine:steps=200,alpha=0        half a wave from the learning rate down to alpha times it; steps: else the job's rounds
polynomial:steps=200,end=0,power=1  down to `end` times the learning rate; steps: else the job's rounds

All take warmup=N: the first N steps go up to the learning rate in a line, and what is said above begins then.
The formulas are those of Keras' schedules, in float64; a rate is a pure function of the step, and the same on every
machine, so whoever joins goes on with the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgepeer.training.named import Named, Range, parse_named
from edgepeer.training.powers import half_wave, power

__all__ = ["SCHEDULES", "RateSchedule", "parse_schedule"]

_STEPS: Final = Range(1, 10_000_000, whole=True)
_WARMUP: Final = {"warmup": Range(0, 10_000_000, whole=True)}

SCHEDULES: Final[dict[str, dict[str, Range | None]]] = {
    "constant": {**_WARMUP},
    "step": {"every": _STEPS, "factor": Range(0, 1, above=True), **_WARMUP},
    "exponential": {"steps": _STEPS, "rate": Range(0, 1, above=True), **_WARMUP},
    "inverse-time": {"steps": _STEPS, "rate": Range(0, 1000), **_WARMUP},
    "cosine": {"steps": _STEPS, "alpha": Range(0, 1), **_WARMUP},
    "polynomial": {"steps": _STEPS, "end": Range(0, 1), "power": Range(0, 10, above=True), **_WARMUP},
}
_USUAL: Final = {"every": 50.0, "factor": 0.5, "alpha": 0.0, "end": 0.0, "power": 1.0, "warmup": 0.0}
_USUAL_RATE: Final = {"exponential": 0.9, "inverse-time": 0.5}


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """One of them, over so many rounds."""

    named: Named
    rounds: int

    def rate(self, base: float, step: int) -> float:
        """The learning rate of a step, from 0 on, where `base` is what the user called the learning rate."""
        given = self.named.values
        warmup = int(given.get("warmup", _USUAL["warmup"]))
        if step < warmup:
            return base * (step + 1) / (warmup + 1)
        step -= warmup
        return base * self._share(step, max(1, self.rounds - warmup))

    def _share(self, step: int, rest: int) -> float:
        given, kind = self.named.values, self.named.kind
        if kind == "constant":
            return 1.0

        def of(name: str) -> float:
            return float(given.get(name, _USUAL[name]))

        if kind == "step":
            return power(of("factor"), step // int(of("every")))
        if kind in ("exponential", "inverse-time"):
            rate, passed = float(given.get("rate", _USUAL_RATE[kind])), step / given.get("steps", 100)
            return power(rate, passed) if kind == "exponential" else 1 / (1 + rate * passed)
        passed = min(1.0, step / given.get("steps", rest))
        if kind == "cosine":
            return (1 - of("alpha")) * 0.5 * (1 + half_wave(passed)) + of("alpha")
        return (1 - of("end")) * power(1 - passed, of("power")) + of("end")


def parse_schedule(text: str, *, rounds: int) -> RateSchedule:
    """The schedule that a text names, for a job of so many rounds.

    Raises:
        ConfigError: it names none.
    """
    return RateSchedule(parse_named("schedule", text, SCHEDULES), rounds)
