"""Exports the nets of models/ to ONNX and PyTorch; prints differences, or times of forward.

Weights are random.  A net that a format cannot express is shown with the reason.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from pycaffe_dist.errors import PcaffeError
from pycaffe_dist.exporting import checking, export_net
from pycaffe_dist.exporting.onnx.models import Session, model_of
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

MODELS = Path(__file__).parents[1] / "models"
RUNS = 9


def nets() -> list[Path]:
    """Return the prototxts of models/ for inference: deploy.prototxt, or the folder's name."""
    found = []
    for folder in sorted(MODELS.iterdir()):
        names = [folder / "deploy.prototxt", folder / f"{folder.name}.prototxt"]
        found += [path for path in names if path.exists()][:1]
    return found


def fill(net: Net) -> None:
    """Give ``net`` random weights that keep the size of its values."""
    rng = np.random.default_rng(0)
    for node in net.nodes:
        statistics = {"BatchNorm": (1, 2), "BN": (0, 3), "Normalize": (0,), "Scale": (0,)}
        positive = statistics.get(node.layer.type, ())
        for index, blob in enumerate(node.layer.blobs):
            if index in positive:
                blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
            elif blob.ndim > 1:
                blob.data[...] = rng.normal(0, np.sqrt(2 / blob.count_of(1)), blob.shape)
            else:
                blob.data[...] = rng.uniform(-0.1, 0.1, blob.shape)
    if any(node.layer.type == "BatchNorm" for node in net.nodes):
        normalize(net, rng)


def normalize(net: Net, rng: np.random.Generator) -> None:
    """Give each BatchNorm the statistics of a random batch, or values would grow or vanish."""
    for name in net.inputs:
        net.blobs[name].data[...] = rng.standard_normal(net.blobs[name].shape)
    for index, node in enumerate(net.nodes):
        if node.layer.type == "BatchNorm":
            x, (mean, variance, factor) = node.bottom[0].data, node.layer.blobs
            axes = (0, *range(2, x.ndim))
            mean.data[...], variance.data[...], factor.data[...] = x.mean(axes), x.var(axes), 1
        net.forward_layer(index)


def opened(path: Path, batch: int) -> Net:
    """Return a net in the TEST phase with random weights and this batch."""
    param, places = text.read_net_with_places(path)
    param = with_state(param, caffe_pb2.TEST, stages=("test-on-test",))
    param = without_sources(param, (1, 28, 28), places)
    for layer in param.layer:
        for shape in layer.input_param.shape:
            if len(shape.dim) == 4:
                shape.dim[0] = batch
    net = Net(param, places=places)
    fill(net)
    return net


def differences(net: Net, folder: Path) -> list[str]:
    """Return the largest differences in ONNX Runtime and PyTorch, and the sizes that vary."""
    cells = []
    for to, name in (("onnx", "net.onnx"), ("torch", "net.py")):
        try:
            report = export_net(net, str(folder / name), to, Options())
            cells.append(report.unchecked or f"{report.largest:.1e}")
            if to == "onnx":
                cells.append(", ".join(report.varies))
        except PcaffeError as error:
            cells += [str(error).splitlines()[-1]] + [""] * (to == "onnx")
    return cells


def seconds(run: Callable[[], object]) -> float:
    """Return the time of a run."""
    start = perf_counter()
    run()
    return perf_counter() - start


def times(net: Net, _: Path) -> list[str]:
    """Return the times of forward in ONNX Runtime and in pcaffe, taken in turns, and their ratio.

    All are medians.
    """
    steps = steps_of(net)
    inputs = checking.random_inputs(steps, steps.inputs)
    session = Session(model_of(steps).SerializeToString())
    checking.forward(net, inputs, {})
    pairs = []
    for _ in range(1 + RUNS):
        pairs.append((seconds(lambda: session.run(inputs)), seconds(net.forward)))
    theirs, ours = np.array(pairs[1:]).T
    middle = 1000 * np.median(theirs), 1000 * np.median(ours)
    return [*(f"{value:.1f}" for value in middle), f"{np.median(theirs / ours):.2f}"]


TABLES = {
    differences: ("ONNX", "may vary", "PyTorch"),
    times: ("ONNX Runtime, ms", "pcaffe, ms", "times as fast"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of folders in models/ (default: all)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--times", action="store_true", help="times of forward, no differences")
    options = parser.parse_args()
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    cells = times if options.times else differences
    print(f"| net | {' | '.join(TABLES[cells])} |\n|{' --- |' * 4}")
    with tempfile.TemporaryDirectory() as folder:
        for path in nets():
            if not options.names or path.parent.name in options.names:
                net = opened(path, options.batch)
                row = [path.parent.name, *cells(net, Path(folder))]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
