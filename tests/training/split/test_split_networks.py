"""What networks can be: activations, losses, dropout, sparsity, momentum, schedules. Each is what it says, against
formulas of its own and finite differences; and divided training of it is undivided training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from undivided import batches_for, distance, start, undivided, updates

from edgepeer.training.build import build_trainer
from edgepeer.training.form import Form
from edgepeer.training.job import new_job
from edgepeer.training.schedules import parse_schedule
from edgepeer.training.split.activations import ACTIVATIONS, parse_activation
from edgepeer.training.split.faults import ErrorInjector, SoftErrors
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.polydot import PolyDotSplit
from edgepeer.training.split.sparsity import Sparsity

Array = np.ndarray[Any, Any]
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)

TEXTBOOK: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: u,
    "relu": lambda u: (u + abs(u)) / 2,
    "sigmoid": lambda u: 1 / (1 + np.exp(-u)),
    "tanh": lambda u: np.sinh(u) / np.cosh(u),
    "softplus": lambda u: np.log(1 + np.exp(u)),
    "softsign": lambda u: u / (1 + abs(u)),
    "selu": lambda u: 1.0507009873554805 * np.where(u > 0, u, 1.6732632423543772 * (np.exp(u) - 1)),
    "leaky_relu": lambda u: np.where(u > 0, u, 0.2 * u),
    "leaky_relu:slope=0.05": lambda u: np.where(u > 0, u, 0.05 * u),
    "elu": lambda u: np.where(u > 0, u, np.exp(u) - 1),
    "elu:alpha=0.5": lambda u: np.where(u > 0, u, 0.5 * (np.exp(u) - 1)),
    "softmax": lambda u: np.exp(u) / np.exp(u).sum(axis=0),
}


def net(**fields: Any) -> Network:
    return Network(**{"sizes": (5, 6, 4, 3), "dtype": DOUBLE, "learning_rate": 0.3, "activation": "tanh", **fields})


NETWORKS: dict[str, Network] = {
    **{f"hidden {name}": net(activation=name) for name in TEXTBOOK if name != "softmax"},
    **{f"output {name}": net(output=name) for name in TEXTBOOK},
    "different layers": net(activation=("elu", "sigmoid"), output="softplus"),
    "bce": net(output="sigmoid", objective="binary_crossentropy"),
    "mae": net(output="linear", objective="mae"),
    "huber": net(output="linear", objective="huber", sizes=(5, 6, 3)),
    "mae of tanh": net(output="tanh", objective="mae", l2=0.1),
    "no bias": net(bias=False),
    "some bias": net(bias=(True, False, True), l2=0.1),
    "dropout": net(activation="relu", dropout=0.4, sizes=(5, 24, 20, 3)),
    "dropout in one": net(activation=("softplus", "elu"), dropout=(0.0, 0.3)),
    "sparse": net(
        sizes=(5, 8, 5), activation="sigmoid", output="linear", sparsity=Sparsity(rho=0.1, beta=0.3), l2=0.02
    ),
    "sparse in the middle": net(activation=("tanh", "sigmoid"), sparsity=Sparsity(rho=0.2, beta=2, layer=1)),
    "schedule": net(schedule=parse_schedule("cosine:warmup=3", rounds=10), l2=0.1),
}


def objective(network: Network, weights: list[Array], x: Array, y: Array, iteration: int) -> float:
    """The whole loss by its definition, l2 and sparsity included."""
    hidden, extra = x.T, 0.0
    for layer, whole in enumerate(weights):
        extra += network.l2 / 2 * float(np.sum(whole**2))
        kernel = whole[:, : network.sizes[layer]]
        sums = kernel @ hidden + (whole[:, -1:] if network.has_bias(layer) else 0)
        if layer == network.layers - 1:
            break
        names = network.activation
        hidden = TEXTBOOK[names if isinstance(names, str) else names[layer]](sums)
        sparsity = network.sparsity
        if sparsity is not None and sparsity.layer in (None, layer):
            r, rho = hidden.mean(axis=1), sparsity.rho
            extra += sparsity.beta * np.sum(rho * np.log(rho / r) + (1 - rho) * np.log((1 - rho) / (1 - r)))
        ones = np.ones_like(sums)
        hidden = hidden * mask(network, layer, ones.shape, iteration)
    out, wanted = TEXTBOOK[network.output](sums), y if network.output == "softmax" else y.T
    match network.loss_name:
        case "crossentropy":
            each = -np.log(out[wanted, np.arange(len(y))])
        case "binary_crossentropy":
            each = -(wanted * np.log(out) + (1 - wanted) * np.log(1 - out)).mean(axis=0)
        case "mse":
            each = ((out - wanted) ** 2).mean(axis=0)
        case "mae":
            each = abs(out - wanted).mean(axis=0)
        case "huber":
            far = abs(out - wanted)
            each = np.where(far < 1, far**2 / 2, far - 0.5).mean(axis=0)
    return float(each.mean() + extra)


def mask(network: Network, layer: int, shape: tuple[int, ...], iteration: int) -> Array:
    """What dropout multiplies by, seen from outside."""
    plain = network.activate(layer, np.ones(shape), None)
    return network.activate(layer, np.ones(shape), iteration) / plain


@pytest.mark.parametrize("name", [name for name in TEXTBOOK if name != "softmax"])
def test_activations_and_their_slopes(name: str) -> None:
    """By their definitions; slopes by central differences; both dtypes, and no overflow far out."""
    found, u = parse_activation(name), np.linspace(-6, 6, 50)
    x = found.apply(u)
    np.testing.assert_allclose(x, TEXTBOOK[name](u), rtol=1e-12, atol=1e-12)
    numeric = (TEXTBOOK[name](u + 1e-6) - TEXTBOOK[name](u - 1e-6)) / 2e-6
    np.testing.assert_allclose(found.slope(x), numeric, rtol=1e-6, atol=1e-9)
    far = np.array([-1e4, -100, 0, 100, 1e4], SINGLE)
    assert found.apply(far).dtype == found.slope(found.apply(far)).dtype == SINGLE
    assert np.isfinite(found.apply(far)).all()
    assert np.isfinite(found.slope(found.apply(far))).all()


def test_every_activation_is_tested() -> None:
    assert {name.partition(":")[0] for name in TEXTBOOK} == {*ACTIVATIONS, "softmax"}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_gradient_is_that_of_the_loss(name: str, batch: int) -> None:
    """Every weight moves by -eta times the central difference of the loss in the first iteration, to 1e-7."""
    network = NETWORKS[name]
    x, y = batches_for(network, batch)(0)
    rng = np.random.default_rng(2)
    before = [each + 0.1 * rng.standard_normal(each.shape) for each in start(network)]  # biases of 0 are relu's corner
    after = undivided(network, lambda iteration: (x, y), 1, before)
    for layer, whole in enumerate(before):
        for at in np.ndindex(whole.shape):
            values = []
            for off in (1e-6, -1e-6):
                moved = [each.copy() for each in before]
                moved[layer][at] += off
                values.append(objective(network, moved, x, y, 0))
            slope = (values[0] - values[1]) / 2e-6
            assert (whole - after[layer])[at] == pytest.approx(network.rate(0) * slope, abs=1e-7), (layer, at)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("split", "batch"), [("codenet:m=2,n=2", 3), ("codenet:m=2,n=2", 1), ("polydot:m=2,n=2", 3)])
def test_divided_training_is_undivided_training(name: str, split: str, batch: int) -> None:
    """10 iterations, float64: 1e-12; PolyDot 1e-10."""
    network = NETWORKS[name]
    batches = batches_for(network, batch)
    fleet = LocalFleet(network, parse_split(split, DOUBLE), batches, iterations=10)
    report = fleet.train()
    assert distance(fleet, undivided(network, batches, 10)) < (1e-10 if "polydot" in split else 1e-12)
    assert (report.lines, report.odd, report.restored, len(fleet.losses)) == (0, 0, 0, 10)


@pytest.mark.parametrize("name", ["dropout", "sparse", "schedule", "some bias"])
def test_with_soft_errors_as_well(name: str) -> None:
    """Iterations that are done again have the same dropout and the same rate."""
    network = NETWORKS[name]
    batches = batches_for(network, 3)
    everywhere = frozenset(("O1", "O2", "O3", "encoding", "decoded", "activation", "verdict"))
    injector = ErrorInjector(SoftErrors(4e-3, everywhere), seed=4)
    split = parse_split("codenet:m=2,n=2", DOUBLE)
    fleet = LocalFleet(network, split, batches, iterations=15, injector=injector, checkpoint_every=3)
    report = fleet.train()
    assert len(injector.record) > 5
    assert report.restored + report.lines + report.odd > 3
    assert distance(fleet, undivided(network, batches, 15)) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("split", ["codenet:m=2,n=2", "polydot:m=2,n=1", "abft:m=2,n=2"])
def test_momentum_of_a_fleet(split: str, l2: float, nesterov: bool) -> None:
    """30 iterations, float64: 1e-12."""
    network = net(momentum=0.9, nesterov=nesterov, l2=l2)
    batches = batches_for(network, 3)
    fleet = LocalFleet(network, parse_split(split, DOUBLE), batches, iterations=30)
    fleet.train()
    assert distance(fleet, undivided(network, batches, 30)) < 1e-12


@pytest.mark.parametrize("split", ["codenet:m=2,n=2", "polydot:m=1,n=2", "replicate:m=2,n=1", "abft:m=2,n=2"])
def test_training_that_diverges_is_told_from_errors(split: str) -> None:
    """All go back twice to where most numbers are beyond computing, and then on: the loss says what it is."""
    network = Network(sizes=(6, 5, 4), output="linear", learning_rate=1e6, dtype=DOUBLE)
    fleet = LocalFleet(network, parse_split(split, DOUBLE), batches_for(network, 4), iterations=20, scrub_every=5)
    with np.errstate(all="ignore"):
        counts = fleet.train()
    assert counts.restored == 2
    assert np.isfinite(fleet.losses[:2]).all()
    assert np.isnan(fleet.losses[8:]).all()


LAWS = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "with l2": {"momentum": 0.7, "l2": 0.2},
    "nesterov with l2": {"momentum": 0.7, "nesterov": True, "l2": 0.2},
    "with a schedule": {"momentum": 0.9, "schedule": parse_schedule("step:every=3", rounds=10)},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["codenet:m=2,n=3", "polydot:m=2,n=2", "polydot of pairs", "abft:m=3,n=2"])
def test_momentum_stays_coded(law: str, name: str) -> None:
    """Each node moves its own velocity and block by the law, as `Split.update` adds products, without communication.
    After 10 iterations its block is what the code makes of the weights that undivided training comes to: 1e-12."""
    network = net(**LAWS[law])
    pairs = "pairs" in name
    split = PolyDotSplit(2, 3, 12, DOUBLE, kind="pairs") if pairs else parse_split(name, DOUBLE)
    nodes, layers = range(split.nodes), range(network.layers)
    blocks = [[_store(split, node, whole) for node in nodes] for whole in start(network)]
    moving = [[np.zeros_like(block) for block in row] for row in blocks]
    for iteration, done in enumerate(updates(network, batches_for(network), 10)):
        rate, mu = network.rate(iteration), network.momentum
        for k in layers:
            for node in nodes:
                block, v = blocks[k][node], moving[k][node]
                before = v.copy()
                step = -rate / done.inputs[k].shape[1]
                split.update(
                    node, v, done.deltas[k], done.inputs[k], step, mu, lambda place, numbers, effect=None: None
                )
                v -= rate * network.l2 * block
                block += mu * v + (v - mu * before) if network.nesterov else v
        final = done.weights
    for k in layers:
        for node in nodes:
            right = _store(split, node, final[k])
            assert np.abs(blocks[k][node] - right).max() < 1e-12 * np.abs(final[k]).max()


def _store(split: Any, node: int, whole: Array) -> Array:
    return np.asarray(split.store(node, whole.shape, lambda row: whole[row]))


def test_adam_would_not_stay_coded() -> None:
    """What it divides by is a root of squares: the parity of the roots isn't the root of the parities."""
    split = parse_split("codenet:m=2,n=2", DOUBLE)
    node = split.nodes - 1
    gradient = np.random.default_rng(0).standard_normal((4, 6))
    of_coded = np.sqrt(np.square(_store(split, node, gradient)))
    assert np.abs(of_coded - _store(split, node, np.sqrt(np.square(gradient)))).max() > 0.1


def test_dropout_is_the_same_at_all_and_other_each_time() -> None:
    """Over 50 iterations a share p of 24,000 activations is left out, within four standard deviations; the rest are
    divided by 1 - p; evaluation leaves out nothing."""
    network = net(sizes=(5, 120, 120, 3), activation="linear", dropout=(0.25, 0.6))
    ones = np.ones((120, 4))
    for layer, share in ((0, 0.25), (1, 0.6)):
        masks = [network.activate(layer, ones, iteration) for iteration in range(50)]
        assert set(np.unique(masks)) == {0.0, 1 / (1 - share)}
        assert np.mean(np.equal(masks, 0)) == pytest.approx(share, abs=4 * (share * (1 - share) / 24_000) ** 0.5)
        assert (network.activate(layer, ones, 7) == masks[7]).all()
        assert len({each.tobytes() for each in masks}) == 50
        assert (network.activate(layer, ones, None) == ones).all()
    assert (network.activate(0, ones, 1) == 0).tobytes() != (network.activate(1, ones, 1) == 0).tobytes()
    other = net(sizes=(5, 120, 120, 3), activation="linear", dropout=(0.25, 0.6), seed=1)
    assert (other.activate(0, ones, 1) != network.activate(0, ones, 1)).any()


def test_sparsity_makes_a_layer_rest() -> None:
    """Means of the hidden layer go from about 0.5 to rho = 0.1, which beta = 3 is heavy enough for."""
    network = net(
        sizes=(6, 8, 6), activation="sigmoid", output="linear", sparsity=Sparsity(rho=0.1, beta=3), learning_rate=0.1
    )
    batches = batches_for(network, 8, 1)
    weights = undivided(network, batches, 500)
    x, _ = network.batch(*batches(0))
    before, after = (network.activate(0, each[0] @ x, None).mean(axis=1) for each in (start(network), weights))
    assert before.min() > 0.3
    assert np.abs(after - 0.1).max() < 0.02


def test_sparsity_at_its_limits() -> None:
    """Activations that are 0 or 1 to rounding: large numbers, but numbers."""
    network = net(sizes=(6, 2, 6), activation="sigmoid", output="linear", sparsity=Sparsity(), dtype=SINGLE)
    x = network.with_constant(1, np.array([[0, 0], [1, 1]], SINGLE))
    assert np.isfinite(network.back(1, np.ones((3, 2), SINGLE), x, 0)).all()


@pytest.mark.parametrize(
    ("output", "loss"),
    [("softmax", "crossentropy"), ("sigmoid", "binary_crossentropy")]
    + [("linear", loss) for loss in ("mse", "mae", "huber")],
)
def test_scores_of_parts_add_up_to_what_a_trainer_says(output: str, loss: Any) -> None:
    """The NumPy trainer's evaluation of the same weights: of all samples at once; here in parts of 7."""
    trainer = build_trainer(
        new_job(model="linear", trainer="numpy", seed=3), Form(input_shape=(5,), outputs=3, loss=loss)
    )
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 5)).astype(SINGLE)
    y = rng.integers(0, 3, 40) if output == "softmax" else rng.random((40, 3))
    network = Network(sizes=(5, 3), output=output, objective=loss)
    kernel, bias = trainer.parameters()[:15].reshape(5, 3), trainer.parameters()[15:]
    sums = (0.0, 0.0, 0.0)
    for at in range(0, 40, 7):
        inputs, wanted = network.batch(x[at : at + 7], y[at : at + 7])
        part = network.score(np.c_[kernel.T, bias] @ inputs, wanted)
        sums = (sums[0] + part[0], sums[1] + part[1], sums[2] + part[2])
    mine, right = network.evaluation(sums, 40), trainer.evaluate(x, y)
    for one, other in zip(mine, right, strict=True):
        assert one == (other if other is None else pytest.approx(other, rel=1e-5))


def test_it_is_what_the_numpy_trainer_does() -> None:
    """mlp-plain with sgd:momentum=0.9,nesterov=true and a schedule: 30 steps, float32, 1e-5."""
    form = Form(input_shape=(6,), outputs=4, loss="crossentropy")
    job = new_job(
        model="mlp-plain", trainer="numpy", optimizer="sgd:momentum=0.9,nesterov=true", schedule="cosine", rounds=30
    )
    trainer = build_trainer(job, form)
    network = Network(
        sizes=(6, 512, 4),
        learning_rate=0.1,
        momentum=0.9,
        nesterov=True,
        schedule=parse_schedule("cosine", rounds=30),
    )
    rest, weights = trainer.parameters(), []
    for rows, columns in ((6, 512), (512, 4)):
        kernel, bias, rest = np.split(rest, [rows * columns, (rows + 1) * columns])
        weights.append(np.c_[kernel.reshape(rows, columns).T, bias])
    batches = batches_for(network, 5)
    for iteration in range(30):
        gradient = np.empty(trainer.size, SINGLE)
        trainer.gradient(*batches(iteration), gradient, seed=0)
        trainer.apply(gradient)
    trained = undivided(network, batches, 30, weights)
    flat = np.concatenate([part.ravel() for each in trained for part in (each[:, :-1].T, each[:, -1])])
    assert np.abs(flat - trainer.parameters()).max() < 1e-5 * np.abs(flat).max()
