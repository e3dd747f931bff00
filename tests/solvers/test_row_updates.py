"""Updates by rows against updates of whole weights, bit for bit, for every method."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.blob import Blob
from pycaffe_dist.exchange.base import mean_of_products
from pycaffe_dist.exchange.engine import Factors
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import row_updates
from pycaffe_dist.solvers.method import method_types
from pycaffe_dist.solvers.row_updates import RowUpdates
from pycaffe_dist.solvers.updating import Updater

SHAPE, RANKS, SAMPLES = (37, 50), 3, 5


class Weights:
    """What an updater reads of a parameter."""

    lr_mult, decay_mult = 2.0, 0.5

    def __init__(self):
        self.blob = Blob(SHAPE, np.float32)
        self.blob.data[...] = np.random.default_rng(1).standard_normal(SHAPE)
        self.shape = SHAPE


@pytest.mark.parametrize("method", method_types())
def test_rows_get_the_bits_of_the_whole(method, monkeypatch):
    monkeypatch.setattr(row_updates, "BLOCK_BYTES", 7 * 4 * SHAPE[1])
    param = caffe_pb2.SolverParameter(
        type=method, weight_decay=0.01, momentum=0.0 if method in ("AdaGrad", "RMSProp") else 0.9
    )
    whole, by_rows = Weights(), Weights()
    updaters = Updater(param, [whole]), Updater(param, [by_rows])
    rows = RowUpdates(updaters[1], 0)
    rng = np.random.default_rng(0)
    for iteration in range(3):
        u, v = (rng.standard_normal((RANKS * SAMPLES, n)).astype(np.float32) for n in SHAPE)
        mean_of_products(u, v, RANKS, whole.blob.diff)
        updaters[0].update(0, 0.1, iteration)
        rows.update(Factors(u, v, RANKS), 0.1, iteration)
        np.testing.assert_array_equal(by_rows.blob.data, whole.blob.data)
    for mine, theirs in zip(updaters[1].method.history, updaters[0].method.history, strict=True):
        np.testing.assert_array_equal(mine, theirs)
