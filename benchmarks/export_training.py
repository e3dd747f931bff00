"""Trains a net of models/ in pcaffe and, exported, in PyTorch; prints how far the losses part.

Both train in float64 and in float32, from the same weights, on the same few batches of random
numbers again and again.  Rounding grows from iteration to iteration: PyTorch's float32 beside its
float64 shows how much of a difference in float32 is the net's own.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pycaffe_dist.exporting import export_net
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.lr_policy import LearningRate
from pycaffe_dist.solvers.update.updater import Updater

MODELS = Path(__file__).parents[1] / "models"
Batch = tuple[np.ndarray, np.ndarray]
BATCHES = 4
TYPES = (np.float64, np.float32)


def definition(name: str, batch: int, size: int) -> caffe_pb2.NetParameter:
    """Return the net for training with inputs of this batch and this size of images.

    Averages over whole maps stay so at other sizes.
    """
    param, places = text.read_net_with_places(MODELS / name / "train_val.prototxt")
    param = with_state(param, caffe_pb2.TRAIN)
    for layer in param.layer:
        layer.data_param.batch_size = batch
        if layer.transform_param.crop_size:
            layer.transform_param.crop_size = size
        pooling = layer.pooling_param
        if layer.type == "Pooling" and pooling.pool == pooling.AVE and pooling.stride == 1:
            layer.pooling_param.Clear()
            layer.pooling_param.pool, layer.pooling_param.global_pooling = pooling.AVE, True
    return without_sources(param, (3, size, size), places)


def ours(net: Net, solver: caffe_pb2.SolverParameter, batches: Iterable[Batch]) -> list[float]:
    """Return the losses of a training in pcaffe."""
    updater, rates, losses = Updater(solver, net.parameters), LearningRate(solver), []
    for iteration, (data, label) in enumerate(batches):
        net.blobs["data"].data[...], net.blobs["label"].data[...] = data, label
        net.clear_parameter_diffs()
        losses.append(float(net.forward()))
        net.backward()
        for index in range(len(net.parameters)):
            updater.update(index, rates.at(iteration), iteration)
    return losses


def theirs(
    file: Path, kind: Callable[[torch.nn.Module], Any], batches: Iterable[Batch]
) -> list[float]:
    """Return the losses of a training of the exported file; ``kind`` sets the module's type."""
    namespace: dict[str, Any] = {"__name__": "exported", "__file__": str(file)}
    exec(file.read_text(encoding="utf-8"), namespace)
    net = kind(namespace["load"]())
    optimizer = namespace["optimizer"](net)
    schedule, losses = namespace["schedule"](optimizer), []
    dtype = next(net.parameters()).dtype
    for data, label in batches:
        optimizer.zero_grad()
        loss = net.total_loss(net(torch.tensor(data, dtype=dtype), torch.tensor(label)))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def parts(a: list[float], b: list[float]) -> np.ndarray:
    """Return the relative differences of two trainings' losses."""
    return np.abs(np.array(a) - b) / np.abs(b)


def main() -> None:
    """Print a line for each iteration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="resnet50", help="a folder in models/")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="of images")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    param = definition(options.name, options.batch, options.size)
    solver = text.read_solver(str(MODELS / options.name / "solver.prototxt"))
    solver.iter_size = 1
    rng = np.random.default_rng(0)
    shape = (options.batch, 3, options.size, options.size)
    batches = [
        (rng.normal(0, 50, shape).astype(np.float32), rng.integers(0, 1000, options.batch) * 1.0)
        for _ in range(BATCHES)
    ]
    batches = [batches[iteration % BATCHES] for iteration in range(options.iterations)]
    first = Net(param, seed=1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.py"
        export_net(first, str(file), "torch", Options(solver=solver, tolerance=1e-2))
        for dtype in TYPES:
            net = Net(param, dtype=dtype, seed=1)
            for layer, source in zip(net.layers, first.layers):
                for blob, values in zip(layer.blobs, source.blobs):
                    blob.data[...] = values.data
            bits = np.dtype(dtype).itemsize * 8
            found["ours", bits] = ours(net, solver, batches)
            kind = torch.nn.Module.double if bits == 64 else torch.nn.Module.float
            found["theirs", bits] = theirs(file, kind, batches)
    columns = {
        "64 bits": (("ours", 64), ("theirs", 64)),
        "32 bits": (("ours", 32), ("theirs", 32)),
        "PyTorch, 32 and 64 bits": (("theirs", 32), ("theirs", 64)),
        "pcaffe, 32 and 64 bits": (("ours", 32), ("ours", 64)),
    }
    print(f"iteration | loss | {' | '.join(columns)}")
    table = [parts(found[a], found[b]) for a, b in columns.values()]
    for iteration, row in enumerate(zip(*table)):
        cells = " | ".join(f"{value:.1e}" for value in row)
        print(f"{iteration} | {found['theirs', 64][iteration]:.4f} | {cells}")


if __name__ == "__main__":
    main()
