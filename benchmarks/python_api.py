"""Measures the overhead of forward and backward through the Python API over the layers' own time.

python benchmarks/python_api.py prints microseconds per call for a net of nine small layers.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import pycaffe_dist as caffe
from pycaffe_dist.threads import set_threads

CALLS = 2000
ROUNDS = 9


def prototxt() -> str:
    """Return a small LeNet-shaped net without data layers."""
    L, P = caffe.layers, caffe.params
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 1, 8, 8]})
    n.conv1 = L.Convolution(n.data, kernel_size=3, num_output=4)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.relu1 = L.ReLU(n.pool1, in_place=True)
    n.ip1 = L.InnerProduct(n.relu1, num_output=8)
    n.relu2 = L.ReLU(n.ip1, in_place=True)
    n.drop2 = L.Dropout(n.relu2, in_place=True)
    n.ip2 = L.InnerProduct(n.drop2, num_output=4)
    n.prob = L.Softmax(n.ip2)
    return f"force_backward: true {n.to_proto()}"


def microseconds(run, calls: int = CALLS) -> float:
    """Return the processor time of one call: the minimum of several rounds' means."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            run()
        best = min(best, time.thread_time() - began)
    return best / calls * 1e6


def main() -> None:
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.prototxt"
        path.write_text(prototxt())
        net = caffe.Net(path, caffe.TEST)
    nodes = net._net.nodes

    def layers_forward() -> None:
        for node in nodes:
            node.layer.forward(node.bottom, node.top)

    def layers_backward() -> None:
        for node in reversed(nodes):
            if node.need_backward:
                node.layer.backward(node.top, node.propagate_down, node.bottom)

    data = np.ones((1, 1, 8, 8), np.float32)
    own = microseconds(layers_forward)
    print(f"layers forward          {own:8.1f} us")
    for name, run in (
        ("net.forward()", net.forward),
        ("net.forward(data=…)", lambda: net.forward(data=data)),
    ):
        whole = microseconds(run)
        print(f"{name:23} {whole:8.1f} us, {whole - own:5.1f} more")
    own = microseconds(layers_backward)
    whole = microseconds(net.backward)
    print(f"layers backward         {own:8.1f} us")
    print(f"net.backward()          {whole:8.1f} us, {whole - own:5.1f} more")


if __name__ == "__main__":
    main()
