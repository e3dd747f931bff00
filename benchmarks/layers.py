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
from layer_setups import DEFAULT, SETUPS

from pycaffe_dist.layers import layer_types
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

ROUNDS = 9
COMPUTES = {
    "BNLL", "Convolution", "Deconvolution", "ELU", "Exp", "Im2col", "InnerProduct", "LRN", "LSTM",
    "LSTMUnit", "Log", "Power", "RNN", "SPP", "Sigmoid", "SigmoidCrossEntropyLoss", "Softmax",
    "SoftmaxWithLoss", "Swish", "TanH",
}  # fmt: skip
# These read files or call the user's code: benchmarks/data.py measures reading.
ELSEWHERE = {"Data", "HDF5Data", "HDF5Output", "ImageData", "Input", "MemoryData", "Python",
             "WindowData"}  # fmt: skip


def build(kind: str) -> Net:
    """Return a net of one layer of a type, behind Input layers with suitable values."""
    setup = SETUPS.get(kind, DEFAULT)
    rng = np.random.default_rng(0)
    values = [make(rng) for make in setup.bottoms]
    layers = ["force_backward: true"]
    for number, value in enumerate(values):
        dims = " ".join(f"dim: {dim}" for dim in value.shape)
        layers.append(
            f"layer {{ name: 'in{number}' type: 'Input' top: 'in{number}' "
            f"input_param {{ shape {{ {dims} }} }} }}"
        )
    bottom = " ".join(f"bottom: 'in{number}'" for number in range(len(values)))
    top = " ".join(f"top: 'out{number}'" for number in range(setup.tops))
    layers.append(f"layer {{ name: 'it' type: '{kind}' {bottom} {top} {setup.fields} }}")
    net = Net(text.parse("\n".join(layers), caffe_pb2.NetParameter()))
    for number, value in enumerate(values):
        net.blobs[f"in{number}"].data[...] = value
    return net


def measure(kind: str) -> tuple[float, float, float]:
    """Return the megabytes moved and the median seconds of the layer and of the copy."""
    net = build(kind)
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
