"""The solver updates on a GPU against those on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import update

RATES = {
    "sgd_update": (1, (0.1, 0.9)),
    "nesterov_update": (1, (0.1, 0.9)),
    "adagrad_update": (1, (0.1, 1e-8)),
    "rmsprop_update": (1, (0.1, 0.98, 1e-8)),
    "adadelta_update": (2, (1.0, 0.95, 1e-6)),
    "adam_update": (2, (0.01, 0.9, 0.999, 1e-8)),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("regularization", [(0.5, 0.0, 0.0), (1.0, 0.01, 0.02)])
def test_update_is_that_of_the_cpu(name, regularization, on_gpu):
    slots, scalars = RATES[name]
    rng = np.random.default_rng(2)
    here = [rng.standard_normal((3, 700)).astype(np.float32) for _ in range(2)]
    here += [rng.random((3, 700)).astype(np.float32) for _ in range(slots)]
    here[0][0, :5] = 0  # has no sign
    there = [on_gpu.to_device(array) for array in here]
    for _ in range(2):
        getattr(update, name)(*here, regularization, *scalars)
        getattr(update, name)(*there, regularization, *scalars)
    for expected, found in zip(here, there):
        np.testing.assert_allclose(on_gpu.to_host(found), expected, rtol=2e-5, atol=1e-6)
