"""Runs of data layers of forks, and their golden batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "forks_data"


class Run:
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


def layer(text: str):
    """Return the layer that a prototxt's text describes."""
    return text_format.Merge(text, caffe_pb2.LayerParameter())


def golden_cases(prefix: str) -> list[str]:
    return sorted(path.stem for path in (GOLDEN / "expected").glob(f"{prefix}_*.prototxt"))


def check_golden(case: str) -> None:
    """Compare a layer's batches to the fork's; the current folder is `GOLDEN`."""
    net = text_format.Parse(Path(f"expected/{case}.prototxt").read_text(), caffe_pb2.NetParameter())
    expected = np.load(f"expected/{case}.npz")
    run = Run(net.layer[0], phase=caffe_pb2.Phase.Value(str(expected["phase"])))
    for i in range(4):
        for name, found in zip(net.layer[0].top, run.batch()):
            np.testing.assert_allclose(found, expected[f"iter{i}/{name}"], rtol=1e-4, atol=1e-5)
    run.layer.close()
