"""Where a job's loss lies in its vector, and what rounding makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from edgepeer.training.precision_choice import vector_size
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import PRECISIONS, Precision, block_of, encoded_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_loss_is_in_a_block_of_its_own(precision: Precision) -> None:
    block = block_of(precision)
    for parameters in (1, 2, 255, 256, 257, 407_050):
        size = vector_size(parameters, precision)
        assert size > parameters
        assert (size - 1) % block == 0
        assert size - 1 - parameters < block


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_so_a_large_loss_costs_small_gradients_nothing(precision: Precision) -> None:
    parameters, codec = 300, codec_of(precision)
    assert codec is not None
    vector = np.zeros(vector_size(parameters, precision), np.float32)
    vector[:parameters] = np.linspace(-1e-4, 1e-4, parameters)
    vector[-1] = 115.13
    data, back = bytearray(encoded_bytes(precision, vector.size)), np.empty_like(vector)
    assert codec.encode(vector, data)
    assert codec.decode(data, back) == ""
    assert np.abs(back[:parameters] - vector[:parameters]).max() <= 1e-4 * 2**-7
    assert back[-1] == pytest.approx(115.13, rel=2**-8)
