"""How long devices take: distributions, traces, and the same again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgepeer.coding.speed import Speed, parse_speed
from edgepeer.errors import ConfigError


def times(speed: Speed, count: int = 4000, seed: int = 0) -> list[float]:
    return [speed.seconds(f"p{k % 10}", k // 100, k % 100, seed) for k in range(count)]


def test_none_and_constant() -> None:
    assert set(times(parse_speed("none"))) == {0.0}
    assert set(times(parse_speed("constant:0.25"))) == {0.25}


@pytest.mark.parametrize(("text", "shift"), [("exponential:0.2", 0.0), ("shifted:0.5,0.2", 0.5)])
def test_distributions(text: str, shift: float) -> None:
    sample = np.sort(np.array(times(parse_speed(text))) - shift)
    assert sample[0] >= 0
    at = np.arange(1, len(sample) + 1) / len(sample)
    assert np.abs(1 - np.exp(-sample / 0.2) - at).max() < 1.63 / np.sqrt(len(sample))  # Kolmogorov, 1 %


def test_the_same_for_everybody_who_asks_and_different_for_all_else() -> None:
    speed = parse_speed("exponential:1")
    assert times(speed) == times(parse_speed("exponential:1"))
    assert len(set(times(speed))) == 4000
    assert not set(times(speed)) & set(times(speed, seed=1))
    assert speed.seconds("a", 1, 2) == pytest.approx(1.3333, abs=10)


def test_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("# device, rounds\n0.1, 0.2 0.3\n\n1 2\n")
    speed = parse_speed(f"trace:{path}")
    lines = {tuple(speed.seconds(f"p{k}", round_, 7) for round_ in range(1, 7)) for k in range(30)}
    assert lines == {(0.1, 0.2, 0.3, 0.1, 0.2, 0.3), (1.0, 2.0, 1.0, 2.0, 1.0, 2.0)}
    assert str(speed) == f"trace:{path}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slow",
        "constant",
        "constant:",
        "constant:-1",
        "constant:1,2",
        "shifted:1",
        "exponential:inf",
        "none:1",
        "none:",
        "trace:",
    ],
)
def test_what_is_no_model(text: str) -> None:
    with pytest.raises(ConfigError, match="must be none, constant:S"):
        parse_speed(text)


def test_a_trace_without_an_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero can't be read: has more than 16 MiB"):
        parse_speed("trace:/dev/zero")


def test_traces_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with pytest.raises(ConfigError, match="can't be read"):
        parse_speed(f"trace:{path}")
    path.write_text("0.1\nfast\n")
    with pytest.raises(ConfigError, match="line 2: must be seconds"):
        parse_speed(f"trace:{path}")
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="no times"):
        parse_speed(f"trace:{path}")
