from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import WireError
from edgepeer.training.architecture import architecture, are_others
from edgepeer.training.keras_trainer import KerasTrainer


def branched(
    keras: Any, *, rate: float = 0.3, activation: str = "relu", l2: float = 0.0, first: int = 0, **named: Any
) -> Any:
    """With two ways from the first layer to the last."""
    layers = keras.layers
    inputs = keras.Input((4,))
    ways = [layers.Dense(5, activation=activation, **named)(inputs)]
    ways.append(layers.Dense(5, kernel_regularizer=keras.regularizers.L2(l2) if l2 else None)(ways[0]))
    together = layers.Add()([ways[first], ways[1]])
    outputs = layers.Dense(3)(layers.Dropout(rate, seed=named.get("seed"))(together))
    return keras.Model(inputs, outputs + keras.ops.relu(outputs))


def test_the_same_model_made_again_is_the_same(keras: Any) -> None:
    """Though Keras calls its layers otherwise by then."""
    first, second = branched(keras), branched(keras)
    assert first.layers[1].name != second.layers[1].name
    assert architecture(first) == architecture(second)
    assert architecture(first).startswith(f"{keras.__version__}/")
    assert len(architecture(first)) <= 64


def test_what_does_not_matter_once_the_state_is_there_makes_no_other(keras: Any) -> None:
    same = architecture(branched(keras))
    assert architecture(branched(keras, name="first")) == same
    assert architecture(branched(keras, name="relu")) == same, "a layer may be called as something else is"
    assert architecture(branched(keras, kernel_initializer="he_normal", bias_initializer="ones")) == same


@pytest.mark.parametrize(
    "other", [{"rate": 0.4}, {"activation": "tanh"}, {"l2": 0.01}, {"first": 1}, {"trainable": False}]
)
def test_what_computes_something_else_with_as_many_parameters_is_another(keras: Any, other: dict[str, Any]) -> None:
    assert are_others(architecture(branched(keras)), architecture(branched(keras, **other)))


def test_another_kind_of_numbers_to_compute_with_is_another(keras: Any) -> None:
    mixed = branched(keras, dtype="mixed_bfloat16")
    assert are_others(architecture(branched(keras)), architecture(mixed))


def test_names_within_a_model_may_be_those_of_others_around_it(keras: Any) -> None:
    """As Keras counts on, its names meet an author's in one process and not in another."""

    def nested(around: str) -> Any:
        layers = keras.layers
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="mine"), layers.Dense(4)])
        inputs = keras.Input((4,))
        first = layers.Dense(4, name=around)(inputs)
        return keras.Model(inputs, layers.Add()([first, inner(first)]))

    assert architecture(nested("mine")) == architecture(nested("other"))


def test_what_differs_between_devices_is_not_compared(keras: Any) -> None:
    """Where the files of a package are, and how a machine rounds."""

    class Table(keras.layers.Layer):  # type: ignore[misc,name-defined]  # keras is Any
        def __init__(self, file: str, scale: float, table: Any = None, **others: Any) -> None:
            super().__init__(**others)
            self.given = {"file": file, "scale": scale, "table": table}

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), **self.given}

        def call(self, x: Any) -> Any:
            return x

    def of(*given: Any) -> str:
        return architecture(keras.Sequential([keras.Input((2,)), Table(*given)]))

    here = of("/home/a/site-packages/of/table.bin", 0.1, np.array([0.3, 1e-7]))
    assert here == of("C:\\b\\of\\table.bin", math.nextafter(0.1, 1), np.array([0.3, math.nextafter(1e-7, 1)])) != ""
    assert are_others(here, of("/home/a/site-packages/of/other.bin", 0.1, np.array([0.3, 1e-7])))
    assert are_others(here, of("/home/a/site-packages/of/table.bin", 0.101, np.array([0.3, 1e-7])))
    assert are_others(here, of("/home/a/site-packages/of/table.bin", 0.1, np.array([0.3, 1.01e-7])))


def test_code_of_a_lambda_is_not_compared(keras: Any) -> None:
    """In it is the path of the file that it was in, and it is of one version of Python."""

    def ends_in(function: Callable[[Any], Any]) -> str:
        return architecture(keras.Sequential([keras.Input((2,)), keras.layers.Lambda(function)]))

    assert ends_in(lambda x: x + 1) == ends_in(lambda x: x) != ""
    activated = keras.layers.Dense(2, activation=lambda x: x + 1)
    with warnings.catch_warnings(action="error"):  # Keras warns of loading these
        assert architecture(keras.Sequential([keras.Input((2,)), activated])) != ""


def test_what_keras_cannot_describe_is_no_other(keras: Any) -> None:
    class Calls(keras.layers.Layer):  # type: ignore[misc,name-defined]  # keras is Any
        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__()
            self.function = function

        def call(self, x: Any) -> Any:
            return self.function(x)

    assert architecture(keras.Sequential([keras.Input((2,)), Calls(lambda x: x)])) == ""
    assert not are_others("", architecture(branched(keras)))
    assert not are_others(architecture(branched(keras)), "")


def test_another_version_of_keras_may_describe_the_same_otherwise() -> None:
    assert are_others("3.15.1/2 ab", "3.15.1/2 cd")
    assert not are_others("3.15.1/2 ab", "3.15.1/2 ab")
    assert not are_others("3.15.1/2 ab", "3.16.0/2 cd")
    assert not are_others("3.15.1/2 ab", "3.15.1/3 cd"), "nor is another build's rule this one's"
    assert not are_others("3.15.1/2 ab", "3.15.1 cd")
    assert are_others(" ", " x"), "what a state says may be anything"


def test_a_state_of_a_model_that_computes_something_else_is_refused(keras: Any) -> None:
    def trainer(activation: str) -> KerasTrainer:
        model = branched(keras, activation=activation)
        return KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=(4,))

    here = trainer("relu")
    here.load_state(trainer("relu").state())
    before = here.state()
    assert here.size == trainer("tanh").size
    with pytest.raises(WireError, match="the same parameters that computes something else: the package that makes it"):
        here.load_state(trainer("tanh").state())
    assert here.state() == before
