"""What split training refuses, in one line that says what would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import ConfigError, ModelError
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.faults import ErrorInjector, PlannedError, SoftErrors, Where, parse_flip, parse_soft_errors
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.replicate import Replicate
from edgepeer.training.split.sparsity import Sparsity, parse_sparsity
from edgepeer.training.split.uncoded import Uncoded

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
NET = Network(sizes=(6, 5, 3), dtype=DOUBLE)
WIDE = Network(sizes=(784, 1000, 10), dtype=SINGLE)
TALL = Network(sizes=(784, 1000, 40), dtype=SINGLE)


def NONE(iteration: int) -> tuple[Any, Any]:
    raise AssertionError


WISHES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Network(sizes=(4,)), "inputs and outputs"),
    (lambda: Network(sizes=(4, 0)), "1 or more"),
    (lambda: parse_split("codenet:m=2,n=2,t=1,t=2", SINGLE), "t is given twice"),
    (lambda: parse_split("codenet:m=100,n=100", SINGLE), "takes 10400 nodes, and 4096 are the most; take fewer blocks"),
    (lambda: parse_split("codenet:m=1,n=1,t=500", SINGLE), "has 1001 lines of nodes, and 80 are the most"),
    (lambda: parse_split("polydot:m=1000,n=1000,d=1000", SINGLE), "64 are the most"),
    (lambda: parse_split("polydot:m=1,n=1,errors=60", SINGLE), "takes 121 nodes"),
    (lambda: parse_split("polydot:m=2,n=2,nodes=1000", SINGLE), "takes 1000 nodes"),
    (lambda: parse_flip("1@2:kind=nan,kind=flip"), "kind is given twice"),
    (lambda: parse_soft_errors("p=0.1,p=0.2"), "p is given twice"),
    (lambda: Network(sizes=(4, 3, 2), activation="gelu"), "take one of linear, relu"),
    (lambda: Network(sizes=(4, 3, 2), activation="cosine"), "only linear, relu"),
    (lambda: Network(sizes=(4, 3, 2), activation="softmax"), "for the output only"),
    (lambda: Network(sizes=(4, 3, 2), activation="elu:alpha=0"), "above 0"),
    (lambda: Network(sizes=(4, 3, 2), activation=("relu", "relu")), "1 hidden layers; give one for each"),
    (lambda: Network(sizes=(4, 3, 2), bias=(True,)), "2 layers; give one for each"),
    (lambda: Network(sizes=(4, 2), output="mish", objective="mse"), "doesn't follow from its value"),
    (lambda: Network(sizes=(4, 2), objective="hinge"), "must be auto, crossentropy"),  # type: ignore[arg-type]
    (lambda: Network(sizes=(4, 2), objective="mae"), "take linear for that"),
    (lambda: Network(sizes=(4, 2), output="linear", objective="crossentropy"), "is of softmax; take that"),
    (lambda: Network(sizes=(4, 2), output="tanh", objective="binary_crossentropy"), "is of sigmoid; take that"),
    (lambda: Network(sizes=(4, 3, 2), dropout=1), "from 0 to below 1"),
    (lambda: Network(sizes=(4, 3, 2), dropout=(0.1, 0.2)), "give one for each, or one for all"),
    (lambda: Network(sizes=(4, 2), sparsity=Sparsity()), "0 hidden layers"),
    (lambda: Network(sizes=(4, 3, 3, 2), activation="sigmoid", sparsity=Sparsity()), "say of which with layer=0"),
    (lambda: Network(sizes=(4, 3, 2), activation="sigmoid", sparsity=Sparsity(layer=1)), "hidden layers are 0 to 0"),
    (lambda: Network(sizes=(4, 3, 2), sparsity=Sparsity()), "need sigmoid"),
    (lambda: Network(sizes=(4, 3, 2), activation="sigmoid", dropout=0.1, sparsity=Sparsity()), "take one of both"),
    (lambda: Sparsity(rho=1), "to below 1"),
    (lambda: parse_sparsity("rho=0"), "above 0"),
    (lambda: parse_sparsity("beta=-1"), "from 0"),
    (lambda: parse_sparsity("lambda=1"), "takes rho, beta, layer"),
    (lambda: Network(sizes=(4, 2), momentum=1), "to below 1"),
    (lambda: Network(sizes=(4, 2), momentum=float("nan")), "to below 1"),
    (lambda: Network(sizes=(4, 2), learning_rate=0), "above 0"),
    (lambda: Network(sizes=(4, 2), learning_rate=float("nan")), "above 0"),
    (lambda: Network(sizes=(4, 2), l2=-1), "0 or more"),
    (lambda: Network(sizes=(4, 2), dtype=np.dtype(np.float16)), "float32 or float64"),
    (lambda: Cell(NET, parse_split("codenet:m=4,n=2", DOUBLE), 0), "take m up to 3"),
    (lambda: Cell(NET, parse_split("none:m=2,n=7", DOUBLE), 0), "n up to 6"),
    (lambda: Cell(NET, parse_split("none:m=2,n=2", SINGLE), 0), "make both alike"),
    (lambda: Cell(NET, parse_split("none:m=2,n=2", DOUBLE), 4), "nodes 0 to 3"),
    (lambda: parse_split("raid:m=2", DOUBLE), "no split 'raid'"),
    (lambda: parse_split("codenet:m=2,q=3", DOUBLE), "takes m, n, t"),
    (lambda: parse_split("codenet:m=two", DOUBLE), "whole number"),
    (lambda: parse_split("codenet:", DOUBLE), "takes m, n, t, not ''"),
    (lambda: parse_split("codenet:m=2,n=2,t=0", DOUBLE), "take none"),
    (lambda: parse_split("codenet:m=0,n=2", DOUBLE), "1 or more blocks"),
    (lambda: parse_split("codenet:m=20,n=20,t=10", SINGLE), "digits"),
    (lambda: parse_split("replicate:m=2,n=2,copies=1", DOUBLE), "2 or more"),
    (lambda: parse_split("polydot:m=5,n=5,nodes=20", DOUBLE), "take 25 nodes"),
    (lambda: parse_split("polydot:m=0,n=5", DOUBLE), "1 or more blocks"),
    (lambda: parse_split("polydot:m=5,n=8,nodes=38", SINGLE), "too few digits to check the backward product"),
    (lambda: parse_split("polydot:m=2,n=2", SINGLE).fit(WIDE, 50_000), "rounding after 50000 updates of float32"),
    (
        lambda: parse_split("codenet:m=20,n=2,t=2", SINGLE).fit(TALL, 3000),
        "fewer blocks, a smaller t or float64",
    ),
    (lambda: parse_split("abft:m=2,n=2", SINGLE).fit(WIDE, 500_000), "take fewer updates, more blocks or float64"),
    (lambda: parse_split("abft:m=2,n=2", SINGLE, "generic"), "is nothing to split abft; it is for codenet and polydot"),
    (lambda: parse_split("none", DOUBLE, "perhaps"), "adversarial or generic"),  # type: ignore[arg-type]
    (lambda: SoftErrors(1.5), "between 0 and 1"),
    (lambda: SoftErrors(-0.1), "between 0 and 1"),
    (lambda: SoftErrors(float("nan")), "between 0 and 1"),
    (lambda: SoftErrors(0.1, frozenset(("O4",))), "O1+O2+O3"),
    (lambda: SoftErrors(0.1, kind="gamma"), "sparse, garbage, flip, nan"),  # type: ignore[arg-type]
    (lambda: PlannedError(0, 0, "cable"), "a place is"),  # type: ignore[arg-type]
    (lambda: parse_soft_errors("p=often"), "from 0 to 1"),
    (lambda: parse_soft_errors("q=1"), "p, steps and kind"),
    (lambda: LocalFleet(NET, parse_split("none:m=2,n=2", DOUBLE), NONE, iterations=1, scrub_every=-1), "0 or more"),
    (lambda: parse_flip("3"), "NODE@ITERATION"),
    (lambda: parse_flip("x@50"), "NODE@ITERATION"),
    (lambda: parse_flip("3@50:kind=gamma"), "a kind sparse, garbage"),
    (lambda: parse_flip("3@50:size=2"), "not 'size'"),
    (lambda: parse_flip("3@50:step=sideways 1"), "forward, backward or update"),
    (lambda: NET.batch(np.zeros((0, 6)), np.zeros(0)), "1 or more in each"),
]


@pytest.mark.parametrize(("wish", "text"), WISHES)
def test_a_wish_that_cannot_be_had(wish: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wish()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((2, 5)), np.zeros(2)),
        (np.zeros((2, 6)), np.zeros(3)),
        (np.zeros((2, 6)), np.array([0, 3])),
        (np.zeros((2, 6)), np.zeros((2, 3))),
    ],
)
def test_samples_that_do_not_fit(x: Any, y: Any) -> None:
    with pytest.raises(ModelError):
        NET.batch(x, y)


def test_probabilities_to_learn() -> None:
    net = Network(sizes=(6, 1), output="sigmoid", objective="binary_crossentropy")
    with pytest.raises(ModelError, match="from 0 to 1"):
        net.batch(np.zeros((2, 6)), np.array([0, 2]))


def test_what_names_leave_out() -> None:
    assert parse_sparsity("rho=0.2") == Sparsity(rho=0.2, beta=3.0, layer=None)
    assert parse_split("codenet", DOUBLE).nodes == 38
    assert (parse_split("polydot", SINGLE).nodes, parse_split("polydot:n=3", DOUBLE).nodes) == (8, 11)
    assert parse_split("polydot:n=3", SINGLE).nodes == 12, "11 are enough equations, and not enough digits"
    parse_split("polydot", SINGLE).fit(WIDE, 2000)
    parse_split("codenet:m=20,n=2,t=1", SINGLE).fit(TALL, 3000)
    parse_split("codenet", SINGLE).fit(WIDE, 100_000)
    parse_split("polydot:nodes=12", SINGLE).fit(WIDE, 50_000)
    replicate, none = parse_split("replicate:m=2", DOUBLE), parse_split("none", DOUBLE)
    assert isinstance(replicate, Replicate)
    assert (replicate.copies, replicate.nodes) == (3, 24)
    assert isinstance(none, Uncoded)
    assert parse_soft_errors("p=1e-3,steps=O1+decoded,kind=flip") == SoftErrors(
        1e-3, frozenset(("O1", "decoded")), "flip"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_what_kinds_of_errors_do(dtype: Any) -> None:
    for kind, least, most in (("sparse", 1, 3), ("garbage", 50, 50), ("flip", 1, 1), ("nan", 1, 1)):
        for seed in range(20):
            numbers = np.ones(50, dtype)
            injector = ErrorInjector(SoftErrors(1.0, kind=kind), seed=seed)  # type: ignore[arg-type]
            injector.strike(Where(0, 0, "forward 0", "product"), numbers)
            changed = numbers.view(np.uint8).reshape(50, -1) != np.ones(50, dtype).view(np.uint8).reshape(50, -1)
            assert least <= np.count_nonzero(changed.any(axis=1)) <= most
            assert np.isnan(numbers).any() or kind != "nan"
            assert len(injector.record) == 1


def test_errors_come_as_often_as_they_should() -> None:
    """10,000 chances at p = 0.1: 1000, within four standard deviations (30)."""
    injector = ErrorInjector(SoftErrors(0.1, frozenset(("O1",))), seed=0)
    for _ in range(10_000):
        injector.strike(Where(0, 0, "forward 0", "product"), np.ones(2))
        injector.strike(Where(0, 0, "backward 0", "product"), np.ones(2))
    assert len(injector.record) == pytest.approx(1000, abs=120)
