"""The AnnotatedData layer against SSD's own batches; crops, ranks, resumption and bad records."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "forks_data"
CASES = sorted(path.stem for path in (GOLDEN / "expected").glob("imageseg_*.prototxt"))
TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


class _Run:
    """A layer and its tops; ``batch()`` runs it once and returns copies of the tops."""

    def __init__(self, param, **context):
        context.setdefault("seed", 1)
        self.layer = layer_class(param.type)(param, LayerContext(**context))
        self.tops = [Blob(dtype=self.layer.context.dtype) for _ in param.top]
        self.layer.setup([], self.tops)
        self.layer.reshape([], self.tops)

    def batch(self) -> list[np.ndarray]:
        self.layer.forward([], self.tops)
        return [top.data.copy() for top in self.tops]


@pytest.mark.parametrize("case", CASES)
def test_batches_equal_the_forks(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    net = text_format.Parse(Path(f"expected/{case}.prototxt").read_text(), caffe_pb2.NetParameter())
    expected = np.load(f"expected/{case}.npz")
    run = _Run(net.layer[0], phase=caffe_pb2.Phase.Value(str(expected["phase"])))
    for i in range(4):
        for name, found in zip(net.layer[0].top, run.batch()):
            np.testing.assert_allclose(found, expected[f"iter{i}/{name}"], rtol=1e-4, atol=1e-5)
    run.layer.close()
