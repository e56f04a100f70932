"""Whether two Keras models compute the same, by how Keras describes them: two versions of a package may make models of
as many parameters, whose gradients must not be added up.

Names are left out, which Keras counts up over the life of a process, and what has no part in what a model computes
after its state has come: initializers, seeds (the trainer sets them) and what Keras keeps for itself. So is the code of
a Lambda, in which are the paths of files. What a class does in `call` no description says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from edgepeer.training.keras_setup import load_keras

__all__ = ["architecture", "are_others"]

_DIGEST_BYTES: Final = 16
_OF_LAYERS: Final = frozenset(("name", "keras_history", "input_layers", "output_layers"))
"""Where a description names layers."""
_LEFT_OUT: Final = frozenset(
    ("seed", "build_config", "build_input_shape", "compile_config", "module", "registered_name", "shared_object_id")
)


def architecture(model: Any) -> str:
    """The version of Keras and a digest of what the model computes, at most 64 characters: models with the same
    compute the same, but for code of their own classes; of one version of Keras, models with different ones don't.
    Empty where Keras can't describe it.
    """
    try:
        described = json.loads(model.to_json())
    except Exception:  # foreign code, which may not be able to say what it has been given
        return ""
    names = {name: f"#{number}" for number, name in enumerate(dict.fromkeys(_names(described)))}
    plain = json.dumps(_plain(described, names), sort_keys=True)
    digest = hashlib.blake2b(plain.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{load_keras().__version__[:24]} {digest}"


def are_others(one: str, another: str) -> bool:
    """Whether models that are described so compute something else for certain. Another version of Keras may describe
    the same otherwise."""
    return bool(one and another) and one != another and one.partition(" ")[0] == another.partition(" ")[0]


def _names(described: Any) -> Iterator[str]:
    """What layers are called, in their order."""
    if isinstance(described, dict):
        config = described.get("config")
        if isinstance(config, dict) and not _is_policy(described) and isinstance(name := config.get("name"), str):
            yield name
        for value in described.values():
            yield from _names(value)
    elif isinstance(described, list):
        for value in described:
            yield from _names(value)


def _plain(described: Any, names: dict[str, str], *, named: bool = False) -> Any:
    """What counts of a description, with layers numbered where they are named."""
    if isinstance(described, dict):
        if described.get("class_name") == "__lambda__":
            return "a lambda"
        if _is_policy(described):
            return described["config"]
        kept = {key: value for key, value in described.items() if key not in _LEFT_OUT}
        return {
            key: _plain(value, names, named=named or key in _OF_LAYERS)
            for key, value in kept.items()
            if not key.endswith("_initializer")
        }
    if isinstance(described, list):
        return [_plain(value, names, named=named) for value in described]
    return names.get(described, described) if named and isinstance(described, str) else described


def _is_policy(described: dict[str, Any]) -> bool:
    """Of the numbers that a layer computes with, whose name counts."""
    return str(described.get("class_name", "")).endswith("DTypePolicy") and isinstance(described.get("config"), dict)
