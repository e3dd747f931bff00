"""Times the kernels on the layers of Caffe's classic nets, and PyTorch's if it is installed.

Prints, for each pass, the milliseconds, the fraction of the measured multiply-add peak (products
and convolutions; padding counts as work, so it may exceed 1), and PyTorch's time over ours.  Both
sides run alternately, so that a busy machine slows both; prints medians.

    python benchmarks/kernels.py --threads 2
    python benchmarks/kernels.py --only conv --match cifar --cpu-time
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from peaks import multiply_add_peak

from pycaffe_dist.kernels import lrn, pooling, update
from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.pooling import PoolingGeometry
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.threads import set_threads

try:
    import torch
except ImportError:
    torch = None

Pass = tuple[str, float, Callable[[], object], Callable[[], object] | None]

# batch, channels, size, outputs, kernel, stride, pad, group
CONVOLUTIONS = {
    "lenet conv1": (64, 1, 28, 20, 5, 1, 0, 1),
    "lenet conv2": (64, 20, 12, 50, 5, 1, 0, 1),
    "cifar conv1": (100, 3, 32, 32, 5, 1, 2, 1),
    "cifar conv2": (100, 32, 16, 32, 5, 1, 2, 1),
    "cifar conv3": (100, 32, 8, 64, 5, 1, 2, 1),
    "caffenet conv1": (16, 3, 227, 96, 11, 4, 0, 1),
    "caffenet conv2": (16, 96, 27, 256, 5, 1, 2, 2),
    "caffenet conv3": (16, 256, 13, 384, 3, 1, 1, 1),
    "caffenet conv4": (16, 384, 13, 384, 3, 1, 1, 2),
    "caffenet conv5": (16, 384, 13, 256, 3, 1, 1, 2),
    "googlenet conv1": (8, 3, 224, 64, 7, 2, 3, 1),
    "googlenet conv2 reduce": (8, 64, 56, 64, 1, 1, 0, 1),
    "googlenet conv2": (8, 64, 56, 192, 3, 1, 1, 1),
    "googlenet 3a 1x1": (8, 192, 28, 64, 1, 1, 0, 1),
    "googlenet 3a 3x3": (8, 96, 28, 128, 3, 1, 1, 1),
    "googlenet 3a 5x5": (8, 16, 28, 32, 5, 1, 2, 1),
    "googlenet 4a 1x1": (8, 480, 14, 192, 1, 1, 0, 1),
    "googlenet 4a 3x3": (8, 96, 14, 208, 3, 1, 1, 1),
    "googlenet 5b 1x1": (8, 832, 7, 384, 1, 1, 0, 1),
    "googlenet 5b 3x3": (8, 192, 7, 384, 3, 1, 1, 1),
    "resnet 3x3 stride 2": (8, 64, 56, 128, 3, 2, 1, 1),
    "mobilenet depthwise": (8, 128, 56, 128, 3, 1, 1, 128),
}
# samples, outputs, inputs
INNER_PRODUCTS = {
    "lenet ip1": (64, 500, 800),
    "lenet ip2": (64, 10, 500),
    "cifar ip1": (100, 64, 1024),
    "caffenet fc6": (64, 4096, 9216),
    "caffenet fc7": (64, 4096, 4096),
    "caffenet fc8": (64, 1000, 4096),
    "googlenet classifier": (32, 1000, 1024),
}
# batch, channels, size, kernel, stride, pad, average
POOLINGS = {
    "lenet pool1": (64, 20, 24, 2, 2, 0, False),
    "lenet pool2": (64, 50, 8, 2, 2, 0, False),
    "cifar pool1": (100, 32, 32, 3, 2, 0, False),
    "cifar pool2": (100, 32, 16, 3, 2, 0, True),
    "cifar pool3": (100, 64, 8, 3, 2, 0, True),
    "caffenet pool1": (16, 96, 55, 3, 2, 0, False),
    "caffenet pool2": (16, 256, 27, 3, 2, 0, False),
    "googlenet pool1": (8, 64, 112, 3, 2, 0, False),
    "googlenet 3a pool": (8, 192, 28, 3, 1, 1, False),
    "googlenet pool5": (8, 1024, 7, 7, 1, 0, True),
}
# batch, channels, size
NORMALISATIONS = {
    "cifar norm1": (100, 32, 16),
    "caffenet norm1": (16, 96, 27),
    "caffenet norm2": (16, 256, 13),
    "googlenet norm1": (8, 64, 56),
}

# elements
UPDATES = {
    "update of 64k": (1 << 16,),
    "update of 16m": (1 << 24,),
}

# steps, streams, inputs, hidden units
RECURRENT = {
    "lstm of one stream": (80, 1, 512, 512),
    "lstm of 16 streams": (20, 16, 256, 256),
    "lstm of a captioner": (20, 100, 1000, 1000),
}
LSTM = """
force_backward: true
layer {{ name: "x" type: "Input" top: "x"
  input_param {{ shape {{ dim: {0} dim: {1} dim: {2} }} }} }}
layer {{ name: "on" type: "Input" top: "on" input_param {{ shape {{ dim: {0} dim: {1} }} }} }}
layer {{ name: "lstm" type: "LSTM" bottom: "x" bottom: "on" top: "y"
  recurrent_param {{ num_output: {3} weight_filler {{ type: "uniform" min: -0.1 max: 0.1 }} }} }}
"""


def normal(*shape: int) -> np.ndarray:
    """Return standard normal float32 numbers."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def convolution(n, c, size, m, k, s, p, group) -> Iterator[Pass]:
    """Yield the three passes of a convolution: name, floating-point operations, ours, theirs."""
    geometry = ConvolutionGeometry((k, k), (s, s), (p, p), (1, 1), group)
    x, w, b = normal(n, c, size, size), normal(m, c // group, k, k), normal(m)
    plan = Convolution(x.shape, w.shape, geometry)
    dy = normal(*plan.y_shape)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    flops = 2.0 * dy.size * w[0].size
    theirs: list[Callable[[], object] | None] = [None] * 3
    if torch is not None:
        tx, tw, tb, tdy = map(torch.from_numpy, (x, w, b, dy))

        def backward(mask: list[bool]) -> Callable[[], object]:
            options = [m], [s, s], [p, p], [1, 1], False, [0, 0], group, mask
            return lambda: torch.ops.aten.convolution_backward(tdy, tx, tw, *options)

        theirs = [
            lambda: torch.conv2d(tx, tw, tb, s, p, 1, group),
            backward([True, False, False]),
            backward([False, True, False]),
        ]
    yield "forward", flops, lambda: plan.forward(x, w, b, y), theirs[0]
    if c > 3:
        yield "data", flops, lambda: plan.backward_data(dy, w, dx), theirs[1]
    yield "weights", flops, lambda: plan.backward_weights(x, dy, dw), theirs[2]


def inner_product(m, n, k) -> Iterator[Pass]:
    """Yield the three passes of an inner product."""
    x, w, b, dy = normal(m, k), normal(n, k), normal(n), normal(m, n)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.zeros_like(w)
    plan, flops = InnerProduct(m, n, k), 2.0 * m * n * k
    theirs: list[Callable[[], object] | None] = [None] * 3
    if torch is not None:
        tx, tw, tb, tdy, tdx, tdw = map(torch.from_numpy, (x, w, b, dy, dx.copy(), dw.copy()))
        theirs = [
            lambda: torch.addmm(tb, tx, tw.T),
            lambda: torch.mm(tdy, tw, out=tdx),
            lambda: tdw.addmm_(tdy.T, tx),
        ]
    yield "forward", flops, lambda: plan.forward(x, w, b, y), theirs[0]
    yield "data", flops, lambda: plan.backward_data(dy, w, dx), theirs[1]
    yield "weights", flops, lambda: plan.backward_weights(x, dy, dw), theirs[2]


def pool(n, c, size, k, s, p, average) -> Iterator[Pass]:
    """Yield both passes of a pooling layer."""
    geometry = PoolingGeometry((k, k), (s, s), (p, p))
    x = normal(n, c, size, size)
    dy = normal(n, c, *geometry.output_shape(x.shape[2:]))
    y, mask, dx = np.empty_like(dy), np.empty(dy.shape, np.int32), np.empty_like(x)
    theirs: list[Callable[[], object] | None] = [None] * 2
    if torch is not None:
        tx, tdy, aten = torch.from_numpy(x), torch.from_numpy(dy), torch.ops.aten
        shape = [k, k], [s, s], [p, p]
        if average:
            theirs = [
                lambda: aten.avg_pool2d(tx, *shape, True),
                lambda: aten.avg_pool2d_backward(tdy, tx, *shape, True, True, None),
            ]
        else:
            _, where = aten.max_pool2d_with_indices(tx, *shape, [1, 1], True)
            theirs = [
                lambda: aten.max_pool2d_with_indices(tx, *shape, [1, 1], True),
                lambda: aten.max_pool2d_with_indices_backward(tdy, tx, *shape, [1, 1], True, where),
            ]
    if average:
        yield "forward", 0, lambda: pooling.average_pool_forward(x, y, geometry), theirs[0]
        yield "data", 0, lambda: pooling.average_pool_backward(dy, dx, geometry), theirs[1]
    else:
        yield "forward", 0, lambda: pooling.max_pool_forward(x, y, mask, geometry), theirs[0]
        yield "data", 0, lambda: pooling.max_pool_backward(dy, mask, dx, geometry), theirs[1]


def normalisation(n, c, size) -> Iterator[Pass]:
    """Yield both passes of local response normalisation across five channels."""
    x, dy = normal(n, c, size, size), normal(n, c, size, size)
    y, scale, dx = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    theirs: list[Callable[[], object] | None] = [None] * 2
    if torch is not None:
        tx, tdy = torch.from_numpy(x).requires_grad_(), torch.from_numpy(dy)
        normalise = torch.nn.functional.local_response_norm
        ty = normalise(tx, 5, 1e-4, 0.75, 1.0)
        theirs = [
            lambda: normalise(tx.detach(), 5, 1e-4, 0.75, 1.0),
            lambda: torch.autograd.grad(ty, tx, tdy, retain_graph=True),
        ]
    parameters = 5, 1e-4, 0.75
    yield "forward", 0, lambda: lrn.lrn_across_forward(x, y, scale, *parameters), theirs[0]
    yield "data", 0, lambda: lrn.lrn_across_backward(x, y, scale, dy, dx, *parameters), theirs[1]


def updates(count) -> Iterator[Pass]:
    """Yield the updates of ``count`` weights by momentum and by Adam."""
    w, dw, h, v = (np.full(count, 0.1, np.float32) for _ in range(4))
    regularization = (1.0, 0.0005, 0.0)
    theirs: list[Callable[[], object] | None] = [None] * 2
    if torch is not None:
        optim, tw = torch.optim, torch.full([count], 0.1)
        tw.grad = torch.full([count], 0.1)
        theirs = [
            optim.SGD([tw], lr=0.01, momentum=0.9, weight_decay=0.0005).step,
            optim.Adam([tw], lr=0.01, weight_decay=0.0005).step,
        ]
    moments = 0.9, 0.999, 1e-8
    yield "sgd", 0, lambda: update.sgd_update(w, dw, h, regularization, 0.01, 0.9), theirs[0]
    yield (
        "adam",
        0,
        lambda: update.adam_update(w, dw, h, v, regularization, 0.01, *moments),
        theirs[1],
    )


def recurrent(steps, streams, inputs, hidden) -> Iterator[Pass]:
    """Yield forward and all of backward of an LSTM layer."""
    net = Net(text.parse(LSTM.format(steps, streams, inputs, hidden), caffe_pb2.NetParameter()))
    net.blobs["x"].data[...] = normal(steps, streams, inputs)
    net.blobs["on"].data[...] = 1
    net.blobs["y"].diff[...] = 0.001
    flops = 2.0 * steps * streams * 4 * hidden * (inputs + hidden)
    theirs: list[Callable[[], object] | None] = [None] * 2
    if torch is not None:
        module = torch.nn.LSTM(inputs, hidden)
        tx = torch.from_numpy(normal(steps, streams, inputs)).requires_grad_()
        ty, _ = module(tx)
        dy = torch.full_like(ty, 0.001)
        wanted = [tx, *module.parameters()]
        theirs = [
            lambda: module(tx),
            lambda: torch.autograd.grad(ty, wanted, dy, retain_graph=True),
        ]
    index = len(net.nodes) - 1
    net.forward()
    yield "forward", flops, lambda: net.forward_layer(index), theirs[0]
    yield "backward", 2 * flops, lambda: net.backward_layer(index), theirs[1]


def medians(ours, theirs, seconds: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the median times of two functions that run alternately."""
    ours()
    start = time.perf_counter()
    ours()
    if theirs is not None:
        theirs()
    once = time.perf_counter() - start
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(max(5, min(300, int(seconds / max(once, 1e-6))))):
        for function, list_ in zip((ours, theirs), times):
            if function is not None:
                start = clock()
                function()
                list_.append(clock() - start)
    return float(np.median(times[0])), float(np.median(times[1])) if times[1] else np.nan


FAMILIES = {
    "conv": (convolution, CONVOLUTIONS),
    "ip": (inner_product, INNER_PRODUCTS),
    "pool": (pool, POOLINGS),
    "lrn": (normalisation, NORMALISATIONS),
    "update": (updates, UPDATES),
    "recurrent": (recurrent, RECURRENT),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=FAMILIES, action="append")
    parser.add_argument("--match", default="", help="only layers whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each pass")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count this thread's time only (one thread)"
    )
    args = parser.parse_args()
    set_threads(args.threads)
    if torch is not None:
        torch.set_num_threads(args.threads)
    clock = time.thread_time if args.cpu_time else time.perf_counter
    rate = multiply_add_peak(args.threads, 0.3, clock)
    print(f"{args.threads} threads, peak {rate / 1e9:.0f} GFLOP/s")
    print(f"{'layer':24}{'pass':9}{'ms':>9}{'of peak':>9}{'ratio':>7}")
    for family in args.only or FAMILIES:
        function, cases = FAMILIES[family]
        for name, case in cases.items():
            if args.match not in name:
                continue
            for label, flops, ours, theirs in function(*case):
                mine, other = medians(ours, theirs, args.seconds, clock)
                share = f"{flops / mine / rate:9.2f}" if flops else " " * 9
                print(f"{name:24}{label:9}{mine * 1e3:9.3f}{share}{other / mine:7.2f}", flush=True)


if __name__ == "__main__":
    main()
