"""Layers' states survive a resumption, with the same and with other numbers of ranks."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from pycaffe_dist.data.partition import Shard
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.schema import caffe_pb2, text

RANDOM = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'cont'
  dummy_data_param { shape { dim: 4 dim: 2 dim: 6 } shape { dim: 4 dim: 2 }
  data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'dropped' }
layer { name: 'lstm' type: 'LSTM' bottom: 'dropped' bottom: 'cont' top: 'lstm'
  recurrent_param { num_output: 3 weight_filler { type: 'constant' value: 0.5 } } }
layer { name: 'images' type: 'Reshape' bottom: 'x' top: 'images'
  reshape_param { shape { dim: 1 dim: 2 dim: 4 dim: 6 } } }
layer { name: 'pool' type: 'Pooling' bottom: 'images' top: 'pool'
  pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }
"""
ROWS = """
layer { name: 'rows' type: 'HDF5Data' top: 'number'
  hdf5_data_param { source: '%s' batch_size: %d shuffle: true } }
"""


def build(prototxt: str, seed: int | None, shard: Shard | None = None) -> Net:
    param = with_state(text.parse(prototxt, caffe_pb2.NetParameter()), caffe_pb2.TRAIN)
    return Net(param, seed=seed, shard=shard or Shard())


def states(net: Net) -> list[dict]:
    return json.loads(json.dumps([layer.state() for layer in net.layers]))


def outputs(net: Net, batches: int) -> list[np.ndarray]:
    found = []
    for _ in range(batches):
        net.forward()
        found += [net.blobs[name].data.copy() for name in net.outputs]
    return found


def test_random_and_recurrent_layers_resume_with_any_seed():
    net, other = build(RANDOM, 1), build(RANDOM, 2)
    outputs(net, 3)
    saved = states(net)
    expected = outputs(net, 3)
    outputs(other, 1)
    for layer, state in zip(other.layers, saved):
        layer.restore([state])
    for mine, theirs in zip(outputs(other, 3), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture
def rows(tmp_path):
    for part in range(3):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            file["number"] = np.arange(7 * part, 7 * part + 7, dtype=np.float32).reshape(7, 1)
    (tmp_path / "list.txt").write_text("\n".join(str(tmp_path / f"{p}.h5") for p in range(3)))
    return tmp_path / "list.txt"


@pytest.mark.parametrize("unit", ["record", "batch"])
@pytest.mark.parametrize("after, batch", [(4, 3), (1, 6), (2, 2), (3, 5)])
def test_another_number_of_ranks_shares_the_remaining_rows(rows, unit, after, batch):
    """Two ranks with batches of 3 read 24 rows; the next rows are as if one rank had read them."""
    all_rows = np.concatenate(outputs(build(ROWS % (rows, 1), 5), 120)).reshape(-1)
    before = [build(ROWS % (rows, 3), 5, Shard(rank, 2, unit)) for rank in range(2)]
    read = np.concatenate([outputs(net, 4) for net in before]).reshape(-1)
    assert sorted(read) == sorted(all_rows[:24])
    saved = [states(net)[0] for net in before]
    nets = [build(ROWS % (rows, batch), 9, Shard(rank, after, unit)) for rank in range(after)]
    for net in nets:
        net.layers[0].restore(saved)
    rest = np.concatenate([outputs(net, 4) for net in nets]).reshape(-1)
    assert sorted(rest) == sorted(all_rows[24 : 24 + rest.size])
