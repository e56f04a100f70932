"""The dense layers of a Keras model, from what `model.to_json()` says: Keras 3, Sequential, or a Functional graph that
is one chain. It is read as data; Keras isn't needed, and nothing of it is run.

What is taken: InputLayer, Flatten, Dense, Activation, ReLU, LeakyReLU, ELU, Softmax, and Dropout of hidden layers. What
isn't would have to be divided, too, or changes weights in a way that coded ones don't follow. Initializers are passed
over: a config has no weights, and split training makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from edgepeer.errors import ConfigError, ModelError
from edgepeer.readable import readable
from edgepeer.training.split.activations import parse_activation

__all__ = ["DenseLayer", "dense_layers"]

_NOT_IN_DENSE: Final = (
    *("activity_regularizer", "kernel_constraint", "bias_constraint"),
    *("lora_rank", "quantization_config", "quantization_mode"),
)
_MOST_UNITS: Final = 2**31


@dataclass(slots=True)
class DenseLayer:
    """One of them, with what follows it."""

    name: str
    units: int
    activation: str
    """As `activations` names it, or softmax."""
    bias: bool
    l2: float
    """lambda, where the loss is lambda/2 |W|^2, bias included."""
    dropout: float = 0.0


class _Layer(msgspec.Struct):
    class_name: str
    config: dict[str, Any]
    name: str = ""
    inbound_nodes: list[Any] = []

    @property
    def where(self) -> str:
        return f"layer {self.config.get('name', self.name)!s:.60} ({self.class_name:.60})"

    def refuse(self, problem: str) -> ModelError:
        return ModelError(f"model_config: {self.where}: {problem}")

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(f"{key} must be a number")
        return float(value)


class _Body(msgspec.Struct):
    layers: list[_Layer]
    input_layers: list[Any] = []
    output_layers: list[Any] = []


@readable
class _Model(msgspec.Struct):
    class_name: str
    config: _Body


def dense_layers(text: str, input_shape: tuple[int, ...]) -> list[DenseLayer]:
    """The layers that a config describes, from inputs to outputs: one or more.

    Args:
        input_shape: of one sample.

    Raises:
        ModelError: it is none, or there is something in it that can't be split; names the layer.
    """
    try:
        model = msgspec.json.decode(text, type=_Model)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ModelError(f"model_config: is not a Keras 3 model as JSON (model.to_json()): {error}") from error
    if model.class_name not in ("Sequential", "Functional"):
        raise ModelError(
            f"model_config: split training takes a Sequential or a Functional model, not {model.class_name:.60}"
        )
    stack = _Stack(input_shape)
    for layer in model.config.layers:
        if layer.class_name not in _TAKEN:  # first: a graph is most often no chain because of such a layer
            raise layer.refuse(f"can't be split; there are {', '.join(_TAKEN)}; or train without a split")
    for layer in model.config.layers if model.class_name == "Sequential" else _chain(model.config):
        if layer.config.get("trainable", True) is not True:
            raise layer.refuse("is frozen, and split training moves all weights; make it trainable")
        if _dtype(layer) != "float32":
            raise layer.refuse(f"is of {_dtype(layer)}; split training takes float32")
        _TAKEN[layer.class_name](stack, layer)
    if not stack.layers:
        raise ModelError("model_config: there is no Dense layer to split")
    if stack.layers[-1].dropout:
        raise ModelError(f"model_config: layer {stack.layers[-1].name}: Dropout of the outputs can't be split; drop it")
    return stack.layers


class _Stack:
    """What has been read so far."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        self.layers: list[DenseLayer] = []
        self._shape, self._flat = input_shape, len(input_shape) == 1

    def input(self, layer: _Layer) -> None:
        shape = layer.config.get("batch_shape")
        if isinstance(shape, list) and tuple(shape[1:]) != self._shape:
            raise layer.refuse(f"takes samples of shape {tuple(shape[1:])}, and the data's are {self._shape}")

    def flatten(self, layer: _Layer) -> None:
        if layer.config.get("data_format") not in (None, "channels_last"):
            raise layer.refuse("puts channels in front, which can't be split; take data_format channels_last")
        self._flat = True

    def dense(self, layer: _Layer) -> None:
        if not self._flat:
            raise layer.refuse(f"would work on each row of samples of shape {self._shape}; put a Flatten in front")
        units, bias = layer.config.get("units"), layer.config.get("use_bias", True)
        if not isinstance(units, int) or isinstance(units, bool) or not 1 <= units <= _MOST_UNITS:
            raise layer.refuse("units must be a whole number from 1 on")
        if not isinstance(bias, bool):
            raise layer.refuse("use_bias must be true or false")
        for key in _NOT_IN_DENSE:
            if layer.config.get(key) is not None:
                more = "; for a sparse layer there is --sparsity" if key == "activity_regularizer" else ""
                raise layer.refuse(f"{key} can't be split; leave it out{more}")
        name = str(layer.config.get("name", layer.name))
        self.layers.append(
            DenseLayer(name, units, _activation(layer, layer.config.get("activation")), bias, _l2(layer, bias))
        )

    def activate(self, layer: _Layer) -> None:
        activation = _activation_of_layer(layer)
        if activation == "linear":
            return
        if not self.layers or self.layers[-1].activation != "linear" or self.layers[-1].dropout:
            raise layer.refuse("an activation must follow a Dense layer that has none of its own, at once")
        self.layers[-1].activation = activation

    def drop(self, layer: _Layer) -> None:
        share = layer.number("rate", 0.0)
        if not 0 <= share < 1 or layer.config.get("noise_shape") is not None:
            raise layer.refuse("rate must be from 0 to below 1, and noise_shape null")
        if share and not self.layers:
            raise layer.refuse("Dropout of inputs can't be split; put it behind a hidden layer, or drop it")
        if share and self.layers[-1].dropout:
            raise layer.refuse("two Dropouts of one layer; make one of them")
        if share:
            self.layers[-1].dropout = share


_TAKEN: Final[dict[str, Callable[[_Stack, _Layer], None]]] = {
    "InputLayer": _Stack.input,
    "Flatten": _Stack.flatten,
    "Dense": _Stack.dense,
    **dict.fromkeys(("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax"), _Stack.activate),
    "Dropout": _Stack.drop,
}


def _activation(layer: _Layer, value: Any) -> str:
    """Of a Dense or Activation layer: a name, a function of Keras', or a layer in its own right."""
    if isinstance(value, dict) and value.get("class_name") == "function":
        value = value.get("config")
    if isinstance(value, dict) and value.get("class_name") != "Activation":
        try:
            return _activation_of_layer(msgspec.convert(value, _Layer))
        except msgspec.ValidationError:
            raise layer.refuse("its activation is no Keras layer") from None
    name = "linear" if value is None else value
    if not isinstance(name, str) or ":" in name:
        raise layer.refuse(f"there is no activation {name!r:.60}")
    return _checked(layer, name)


def _activation_of_layer(layer: _Layer) -> str:
    match layer.class_name:
        case "Activation":
            return _activation(layer, layer.config.get("activation"))
        case "ReLU":
            if layer.config.get("max_value") is not None or layer.number("threshold", 0.0):
                raise layer.refuse("max_value and threshold can't be split; leave them out")
            slope = layer.number("negative_slope", 0.0)
            return _checked(layer, f"leaky_relu:slope={slope!r}") if slope else "relu"
        case "LeakyReLU":
            return _checked(layer, f"leaky_relu:slope={layer.number('negative_slope', 0.3)!r}")
        case "ELU":
            return _checked(layer, f"elu:alpha={layer.number('alpha', 1.0)!r}")
        case "Softmax":
            if layer.config.get("axis", -1) not in (-1, 1):
                raise layer.refuse("must be of the last axis, -1")
            return "softmax"
    raise layer.refuse("is no activation that can be split")


def _checked(layer: _Layer, activation: str) -> str:
    if activation != "softmax":
        try:
            parse_activation(activation)
        except ConfigError as error:
            raise layer.refuse(str(error)) from None
    return activation


def _l2(layer: _Layer, bias: bool) -> float:
    """lambda. Keras' L2 adds l2 |W|^2 to the loss."""
    kernel, of_bias = (_of_regularizer(layer, key) for key in ("kernel_regularizer", "bias_regularizer"))
    if bias and kernel != of_bias:
        raise layer.refuse(
            "kernel_regularizer without the same bias_regularizer: a bias is coded as a column of its kernel, and "
            "decays with it; give it the same, or use_bias=False"
        )
    return 2 * kernel


def _of_regularizer(layer: _Layer, key: str) -> float:
    found = layer.config.get(key)
    if found is None:
        return 0.0
    config = found.get("config") if isinstance(found, dict) else None
    if not isinstance(config, dict) or found.get("class_name") not in ("L2", "L1L2") or config.get("l1"):
        raise layer.refuse(f"{key} can't be split; take L2, or none")
    factor = config.get("l2")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise layer.refuse(f"{key} has no number")
    return float(factor)


def _dtype(layer: _Layer) -> str:
    """The name of its dtype, or of the policy of it."""
    found = layer.config.get("dtype")
    if isinstance(found, dict):
        found = found["config"].get("name") if isinstance(found.get("config"), dict) else "an unknown dtype"
    return "float32" if found is None else str(found)


def _chain(body: _Body) -> list[_Layer]:
    """The layers of a graph from its input to its output."""
    layers = {layer.name: layer for layer in body.layers}
    _only(body.input_layers, "inputs")
    at: str | None = _only(body.output_layers, "outputs")
    found: list[_Layer] = []
    while at is not None and len(found) <= len(layers):
        if at not in layers:
            raise ModelError(f"model_config: there is no layer {at:.60}")
        found.append(layers[at])
        at = _source(layers[at])
    if len(found) != len(body.layers):
        raise ModelError("model_config: the layers are no chain from one input to one output; split training needs one")
    return found[::-1]


def _only(ends: list[Any], what: str) -> str:
    """Keras writes [name, 0, 0], or a list of such."""
    if len(ends) == 1 and isinstance(ends[0], list):
        ends = ends[0]
    if not ends or not isinstance(ends[0], str):
        raise ModelError(f"model_config: has {len(ends)} {what}; split training takes a model with one")
    return ends[0]


def _source(layer: _Layer) -> str | None:
    """The layer before; of the input, none."""
    if layer.class_name == "InputLayer":
        return None
    if len(layer.inbound_nodes) != 1:
        raise layer.refuse(f"is used {len(layer.inbound_nodes)} times; split training takes a chain of layers")
    try:
        node = msgspec.convert(layer.inbound_nodes[0], _Node)
    except msgspec.ValidationError:
        raise layer.refuse("its input can't be read; split training takes a chain of layers, by Keras 3") from None
    if len(node.args) != 1 or any(node.kwargs.values()):  # training: false is what Keras writes by itself
        raise layer.refuse("must be called with the layer before it, and nothing else")
    return node.args[0].config.keras_history[0]


class _History(msgspec.Struct):
    keras_history: tuple[str, int, int]


class _Tensor(msgspec.Struct):
    config: _History


@readable
class _Node(msgspec.Struct):
    args: list[_Tensor]
    kwargs: dict[str, Any] = {}
