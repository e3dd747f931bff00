"""A database of noisy digits, and the prototxts that train on it."""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np

from pycaffe_dist.schema import caffe_pb2

DATA = """
layer { name: 'data' type: 'Data' top: 'data' top: 'label' transform_param { scale: 0.00390625 }
  data_param { source: 'digits_lmdb' batch_size: %d backend: LMDB } }
"""
SOLVER = """
net: '%s' base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 lr_policy: 'inv' gamma: 0.0001
power: 0.75 display: 1 max_iter: %d random_seed: 5 solver_mode: CPU snapshot_prefix: '%s'
"""


def write_digits(folder: Path, count: int, side: int = 28) -> None:
    """Write an LMDB of ``count`` noisy digits, ten fixed patterns, to ``digits_lmdb``."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (10, side, side))
    path = str(folder / "digits_lmdb")
    with lmdb.open(path, map_size=1 << 26) as database, database.begin(write=True) as transaction:
        for number in range(count):
            label = int(rng.integers(10))
            image = (patterns[label] + rng.integers(0, 56, (side, side))).astype(np.uint8)
            datum = caffe_pb2.Datum(
                channels=1, height=side, width=side, data=image.tobytes(), label=label
            )
            transaction.put(b"%08d" % number, datum.SerializeToString())
