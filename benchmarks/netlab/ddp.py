"""Usage: ddp.py NET ITERATIONS: a net of nets.py in PyTorch's DistributedDataParallel over gloo.

Runs under mpirun, in an interpreter with PyTorch.  Rank 0 prints one line of JSON: the seconds of
each iteration.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise

import torch
from nets import CIFAR_BATCH, INNER_PRODUCTS, UPDATES
from torch import distributed, nn


def inner_products(widths: tuple[int, ...]) -> nn.Module:
    """Return inner products of these widths, with rectifiers between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


def cifar10_quick() -> nn.Module:
    """Return Caffe's CIFAR-10 quick."""

    def convolution(inputs: int, outputs: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 5, padding=2)

    def average() -> nn.Module:
        return nn.AvgPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        convolution(3, 32),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(inplace=True),
        convolution(32, 32),
        nn.ReLU(inplace=True),
        average(),
        convolution(32, 64),
        nn.ReLU(inplace=True),
        average(),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.Linear(64, 10),
    )


def main(name: str, count: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{key}"]) for key in ("RANK", "SIZE"))
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    if name in INNER_PRODUCTS:
        batch, widths = INNER_PRODUCTS[name]
        net, shape = inner_products(widths), (batch, widths[0])
    else:
        net, shape = cifar10_quick(), (CIFAR_BATCH, 3, 32, 32)
    net = nn.parallel.DistributedDataParallel(net)
    momentum, decay = UPDATES[name]
    method = torch.optim.SGD(net.parameters(), 0.001, momentum=momentum, weight_decay=decay)
    data, labels = torch.full(shape, 0.5), torch.zeros(shape[0], dtype=torch.long)
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        method.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(data), labels)
        loss.backward()
        method.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "hidden": ""}), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
