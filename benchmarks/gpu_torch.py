"""PyTorch's side of gpu.py: the same net, translated layer by layer, in eager mode with cuDNN.

Runs in its own interpreter, which needs PyTorch and nothing of pcaffe.  Reads the net's
layers as one line of JSON, then numbers of iterations; answers each with one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from cpu_torch import TRANSLATIONS, Net

TRANSLATIONS["Eltwise"] = lambda net, layer: lambda x, y: x + y


def main() -> None:
    """Read numbers of iterations, one per line, and train."""
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
