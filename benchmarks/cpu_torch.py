"""PyTorch's side of cpu.py: the same net, translated layer by layer, and trained with SGD.

Runs in its own interpreter, which needs PyTorch and nothing of pcaffe.  Reads the net's
layers as one line of JSON, then numbers of iterations; answers each with one line of JSON.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from peak_memory import peak_memory
from torch.nn import functional

Blobs = dict[str, torch.Tensor]


class Net:
    """The net of a list of layers, as cpu.py describes them, on random inputs."""

    def __init__(self, layers: list[dict[str, Any]]):
        self.weights: list[torch.Tensor] = []
        self.biases: list[torch.Tensor] = []
        self.inputs: Blobs = {}
        self.layers = []
        previous: dict[str, Any] = {"top": None}
        for layer in layers:
            if layer["type"] == "Input":
                for name, shape, classes in zip(layer["top"], layer["shapes"], layer["classes"]):
                    self.inputs[name] = (
                        torch.randint(classes, shape) if classes else torch.randn(shape)
                    )
            elif layer["type"] == "Scale" and layer["bottom"] == previous["top"]:
                # Behind a BatchNorm it is part of PyTorch's.
                self.layers[-1] = (previous, batch_norm(self, layer))
            else:
                self.layers.append((layer, TRANSLATIONS[layer["type"]](self, layer)))
            previous = layer if layer["type"] == "BatchNorm" else {"top": None}

    def parameter(
        self, shape: list[int], has_bias: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a weight of ``shape``, scaled by its inputs, and optionally a bias."""
        scale = (3 / (torch.Size(shape).numel() / shape[0])) ** 0.5
        weight = ((2 * torch.rand(shape) - 1) * scale).requires_grad_()
        self.weights.append(weight)
        if not has_bias:
            return weight, None
        self.biases.append(torch.zeros(shape[0]).requires_grad_())
        return weight, self.biases[-1]

    def loss(self) -> torch.Tensor:
        """Run forward; return the weighted sum of the losses."""
        blobs, losses = dict(self.inputs), []
        for layer, function in self.layers:
            value = function(*(blobs[name] for name in layer["bottom"]))
            blobs[layer["top"][0]] = value
            if layer["loss_weight"]:
                losses.append(layer["loss_weight"] * value)
        return sum(losses)


def convolution(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a Convolution."""
    weight, bias = net.parameter(layer["weights"], layer["has_bias"])
    stride, pad, group = layer["stride"], layer["pad"], layer["group"]
    return lambda x: functional.conv2d(x, weight, bias, stride, pad, 1, group)


def inner_product(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of an InnerProduct."""
    weight, bias = net.parameter(layer["weights"])
    return lambda x: functional.linear(x.flatten(1), weight, bias)


def pooling(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a Pooling; Caffe rounds output sizes up."""
    if not layer["kernel"]:  # over the whole image
        return lambda x: functional.adaptive_avg_pool2d(x, 1)
    shape = layer["kernel"], layer["stride"], layer["pad"]
    if layer["average"]:
        return lambda x: functional.avg_pool2d(x, *shape, ceil_mode=True)
    return lambda x: functional.max_pool2d(x, *shape, ceil_mode=True)


def normalisation(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of an LRN across or within channels."""
    size, alpha, beta, k = layer["size"], layer["alpha"], layer["beta"], layer["k"]
    if not layer["within"]:
        return lambda x: functional.local_response_norm(x, size, alpha, beta, k)
    half = size // 2
    return lambda x: x * (1 + alpha * functional.avg_pool2d(x * x, size, 1, half)) ** -beta


def batch_norm(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a BatchNorm, with the Scale after it if ``layer`` is a Scale."""
    channels = layer["weights"][0]
    mean, variance = torch.zeros(channels), torch.ones(channels)
    affine = net.parameter(layer["weights"]) if layer["type"] == "Scale" else ()
    return lambda x: functional.batch_norm(x, mean, variance, *affine, training=True)


def relu(net: Net, layer: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return the function of a ReLU, in place if Caffe's is."""
    in_place = layer["top"] == layer["bottom"]
    return lambda x: functional.relu(x, inplace=in_place)


TRANSLATIONS: dict[str, Callable[[Net, dict[str, Any]], Callable[..., torch.Tensor]]] = {
    "BatchNorm": batch_norm,
    "Convolution": convolution,
    "InnerProduct": inner_product,
    "Pooling": pooling,
    "LRN": normalisation,
    "ReLU": relu,
    "Dropout": lambda net, layer: lambda x: functional.dropout(x, layer["ratio"]),
    "Concat": lambda net, layer: lambda *x: torch.cat(x, 1),
    "Eltwise": lambda net, layer: lambda x, *others: functools.reduce(torch.add, others, x),
    "SoftmaxWithLoss": lambda net, layer: (
        lambda x, label: functional.cross_entropy(x.flatten(1), label)
    ),
}


def optimizer_of(net: Net) -> torch.optim.Optimizer:
    """Return SGD with Caffe's usual multipliers for biases."""
    rates = [
        {"params": net.weights, "lr": 0.001},
        {"params": net.biases, "lr": 0.002, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(rates, momentum=0.9, weight_decay=0.0005, fused=True)


def main() -> None:
    """Read numbers of iterations, one per line, and train."""
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    before = peak_memory()
    net = Net(json.loads(sys.stdin.readline()))
    optimizer = optimizer_of(net)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            optimizer.zero_grad()
            net.loss().backward()
            optimizer.step()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "memory": peak_memory() - before}), flush=True)


if __name__ == "__main__":
    main()
