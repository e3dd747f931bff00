"""Python layers as detectors use them: old names, tops that get their shapes in forward."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

MODULE = '''
import numpy as np
from pycaffe_dist.layers.python import PythonLayerBase

class Rois(PythonLayerBase):
    """Boxes, box targets and weights; their number changes with every forward."""

    def setup(self, bottom, top):
        self.most = eval(self.param_str_)[str(self.phase)]
        self.calls = 0
        for blob, columns in zip(top, (5, 8, 8, 8)):
            blob.reshape(1, columns)

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        self.calls += 1
        rows = self.most + self.calls
        corner = np.arange(rows)[:, None] % 6
        boxes = np.hstack([0 * corner, corner, corner, corner + 5, corner + 7])
        for blob, value in zip(top, (boxes, np.ones((rows, 8)), np.eye(rows, 8), np.eye(rows, 8))):
            blob.reshape(*value.shape)
            blob.data[...] = value

    def backward(self, top, propagate_down, bottom):
        pass
'''

NET = """
layer { name: "in" type: "DummyData" top: "x" dummy_data_param {
  shape { dim: 1 dim: 2 dim: 12 dim: 14 } data_filler { type: "gaussian" } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "f"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "score" type: "Convolution" bottom: "f" top: "s"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "rois" type: "Python" bottom: "s" PROPAGATE top: "r" top: "t" top: "v" top: "w"
  python_param { module: "some_rois" layer: "Rois" param_str: "{'TRAIN': 6, 'TEST': 3}" } }
layer { name: "pool" type: "ROIPooling" bottom: "f" bottom: "r" top: "p"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 } }
layer { name: "fc" type: "InnerProduct" bottom: "p" top: "y"
  inner_product_param { num_output: 8 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss" type: "SmoothL1Loss" bottom: "y" bottom: "t" bottom: "v" bottom: "w" top: "l"
  loss_weight: 1 }
layer { name: "other" type: "Reduction" bottom: "s" top: "o" loss_weight: 0.1 }
"""


def gradients(propagate, phase):
    param = text_format.Parse(NET.replace("PROPAGATE", propagate), caffe_pb2.NetParameter())
    param.state.phase = phase
    net = Net(param, seed=3, keep_diffs=False)
    results = []
    for _ in range(3):
        net.clear_parameter_diffs()
        net.forward()
        rows = net.blobs["r"].shape[0]
        net.backward()
        results.append((rows, [p.blob.diff.copy() for p in net.parameters]))
    return results


@pytest.mark.parametrize(("phase", "rows"), [(0, [7, 8, 9]), (1, [4, 5, 6])])
def test_boxes_of_a_python_layer_are_constants(tmp_path, monkeypatch, phase, rows):
    """Its backward writes nothing, and the net gets the gradients as without it."""
    (tmp_path / "some_rois.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = gradients("", phase)
    expected = gradients("propagate_down: false", phase)
    assert [each[0] for each in found] == rows
    for (_, one), (_, other) in zip(found, expected):
        assert all(np.abs(diff).max() > 0 for diff in one[:4])
        for diff, wanted in zip(one, other):
            np.testing.assert_array_equal(diff, wanted)
