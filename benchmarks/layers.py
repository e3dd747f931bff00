"""Measures the time of every layer per byte that it reads and writes, compared with a copy.

    python benchmarks/layers.py [TYPE ...]

Each layer runs forward and backward on blobs of some megabytes, in turn with a NumPy copy of as
many bytes in as many threads as the layer may use (one: the copy is memory bound).  Printed are the
medians' ratios, largest first; layers that compute (products, exponentials, sorting) are marked.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np

from pycaffe_dist.layers import layer_types
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

ROUNDS = 9
IMAGES = (32, 32, 32, 32)  # 4 MB
MATRIX = (1024, 1024)
SCORES = (4096, 256)

# The needs of layers besides one bottom of images: fields, shapes of all bottoms, tops.
SETUPS: dict[str, tuple[str, list[tuple[int, ...]], int]] = {
    "Accuracy": ("", [SCORES, (4096,)], 1),
    "ArgMax": ("argmax_param { axis: 1 }", [SCORES], 1),
    "BatchReindex": ("", [IMAGES, (32,)], 1),
    "Bias": ("bias_param { filler { type: 'gaussian' } }", [IMAGES], 1),
    "Concat": ("", [IMAGES, IMAGES], 1),
    "ContrastiveLoss": ("", [MATRIX, MATRIX, (1024,)], 1),
    "Convolution": ("convolution_param { num_output: 32 kernel_size: 3 pad: 1 }", [IMAGES], 1),
    "Crop": ("crop_param { offset: 2 }", [IMAGES, (32, 32, 28, 28)], 1),
    "Deconvolution": ("convolution_param { num_output: 32 kernel_size: 3 pad: 1 }", [IMAGES], 1),
    "DummyData": ("dummy_data_param { shape { dim: 1024 dim: 1024 } }", [], 1),
    "Eltwise": ("", [IMAGES, IMAGES], 1),
    "Embed": ("embed_param { num_output: 256 input_dim: 10 }", [(4096,)], 1),
    "EuclideanLoss": ("", [MATRIX, MATRIX], 1),
    "Filter": ("", [IMAGES, (32,)], 1),
    "HingeLoss": ("", [SCORES, (4096,)], 1),
    "Im2col": ("convolution_param { kernel_size: 3 pad: 1 }", [IMAGES], 1),
    "InfogainLoss": ("", [SCORES, (4096,), (1, 1, 256, 256)], 1),
    "InnerProduct": ("inner_product_param { num_output: 256 }", [MATRIX], 1),
    "LSTM": (
        "recurrent_param { num_output: 128 weight_filler { type: 'xavier' } }",
        [(16, 64, 256), (16, 64)],
        1,
    ),
    "LSTMUnit": ("", [(1, 1024, 256), (1, 1024, 1024), (1, 1024)], 2),
    "LRN": ("", [IMAGES], 1),
    "MultinomialLogisticLoss": ("", [SCORES, (4096,)], 1),
    "Parameter": ("parameter_param { shape { dim: 1024 dim: 1024 } }", [], 1),
    "Pooling": ("pooling_param { kernel_size: 3 stride: 2 }", [IMAGES], 1),
    "RNN": (
        "recurrent_param { num_output: 128 weight_filler { type: 'xavier' } }",
        [(16, 64, 256), (16, 64)],
        1,
    ),
    "Reshape": ("reshape_param { shape { dim: 0 dim: -1 } }", [IMAGES], 1),
    "SPP": ("spp_param { pyramid_height: 3 }", [IMAGES], 1),
    "Scale": ("scale_param { bias_term: true }", [IMAGES], 1),
    "SigmoidCrossEntropyLoss": ("", [MATRIX, MATRIX], 1),
    "Silence": ("", [IMAGES], 0),
    "Slice": ("", [IMAGES], 2),
    "Softmax": ("", [SCORES], 1),
    "SoftmaxWithLoss": ("", [SCORES, (4096,)], 1),
    "Split": ("", [IMAGES], 2),
    "Tile": ("tile_param { tiles: 2 }", [IMAGES], 1),
}
COMPUTES = {
    "BNLL", "Convolution", "Deconvolution", "ELU", "Exp", "Im2col", "InnerProduct", "LRN", "LSTM",
    "LSTMUnit", "Log", "Power", "RNN", "SPP", "Sigmoid", "SigmoidCrossEntropyLoss", "Softmax",
    "SoftmaxWithLoss", "Swish", "TanH",
}  # fmt: skip
# These read files or call the user's code: benchmarks/data.py measures reading.
ELSEWHERE = {"Data", "HDF5Data", "HDF5Output", "ImageData", "Input", "MemoryData", "Python",
             "WindowData"}  # fmt: skip


def build(kind: str) -> Net:
    """Return a net of one layer of a type, behind Input layers."""
    fields, shapes, tops = SETUPS.get(kind, ("", [IMAGES], 1))
    layers = ["force_backward: true"]
    for number, shape in enumerate(shapes):
        dims = " ".join(f"dim: {dim}" for dim in shape)
        layers.append(
            f"layer {{ name: 'in{number}' type: 'Input' top: 'in{number}' "
            f"input_param {{ shape {{ {dims} }} }} }}"
        )
    bottom = " ".join(f"bottom: 'in{number}'" for number in range(len(shapes)))
    top = " ".join(f"top: 'out{number}'" for number in range(tops))
    layers.append(f"layer {{ name: 'it' type: '{kind}' {bottom} {top} {fields} }}")
    return Net(text.parse("\n".join(layers), caffe_pb2.NetParameter()))


def fill(net: Net, kind: str) -> None:
    """Fill bottoms with suitable values: labels, selectors, probabilities or Gaussians."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(net.inputs):
        blob = net.blobs[name]
        if kind == "Embed" or (number and blob.ndim == 1 and kind != "ContrastiveLoss"):
            blob.data[...] = rng.integers(0, 10, blob.shape)
        elif kind in ("Filter", "ContrastiveLoss", "LSTM", "RNN", "LSTMUnit") and blob.ndim < 3:
            blob.data[...] = rng.integers(0, 2, blob.shape)
        elif kind in ("InfogainLoss", "MultinomialLogisticLoss", "Log", "SigmoidCrossEntropyLoss"):
            blob.data[...] = rng.uniform(0.1, 0.9, blob.shape)
        else:
            blob.data[...] = rng.standard_normal(blob.shape)


def measure(kind: str) -> tuple[float, float, float]:
    """Return the megabytes moved and the median seconds of the layer and of the copy."""
    net = build(kind)
    fill(net, kind)
    index = len(net.nodes) - 1
    node = net.nodes[index]
    net.forward()
    node.need_backward = node.layer.has_backward
    blobs = [*node.bottom, *node.top]
    for blob in node.top:
        blob.diff[...] = 1
    # Forward reads the bottoms and writes the tops, backward the other way round.
    nbytes = sum(blob.data.nbytes for blob in blobs) * (1 + node.need_backward)
    nbytes += sum(blob.data.nbytes for blob in node.layer.blobs)
    source = np.ones(max(nbytes // 8, 1), np.float32)
    target = np.empty_like(source)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for seconds, run in zip(times, (lambda: _run(net, index), lambda: _copy(target, source))):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
    net.close()
    return nbytes / 1e6, median(times[0][1:]), median(times[1][1:])


def _run(net: Net, index: int) -> None:
    net.forward_layer(index)
    net.backward_layer(index)


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    np.copyto(target, source)


def main() -> None:
    """Measure the types named on the command line, or all."""
    kinds = sys.argv[1:] or [kind for kind in layer_types() if kind not in ELSEWHERE]
    rows = []
    for kind in kinds:
        megabytes, layer, copy = measure(kind)
        rows.append((layer / copy, kind, megabytes, layer))
    print(f"{'layer':26}{'MB':>8}{'ms':>10}{'x copy':>9}")
    for ratio, kind, megabytes, layer in sorted(rows, reverse=True):
        mark = "  computes" if kind in COMPUTES else ""
        print(f"{kind:26}{megabytes:8.1f}{1e3 * layer:10.3f}{ratio:9.1f}{mark}")


if __name__ == "__main__":
    main()
