"""NumPy: the weights as an .npz file, and the net as JSON beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format

from pycaffe_dist import atomic
from pycaffe_dist.errors import NetError, UsageError
from pycaffe_dist.exporting.options import Options, Report
from pycaffe_dist.net.net import Net


def export(net: Net, path: str, options: Options) -> Report:
    """Write the weights of ``net`` to ``path``, an .npz, and its layers to a .json file beside it.

    An array is called LAYER/INDEX.  The JSON has the net's name, inputs, outputs and layers: type,
    bottoms, tops, shapes of tops, arrays, and the fields of the prototxt.  What is read back is
    compared with the net, exactly.
    """
    file = Path(path)
    if file.suffix != ".npz":
        raise UsageError(f"arrays of NumPy need a file like net.npz, not '{path}'")
    arrays = {
        f"{node.name}/{index}": np.array(blob.read_data())
        for node in net.nodes
        for index, blob in enumerate(node.layer.blobs)
    }
    with atomic.replacing(file) as new:
        with new.open("wb") as target:
            np.savez(target, **arrays)  # type: ignore[arg-type]
        _require_same(new, arrays)
    description = file.with_suffix(".json")
    with atomic.replacing(description) as new:
        new.write_text(json.dumps(_description(net), indent=1) + "\n", encoding="utf-8")
    return Report([path, str(description)])


def _require_same(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with np.load(path) as found:
        for name, array in arrays.items():
            if not np.array_equal(found[name], array, equal_nan=True):
                raise NetError(f"array '{name}' is not the same when it is read back")


def _description(net: Net) -> dict[str, Any]:
    nodes = {node.name: node for node in net.nodes}
    layers = []
    for message in net.definition.layer:
        node = nodes[message.name]
        fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
        for field in ("name", "type", "bottom", "top", "blobs"):
            fields.pop(field, None)
        layers.append(
            {
                "name": node.name,
                "type": node.layer.type,
                "bottoms": [*message.bottom],
                "tops": [*node.top_names],
                "top_shapes": [[*blob.shape] for blob in node.top],
                "arrays": [f"{node.name}/{index}" for index in range(len(node.layer.blobs))],
                "fields": fields,
            }
        )
    return {
        "name": net.name,
        "phase": "TEST" if net.phase else "TRAIN",
        "inputs": {name: [*net.blobs[name].shape] for name in net.inputs},
        "outputs": [*net.outputs],
        "layers": layers,
    }
