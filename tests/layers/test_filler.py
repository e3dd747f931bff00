"""Fillers draw from the right distributions, and refuse impossible settings."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.layers.filler import fill
from pycaffe_dist.schema import caffe_pb2


def filled(text: str, *shape: int, dtype=np.float32, seed: int = 3) -> np.ndarray:
    blob = Blob(shape, dtype)
    param = text_format.Parse(text, caffe_pb2.FillerParameter())
    fill(blob, param, np.random.default_rng(seed))
    return blob.data


def test_constant_defaults_to_zero():
    assert np.all(filled("", 3, 4) == 0)
    assert np.all(filled("type: 'constant' value: -2.5", 3, 4) == -2.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform_and_gaussian(dtype):
    uniform = filled("type: 'uniform' min: -1 max: 3", 100, 100, dtype=dtype)
    assert uniform.min() >= -1 and uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.05 and abs(uniform.std() - 4 / np.sqrt(12)) < 0.02
    gaussian = filled("type: 'gaussian' mean: 2 std: 0.5", 100, 100, dtype=dtype)
    assert abs(gaussian.mean() - 2) < 0.02 and abs(gaussian.std() - 0.5) < 0.02


def test_sparse_gaussian_keeps_the_given_number_per_input():
    data = filled("type: 'gaussian' std: 1 sparse: 5", 50, 400)
    assert abs((data != 0).sum(axis=0).mean() - 5) < 0.3


def test_positive_unitball_rows_sum_to_one():
    data = filled("type: 'positive_unitball'", 7, 3, 5)
    assert data.min() >= 0
    np.testing.assert_allclose(data.sum(axis=(1, 2)), 1, rtol=1e-5)


@pytest.mark.parametrize(("norm", "n"), [("FAN_IN", 100), ("FAN_OUT", 400), ("AVERAGE", 250)])
def test_xavier_and_msra_scale_with_the_fan(norm, n):
    shape = (80, 20, 5, 1)  # fan in 100, fan out 400
    xavier = filled(f"type: 'xavier' variance_norm: {norm}", *shape)
    bound = np.sqrt(3 / n)
    assert 0.98 * bound < np.abs(xavier).max() <= bound
    assert abs(xavier.var() * n - 1) < 0.05
    msra = filled(f"type: 'msra' variance_norm: {norm}", *shape)
    assert abs(msra.var() * n - 2) < 0.1
    assert abs(msra.mean()) < 0.01


def test_fan_out_of_a_vector_is_its_length():
    vector = filled("type: 'xavier' variance_norm: FAN_OUT", 3000)
    assert 0.9 * np.sqrt(1e-3) < np.abs(vector).max() <= np.sqrt(1e-3)


@pytest.mark.parametrize("size", [3, 4])
def test_bilinear_upsamples_a_constant_to_a_constant(size):
    data = filled("type: 'bilinear'", 2, 1, size, size)
    assert np.array_equal(data[0], data[1])
    factor = (size + 1) // 2
    for phase_y in range(factor):
        for phase_x in range(factor):
            weight = data[0, 0, phase_y::factor, phase_x::factor].sum()
            assert weight == pytest.approx(1, abs=1e-6)


def test_same_generator_same_values():
    text = "type: 'gaussian' std: 1"
    assert np.array_equal(filled(text, 9, seed=1), filled(text, 9, seed=1))
    assert not np.array_equal(filled(text, 9, seed=1), filled(text, 9, seed=2))


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("type: 'gausian'", (2,), "unknown filler type 'gausian'; did you mean 'gaussian'"),
        ("type: 'xavier' sparse: 3", (2, 2), "does not support sparse"),
        ("type: 'gaussian' sparse: -2", (2, 2), "sparse >= 0, found -2"),
        ("type: 'gaussian' std: -1", (2, 2), "std >= 0, found -1"),
        ("type: 'uniform' min: 2 max: 1", (2,), "min <= max, found 2.0 and 1.0"),
        ("type: 'constant'", (2, 0), r"empty blob \(2, 0\)"),
        ("type: 'xavier'", (), "at least one axis"),
        ("type: 'bilinear'", (2, 1, 3, 4), r"square kernels, found \(2, 1, 3, 4\)"),
    ],
)
def test_misuse(text, shape, message):
    with pytest.raises(NetError, match=message):
        filled(text, *shape)
