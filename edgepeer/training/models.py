"""Keras models by built-in name, by `package:function` on the device, or from a Keras JSON config.

A job names or describes a model; it never carries code. So a JSON config may use Keras' own layers only,
and none of those that hold code or read files, and a function must be in a package that this device lets jobs
name. Everything that foreign code raises, SystemExit included, ends in a ModelError of one line.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from edgepeer.errors import ModelError
from edgepeer.training.form import Form
from edgepeer.training.keras_setup import load_keras
from edgepeer.training.naming import parse_function

__all__ = ["DENSE_NETWORKS", "DenseNetwork", "builtin_names", "first_line", "keras_model"]


class DenseNetwork(NamedTuple):
    """A built-in model that every trainer can do: dense layers with relu and dropout."""

    hidden: tuple[int, ...]
    dropout: float


DENSE_NETWORKS: Final = {
    "mlp": DenseNetwork(hidden=(512,), dropout=0.2),
    # Without dropout a run depends on how samples are split up to rounding only: for comparisons.
    "mlp-plain": DenseNetwork(hidden=(512,), dropout=0.0),
    "linear": DenseNetwork(hidden=(), dropout=0.0),
}

_KERAS_MODULES: Final = tuple(
    f"keras.{room}{name}"
    for room in ("", "src.")
    for name in ("activations", "constraints", "initializers", "layers", "models", "ops", "regularizers")
)
_NOT_IN_CONFIGS: Final = frozenset(
    (
        *("Lambda", "__lambda__", "__typespec__", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),
        *("StringLookup", "IntegerLookup", "TextVectorization"),  # may name files to read
    )
)


def builtin_names() -> tuple[str, ...]:
    """The models that need nothing else on the device."""
    return (*DENSE_NETWORKS, "cnn")


def keras_model(name: str, config: str, form: Form, *, allowed: Collection[str] = ()) -> Any:
    """The Keras model that a job asks for: from `config`, if there is one, else by name.

    Args:
        allowed: the packages that a name may be of.

    Raises:
        ModelError: there is no such model, or it can't be built here.
    """
    keras = load_keras()
    if config:
        return _from_config(keras, config)
    if name in DENSE_NETWORKS:
        return _dense(keras, DENSE_NETWORKS[name], form)
    if name == "cnn":
        return _cnn(keras, form)
    if ":" in name:
        return _from_package(keras, name, form, allowed)
    raise ModelError(
        f"model {name!r}: unknown; there are {', '.join(builtin_names())}, "
        "and package:function for what is installed on the devices"
    )


_COLOURS: Final = re.compile("\x1b\\[[0-9;]*m")
_WHERE: Final = re.compile(
    'in user code:|File "|Exception encountered when calling|Graph execution error:|Detected at node '
)
_NODE: Final = re.compile(r"\s*\[\[\{\{node .*")


def first_line(error: BaseException) -> str:
    """What an exception says, in one line that fits into a message."""
    try:
        said = str(error)
    except Exception:  # foreign code may do that, too
        said = ""
    name = type(error).__name__
    parts = [" ".join(text.split()) for text in re.split(r"\n\s*\n", _COLOURS.sub("", said)) if text.strip()]
    paragraphs = [part.removeprefix(f"{name}: ") for part in parts]
    while len(paragraphs) > 1 and _WHERE.match(paragraphs[0]):
        del paragraphs[0]  # Keras and TensorFlow say where first, and then what
    text = _NODE.sub("", paragraphs[0]) if paragraphs else ""
    return f"{name}: {text[:200]}" if text else name


def _dense(keras: Any, network: DenseNetwork, form: Form) -> Any:
    layers = [keras.Input(form.input_shape), keras.layers.Flatten()]
    for width in network.hidden:
        layers.append(keras.layers.Dense(width, activation="relu"))
        if network.dropout:
            layers.append(keras.layers.Dropout(network.dropout))
    return keras.Sequential([*layers, keras.layers.Dense(form.outputs)])


def _cnn(keras: Any, form: Form) -> Any:
    input_shape = form.input_shape
    if len(input_shape) not in (2, 3):
        raise ModelError(f"model cnn: needs images (height, width[, channels]), not samples of shape {input_shape}")
    layers = keras.layers
    image = input_shape if len(input_shape) == 3 else (*input_shape, 1)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Reshape(image),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(padding="same"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(padding="same"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(form.outputs),
        ]
    )


def _from_package(keras: Any, name: str, form: Form, allowed: Collection[str]) -> Any:
    function = _find_function(name, allowed)
    offered = {"input_shape": form.input_shape, "classes": form.outputs, "outputs": form.outputs}
    try:
        model = function(**_accepted(function, offered))
    except BaseException as error:
        raise ModelError(f"model {name}: the function raised {first_line(error)}") from error
    if not isinstance(model, keras.Model):
        raise ModelError(f"model {name}: the function must return a keras.Model, not {type(model).__name__}")
    return model


def _find_function(name: str, allowed: Collection[str]) -> Callable[..., Any]:
    named = parse_function(name)
    if named is None:
        # Whatever a module has imported hangs below it, os.abort too.
        raise ModelError(f"model {name}: must name a function of the module itself, as in package.module:function")
    module_name, path, package = named.module, named.function, named.package
    if package not in allowed:
        raise ModelError(
            f"model {name}: this device lets jobs name functions of {', '.join(sorted(allowed)) or 'no package'}; "
            f"to allow {package}, start its peer, or the export, with --models {package}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"model {name}: no package {error.name!r} is installed on this device") from error
    except BaseException as error:
        raise ModelError(f"model {name}: importing {module_name} raised {first_line(error)}") from error
    found = getattr(module, path, None)
    if not callable(found):
        raise ModelError(f"model {name}: {module_name} has no function {path!r}")
    made = found.func if isinstance(found, functools.partial) else found
    home = str(getattr(inspect.unwrap(made), "__module__", None) or "")
    if home.partition(".")[0] not in allowed:  # what a module imports is there as well: exit, abort
        raise ModelError(
            f"model {name}: {path} is not of {package}, but of {home or 'no module'}; make a function there"
        )
    return found  # type: ignore[no-any-return]  # a callable of Any


def _accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered keyword arguments that the function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = {parameter.name for parameter in parameters if parameter.kind in by_name}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        taken |= {"input_shape"} if "outputs" in taken else {"input_shape", "classes"}
    return {name: value for name, value in offered.items() if name in taken}


def _from_config(keras: Any, text: str) -> Any:
    try:
        config = json.loads(text)
        _check_config(config)
        model = keras.saving.deserialize_keras_object(config, safe_mode=True)
    except ModelError:
        raise
    except json.JSONDecodeError as error:
        raise ModelError(f"model_config: not JSON: {error}") from error
    except Exception as error:
        raise ModelError(f"model_config: Keras can't build it: {first_line(error)}") from error
    if not isinstance(model, keras.Model):
        raise ModelError(f"model_config: must describe a keras.Model, not {type(model).__name__}")
    return model


def _check_config(config: Any) -> None:
    """Refuse whatever is not a plain Keras object; drop what a compiled model would bring along."""
    pending = [config]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            item.pop("compile_config", None)
            pending.extend(item.values())
            if "class_name" in item:
                _check_object(str(item["class_name"]), item)


def _check_object(class_name: str, item: dict[str, Any]) -> None:
    if class_name in _NOT_IN_CONFIGS:
        raise ModelError(f"model_config: {class_name} is not allowed: it could run code or read files")
    module = item.get("module")
    if class_name == "function":
        allowed = module == "builtins"  # Keras then looks among its own functions, by name
    else:
        allowed = module in (None, "keras") or str(module).startswith(_KERAS_MODULES)
    if not allowed:
        raise ModelError(
            f"model_config: {module}.{class_name} is not one of Keras' own layers; "
            "install it on the devices and name it as package:function"
        )
