"""Golden cases of layers as nets whose inputs are the file's bottoms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf import text_format

from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted((GOLDEN / "layers").glob("*.npz")) + sorted((GOLDEN / "forks").glob("*.npz"))


def load(path: Path) -> tuple[Net, dict[str, np.ndarray]]:
    """Return the net of a case with its parameters, and all blobs that the file has."""
    with np.load(path) as archive:
        arrays = dict(archive)
    blobs = {key[5:]: arrays[key] for key in arrays if key.startswith("blob/")}
    given = text_format.Parse(str(arrays["prototxt"]), caffe_pb2.NetParameter())
    layers = [
        layer
        for layer in given.layer
        if layer.bottom and all(name in blobs for name in layer.bottom)
    ]
    made = {name for layer in layers for name in layer.top}
    param = caffe_pb2.NetParameter(name=path.stem)
    param.state.phase = caffe_pb2.Phase.Value(str(arrays["phase"]))
    for name in dict.fromkeys(name for layer in layers for name in layer.bottom):
        if name not in made:
            source = param.layer.add(name=f"{name}-input", type="Input", top=[name])
            source.input_param.shape.add(dim=blobs[name].shape)
    param.layer.extend(layers)
    net = Net(param)
    for node in net.nodes:
        for index, blob in enumerate(node.layer.blobs):
            key = f"param/{node.name}/{index}"
            if key in arrays:
                blob.data[...] = arrays[key].reshape(blob.shape)
    return net, blobs


def diffs(name: str) -> dict[str, np.ndarray]:
    """Return the gradients of a case: topdiff/BLOB, bottomdiff/BLOB, paramdiff/LAYER/INDEX."""
    path = next(path for path in CASES if path.stem == name)
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files if "diff/" in key}
