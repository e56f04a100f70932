"""Whether two Keras models compute the same, by how Keras describes them: two versions of a package may make models of
as many parameters, whose gradients must not be added up.

Names are left out, which Keras counts up over the life of a process, and what has no part in what a model computes
after its state has come: initializers, seeds (the trainer sets them) and what Keras keeps for itself. So is what
differs between devices: the code of a Lambda, in which are the paths of files; where other files are; numbers' last
digits. What a class does in `call` no description says.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any, Final

from edgepeer.training.keras_setup import load_keras

__all__ = ["architecture", "are_others"]

_DIGEST_BYTES: Final = 16
_RULE: Final = 2
"""Of what counts of a description: to be raised when that changes, or a model is another one after an upgrade."""
_DIGITS: Final = 5
"""Of the numbers in a description, which may have been computed: not on all machines to the last digit."""
_OF_LAYERS: Final = frozenset(("keras_history", "input_layers", "output_layers"))
"""Where a description names layers of the model that it is of."""
_LEFT_OUT: Final = frozenset(
    ("seed", "build_config", "build_input_shape", "compile_config", "module", "registered_name", "shared_object_id")
)


def architecture(model: Any) -> str:
    """The version of Keras, that of what counts here, and a digest of what the model computes, at most 64 characters:
    models with the same compute the same, but for code of their own classes; of the same versions, models with
    different ones don't. Empty where Keras can't describe it.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of lambdas: nothing is loaded from what is said here
            described = json.loads(model.to_json())
    except Exception:  # foreign code, which may not be able to say what it has been given
        return ""
    plain = json.dumps(_plain(described, {}), sort_keys=True)
    digest = hashlib.blake2b(plain.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{load_keras().__version__[:24]}/{_RULE} {digest}"


def are_others(one: str, another: str) -> bool:
    """Whether models that are described so compute something else for certain. Another version of Keras may describe
    the same otherwise, as another build may do here."""
    return bool(one and another) and one != another and one.partition(" ")[0] == another.partition(" ")[0]


def _plain(described: Any, layers: Mapping[str, int]) -> Any:
    """What counts of a description; `layers`: of the model that it is in, by name, with their places among them.

    Only there is a name one layer's: a model within it may have one that its author calls as Keras calls another, when
    it has counted so far.
    """
    if isinstance(described, dict):
        if described.get("class_name") == "__lambda__":
            return "a lambda"
        if _is_policy(described):
            return described["config"]
        config = described.get("config")
        if isinstance(config, dict):
            described = {**described, "config": _without(config, "name")}
            described.pop("name", None)  # a model's layers have it twice
            layers = _layers(config) or layers
        return {
            key: _places(value, layers) if key in _OF_LAYERS else _plain(value, layers)
            for key, value in _without(described, *_LEFT_OUT).items()
            if not key.endswith("_initializer")
        }
    if isinstance(described, list):
        return [_plain(value, layers) for value in described]
    if isinstance(described, float):
        return float(f"{described:.{_DIGITS}g}")
    if isinstance(described, str) and (path := PureWindowsPath(described)).root:
        return path.name  # where a file is differs between devices; Windows' paths begin with / as well
    return described


def _without(described: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in described.items() if key not in keys}


def _layers(config: dict[str, Any]) -> dict[str, int]:
    """The layers of a model that is so described, by name; of anything else, none."""
    found = config.get("layers")
    layers = found if isinstance(found, list) else []
    return {str(layer.get("name")): place for place, layer in enumerate(layers) if isinstance(layer, dict)}


def _places(named: Any, layers: Mapping[str, int]) -> Any:
    """With layers' places for their names."""
    if isinstance(named, dict):
        return {key: _places(value, layers) for key, value in named.items()}
    if isinstance(named, list):
        return [_places(value, layers) for value in named]
    return layers.get(named, "elsewhere") if isinstance(named, str) else named


def _is_policy(described: dict[str, Any]) -> bool:
    """Of the numbers that a layer computes with, whose name counts."""
    return str(described.get("class_name", "")).endswith("DTypePolicy") and isinstance(described.get("config"), dict)
