"""PyTorch's side of elastic.py: LeNet on ranks of torchrun, from the last snapshot on."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 50
SNAPSHOT = Path("snapshot.pt")


def main() -> None:
    """Train until this process is ended."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.0005)
    iteration = 0
    if SNAPSHOT.exists():
        found = torch.load(SNAPSHOT)
        net.load_state_dict(found["net"])
        optimizer.load_state_dict(found["optimizer"])
        iteration = found["iteration"]
    images, labels = torch.rand(2048, 1, 28, 28), torch.randint(10, (2048,))
    while True:
        begin = 64 * (iteration * dist.get_world_size() + rank) % 2048
        loss = nn.functional.cross_entropy(
            model(images[begin : begin + 64]), labels[begin : begin + 64]
        )
        if rank == 0:
            print(f"Iteration {iteration} (loss = {loss.item():.6g})", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iteration += 1
        if rank == 0 and iteration % EVERY == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "iteration": iteration}, f"{SNAPSHOT}.new")
            os.replace(f"{SNAPSHOT}.new", SNAPSHOT)


if __name__ == "__main__":
    main()
