"""The update of several parameters at once."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import update

# The number of history arrays, and the arguments after the rate.
METHODS = {
    "sgd_update": (1, (0.9,)),
    "nesterov_update": (1, (0.9,)),
    "adagrad_update": (1, (1e-8,)),
    "rmsprop_update": (1, (0.98, 1e-8)),
    "adadelta_update": (2, (0.95, 1e-6)),
    "adam_update": (2, (0.9, 0.999, 1e-8)),
    "adamw_update": (2, (0.9, 0.999, 1e-8, 1.5, 1.1)),
    "lion_update": (1, (0.9, 0.99)),
}
SHAPES = (300, 200), (7,), (0, 4), (1,)
SETTINGS = [(0.01, 0.0, 1.0), (0.0, 0.02, 2.0), (0.5, 0.0, 1.0), (0.0, 0.0, 0.5)]


def test_all_methods_are_tested():
    assert set(METHODS) == {name for name in vars(update) if name.endswith("_update")}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", METHODS)
def test_it_equals_separate_updates_bit_for_bit(name, dtype):
    slots, own = METHODS[name]
    rng = np.random.default_rng(3)
    # History is positive.
    apart = [
        tuple((rng.random(shape) - 0.5 * (k < 2)).astype(dtype) for k in range(2 + slots))
        for shape in SHAPES
    ]
    together = [tuple(array.copy() for array in arrays) for arrays in apart]
    step = getattr(update, name)
    many = update.UpdateOfMany(step, together, SETTINGS)
    before = together[0][0].copy()
    for scale, rate in ((0.5, 0.1), (1.0, 0.03), (0.25, 0.7)):
        for arrays, (l2, l1, factor) in zip(apart, SETTINGS):
            step(*arrays, (scale, l2, l1), rate * factor, *own)
        many.run(lambda scale=scale, rate=rate: (scale, rate, *own))
        for one, other in zip(apart, together):
            for expected, found in zip(one, other):
                np.testing.assert_array_equal(found, expected)
    assert (together[0][0] != before).all()
