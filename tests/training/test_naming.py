"""The grammar of data sets and of functions that make models."""

from __future__ import annotations

import pytest

from edgepeer.training.naming import DatasetName, FunctionName, parse_dataset, parse_function


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("digits", DatasetName("digits")),
        ("mnist", DatasetName("mnist")),
        ("npz:a/b", DatasetName("npz", "a/b")),
        ("a:b.npz", DatasetName("npz", "a:b.npz")),
        ("own.npz", DatasetName("npz", "own.npz")),
        ("local:own.npz", DatasetName("local", "own.npz")),
        *((text, None) for text in ("", "Digits", "digits:", "npz", "npz:", "local", "local:", "http://x/y")),
    ],
)
def test_data_sets(text: str, named: DatasetName | None) -> None:
    assert parse_dataset(text) == named


@pytest.mark.parametrize("text", ["mlp", "a b:c", ":c", "a:", "a.:b", "os.path:a.b", "a:b:c"])
def test_no_function(text: str) -> None:
    assert parse_function(text) is None


def test_a_function_is_of_a_package() -> None:
    named = parse_function("plants.models:small")
    assert named == FunctionName("plants.models", "small")
    assert named is not None
    assert named.package == "plants"
