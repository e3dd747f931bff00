"""PyTorch's side of gpu.py: the same net, translated layer by layer, in eager mode with cuDNN.

Runs in an interpreter of its own, which needs PyTorch and nothing of pcaffe.  Reads the net's
layers as one line of JSON, then numbers of iterations; answers each with one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from cpu_torch import TRANSLATIONS, Net
from cpu_torch import pooling as windows
from torch.nn import functional


def batch_norm(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a BatchNorm, which in Caffe has neither scale nor bias."""
    channels = layer["weights"][0]
    mean, variance = torch.zeros(channels), torch.ones(channels)
    return lambda x: functional.batch_norm(x, mean, variance, training=True)


def scale(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a Scale with a bias: one of each per channel."""
    weight, bias = net.parameter(layer["weights"])
    return lambda x: torch.addcmul(bias.view(1, -1, 1, 1), x, weight.view(1, -1, 1, 1))


def pooling(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a Pooling; without a kernel it is over the whole image."""
    if layer["kernel"]:
        return windows(net, layer)
    return lambda x: functional.adaptive_avg_pool2d(x, 1)


TRANSLATIONS |= {
    "Pooling": pooling,
    "BatchNorm": batch_norm,
    "Scale": scale,
    "Eltwise": lambda net, layer: lambda x, y: x + y,
}


def main() -> None:
    """Train for as many iterations as each line says."""
    torch.set_default_device("cuda")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = "tf32" in sys.argv
    layers = json.loads(sys.stdin.readline())
    net = Net(layers)
    optimizer = torch.optim.SGD(
        [
            {"params": net.weights, "lr": 0.001},
            {"params": net.biases, "lr": 0.002, "weight_decay": 0.0},
        ],
        momentum=0.9,
        weight_decay=0.0005,
        fused=True,
    )
    for line in sys.stdin:
        torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            optimizer.zero_grad()
            net.loss().backward()
            optimizer.step()
        torch.cuda.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "memory": torch.cuda.max_memory_reserved()}), flush=True)


if __name__ == "__main__":
    main()
