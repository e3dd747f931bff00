"""Layers that run as one do so on a GPU, too."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.device import HOST
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

NET = """
force_backward: true
layer { name: 'data' type: 'Input' top: 'data'
  input_param { shape { dim: 3 dim: 5 dim: 4 dim: 7 } } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'bn' type: 'BatchNorm' bottom: 'conv' top: '%s' }
layer { name: 'scale' type: 'Scale' bottom: '%s' top: '%s' scale_param {
  filler { type: 'gaussian' std: 1 } bias_term: true bias_filler { type: 'gaussian' std: 1 } } }
layer { name: 'relu' type: 'ReLU' bottom: '%s' top: '%s' }
"""


def _passes(top: str, dtype: type, on) -> list[np.ndarray]:
    """Return the results of forward and backward in float64; on the host layers run one by one."""
    param = text.parse(NET % ((top,) * 5), caffe_pb2.NetParameter())
    param.state.phase = caffe_pb2.TRAIN
    net = Net(param, dtype=dtype, seed=1, device=on)
    if not on.is_gpu:
        net.before_backward.append(lambda index: None)  # a listener makes the layers run one by one
    else:
        for layer in net.layers[2:]:
            layer.forward = layer.backward = None
    rng = np.random.default_rng(0)
    net.blobs["data"].data[...] = rng.standard_normal((3, 5, 4, 7))
    net.forward()
    net.blobs[top].diff[...] = rng.standard_normal(net.blobs[top].shape)
    net.backward()
    blobs = [net.blobs["data"].diff, net.blobs[top].data]
    blobs += [blob.diff for layer in net.layers[1:4] for blob in layer.blobs]
    return [np.asarray(each, np.float64) for each in blobs]


@pytest.mark.parametrize("top", ["conv", "bn"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_scaled_batch_norm_equals_the_cpus(top, dtype, gpu):
    tolerance = 1e-4 if dtype == np.float32 else 3e-2
    for found, expected in zip(_passes(top, dtype, gpu), _passes(top, np.float32, HOST)):
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
