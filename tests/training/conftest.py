"""TensorFlow is imported once per test process, and small trainers are shared: a state resets them."""

from __future__ import annotations

from typing import Any

import pytest

from edgepeer.training.datasets import Dataset, load_dataset


@pytest.fixture(scope="session")
def digits() -> Dataset:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    return load_dataset("digits")


@pytest.fixture(scope="session")
def keras() -> Any:
    pytest.importorskip("tensorflow", reason="the Keras trainer needs TensorFlow")
    from edgepeer.training.keras_setup import load_keras

    return load_keras()
