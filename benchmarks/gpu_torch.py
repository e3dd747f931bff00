"""PyTorch's side of gpu.py: the same net, translated layer by layer, in eager mode with cuDNN.

Runs in its own interpreter, which needs PyTorch and nothing of pcaffe.  The
argument is a mode of gpu.py.  Reads the net's layers as one line of JSON, then numbers of
iterations; answers each with one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from cpu_torch import TRANSLATIONS, Net, optimizer_of

TRANSLATIONS["Eltwise"] = lambda net, layer: lambda x, y: x + y


def main() -> None:
    """Read numbers of iterations, one per line, and train."""
    mode = sys.argv[1]
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    torch.backends.cudnn.allow_tf32 = mode != "float32"
    layers = json.loads(sys.stdin.readline())
    with torch.device("cuda"):
        net = Net(layers)
    optimizer = optimizer_of(net)
    for line in sys.stdin:
        torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            optimizer.zero_grad()
            loss = net.loss()
            loss.backward()
            optimizer.step()
            loss.item()
        torch.cuda.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "memory": torch.cuda.max_memory_reserved()}), flush=True)


if __name__ == "__main__":
    main()
