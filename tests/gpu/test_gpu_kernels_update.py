"""The solver updates on a GPU against those on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.kernels import update

RATES = {
    "sgd_update": (1, (0.1, 0.9)),
    "nesterov_update": (1, (0.1, 0.9)),
    "adagrad_update": (1, (0.1, 1e-8)),
    "rmsprop_update": (1, (0.1, 0.98, 1e-8)),
    "adadelta_update": (2, (1.0, 0.95, 1e-6)),
    "adam_update": (2, (0.01, 0.9, 0.999, 1e-8)),
    "adamw_update": (2, (0.01, 0.9, 0.999, 1e-8, 1.5, 1.2)),
    "lion_update": (1, (0.01, 0.9, 0.99)),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("regularization", [(0.5, 0.0, 0.0), (1.0, 0.01, 0.02)])
def test_update_equals_the_cpus(name, regularization, on_gpu):
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


def test_a_running_mean_equals_the_cpus(on_gpu):
    mean, weights = np.random.default_rng(4).random((2, 3, 700), np.float32)
    there = on_gpu.to_device(mean), on_gpu.to_device(weights)
    update.blend(mean, weights, 0.3)
    update.blend(*there, 0.3)
    np.testing.assert_allclose(on_gpu.to_host(there[0]), mean, rtol=2e-6)


@pytest.mark.parametrize("name", RATES)
def test_the_update_of_many_equals_separate_updates(name, on_gpu):
    slots, scalars = RATES[name]
    rng = np.random.default_rng(3)
    # More than one piece, less, a single element, none.
    host = [
        [rng.random(shape).astype(np.float32) - 0.5 * (k < 2) for k in range(2 + slots)]
        for shape in ((3, 7000), (5, 3), (1,), (0,))
    ]
    apart, together = ([[*map(on_gpu.to_device, own)] for own in host] for _ in range(2))
    settings = [(0.01, 0.0, 1.0), (0.0, 0.02, 2.0), (0.0, 0.0, 0.5), (0.0, 0.0, 1.0)]
    rate, *others = scalars
    step = getattr(update, name)
    many = update.UpdateOfMany(step, [*map(tuple, together)], settings)
    for scale in (0.5, 1.0):
        for own, (l2, l1, factor) in zip(apart, settings):
            step(*own, (scale, l2, l1), rate * factor, *others)
        many.run(lambda scale=scale: (scale, rate, *others))
    for one, other in zip(apart, together):
        for expected, found in zip(one, other):
            np.testing.assert_array_equal(on_gpu.to_host(found), on_gpu.to_host(expected))


@pytest.mark.parametrize("odd", [np.zeros(4, np.float64), np.zeros(5, np.float32)], ids=str)
def test_arrays_that_do_not_fit_are_refused(odd, on_gpu):
    weights = np.zeros(4, np.float32)
    arrays = tuple(map(on_gpu.to_device, (weights, weights, odd)))
    with pytest.raises(DeviceError, match="sgd_update"):
        update.UpdateOfMany(update.sgd_update, [arrays], [(0.0, 0.0, 1.0)])
