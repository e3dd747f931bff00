"""Factored updates against updates by whole gradients, bit for bit, for every method."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.exchange.base import mean_of_products
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.engine import Factors
from pycaffe_dist.solvers.method import method_types
from pycaffe_dist.solvers.update import factored
from pycaffe_dist.solvers.update.factored import FactoredUpdates
from pycaffe_dist.solvers.update.target import ArrayTarget
from pycaffe_dist.solvers.update.updater import Updater

SHAPE, RANKS, SAMPLES = (37, 50), 3, 5


def make_target() -> ArrayTarget:
    weights = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    return ArrayTarget(weights, np.zeros_like(weights), lr_mult=2.0, decay_mult=0.5)


def test_a_parameter_may_have_a_regularization_of_its_own():
    param = caffe_pb2.SolverParameter(weight_decay=0.1, regularization_type="L1")
    weights = np.array([-2.0, 3.0])
    targets = [ArrayTarget(weights.copy(), np.zeros(2), regularization=r) for r in ("", "L2")]
    updater = Updater(param, targets)
    for index in (0, 1):
        updater.update(index, 1.0, 0)
    np.testing.assert_allclose(targets[0].weights, [-1.9, 2.9])
    np.testing.assert_allclose(targets[1].weights, weights * 0.9)


@pytest.mark.parametrize("method", method_types())
def test_updates_by_rows_give_the_same_bits(method, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK_BYTES", 7 * 4 * SHAPE[1])
    param = caffe_pb2.SolverParameter(
        type=method, weight_decay=0.01, momentum=0.0 if method in ("AdaGrad", "RMSProp") else 0.9
    )
    whole, by_rows = make_target(), make_target()
    updaters = Updater(param, [whole]), Updater(param, [by_rows])
    rows = FactoredUpdates(updaters[1])
    rng = np.random.default_rng(0)
    for iteration in range(3):
        u, v = (rng.standard_normal((RANKS * SAMPLES, n)).astype(np.float32) for n in SHAPE)
        mean_of_products(u, v, RANKS, whole.gradient)
        updaters[0].update(0, 0.1, iteration)
        rows.update(0, Factors(u, v, RANKS), 0.1, iteration)
        np.testing.assert_array_equal(by_rows.weights, whole.weights)
    for mine, theirs in zip(updaters[1].method.history, updaters[0].method.history, strict=True):
        np.testing.assert_array_equal(mine, theirs)
