"""Exports the nets of models/ to ONNX and PyTorch; prints differences and times of forward.

Weights are random.  A net that a format cannot express is shown with the reason.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from pycaffe_dist.errors import PcaffeError
from pycaffe_dist.exporting import checking, export_net
from pycaffe_dist.exporting.onnx.models import Session
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

MODELS = Path(__file__).parents[1] / "models"
RUNS = 3


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
        statistics = {"BatchNorm": (0, 1, 2), "BN": (0, 2, 3), "Normalize": (0,), "Scale": (0,)}
        positive = statistics.get(node.layer.type, ())
        for index, blob in enumerate(node.layer.blobs):
            if index in positive:
                blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
            elif blob.ndim > 1:
                blob.data[...] = rng.normal(0, np.sqrt(2 / blob.count_of(1)), blob.shape)
            else:
                blob.data[...] = rng.uniform(-0.1, 0.1, blob.shape)


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


def seconds(run) -> float:
    """Return the shortest time of some runs, after a first."""
    run()
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)


def row(path: Path, batch: int, folder: Path) -> list[str]:
    """Return a row of the table."""
    net = opened(path, batch)
    cells = [str(path.relative_to(MODELS).with_suffix(""))]
    for to, name in (("onnx", "net.onnx"), ("torch", "net.py")):
        try:
            report = export_net(net, str(folder / name), to, Options())
            cells.append(report.unchecked or f"{report.largest:.1e}")
            if to == "onnx":
                cells.append(", ".join(report.varies))
        except PcaffeError as error:
            cells += [str(error).splitlines()[-1]] + [""] * (to == "onnx")
    steps = steps_of(net)
    inputs = checking.random_inputs(steps, steps.inputs)
    session = Session(str(folder / "net.onnx"))
    checking.forward(net, inputs, {})
    times = [seconds(lambda: session.run(inputs)), seconds(net.forward)]
    return [*cells, *(f"{1000 * time:.1f}" for time in times)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of folders in models/ (default: all)")
    parser.add_argument("--batch", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    print("| net | ONNX | may vary | PyTorch | ONNX Runtime, ms | pcaffe, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for path in nets():
            if not options.names or path.parent.name in options.names:
                print(f"| {' | '.join(row(path, options.batch, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
