"""Exports the nets of models/ to ONNX and PyTorch; prints differences, errors or times of forward.

Weights are random.  A net that a format cannot express is shown with the reason.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

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
# ONNX Runtime's threads stay awake for some 20 ms after a run, and take cores from the others.
PAUSE = 0.05


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
    weaken_branches(net)
    if any(node.layer.type == "BatchNorm" for node in net.nodes):
        normalize(net, rng)


def weaken_branches(net: Net) -> None:
    """Divide the Scale at the end of each of N residual branches by the square root of N.

    A branch then changes little of what it is added to, as in trained nets.  With branches as large
    as their inputs, each block would multiply rounding errors.  The factor is from De and Smith
    (2020).
    """
    branches = [node.bottom[-1] for node in net.nodes if node.layer.type == "Eltwise"]
    for node in net.nodes:
        if node.layer.type == "Scale" and any(node.top[0] is blob for blob in branches):
            for blob in node.layer.blobs:
                blob.data[...] /= np.sqrt(len(branches))


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


def errors(net: Net, _: Path) -> list[str]:
    """Return how far ONNX Runtime and pcaffe, in float32, are from pcaffe in float64."""
    wide = Net(net.definition, dtype=np.float64)
    for layer, source in zip(wide.layers, net.layers):
        for blob, values in zip(layer.blobs, source.blobs):
            blob.data[...] = values.data
    steps = steps_of(net)
    inputs = checking.random_inputs(steps, steps.inputs)
    blobs = {name: steps.blobs[name] for name in steps.outputs}
    exact = checking.forward(wide, inputs, blobs)
    theirs = Session(model_of(steps).SerializeToString()).run(inputs)
    found = theirs, checking.forward(net, inputs, blobs)
    return [f"{checking.largest(checking.differences(exact, each)):.1e}" for each in found]


def seconds(run: Callable[[], object]) -> float:
    """Return the time of a run, the second one after the other program's threads fell asleep."""
    sleep(PAUSE)
    run()
    start = perf_counter()
    run()
    return perf_counter() - start


def times(net: Net, _: Path) -> list[str]:
    """Return the times of forward in ONNX Runtime and in pcaffe, taken in turns, and their ratio.

    All are medians.  pcaffe's net is made for inference (``keep_blobs=False``).
    """
    steps = steps_of(net)
    fast = Net(net.definition, keep_blobs=False)
    fast.share_weights_with(net)
    inputs = checking.random_inputs(steps, steps.inputs)
    session = Session(model_of(steps).SerializeToString())
    checking.forward(fast, inputs, {})
    pairs = []
    for _ in range(1 + RUNS):
        pairs.append((seconds(lambda: session.run(inputs)), seconds(fast.forward)))
    theirs, ours = np.array(pairs[1:]).T
    middle = 1000 * np.median(theirs), 1000 * np.median(ours)
    return [*(f"{value:.1f}" for value in middle), f"{np.median(theirs / ours):.2f}"]


TABLES = {
    differences: ("ONNX", "may vary", "PyTorch"),
    errors: ("ONNX Runtime", "pcaffe"),
    times: ("ONNX Runtime, ms", "pcaffe, ms", "times as fast"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of folders in models/ (default: all)")
    parser.add_argument("--batch", type=int, default=2)
    for table in (errors, times):
        what = (table.__doc__ or "").partition(".")[0].replace("Return", "show")
        parser.add_argument(f"--{table.__name__}", action="store_true", help=what)
    options = parser.parse_args()
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    cells = times if options.times else errors if options.errors else differences
    head = ("net", *TABLES[cells])
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    with tempfile.TemporaryDirectory() as folder:
        for path in nets():
            if not options.names or path.parent.name in options.names:
                net = opened(path, options.batch)
                row = [path.parent.name, *cells(net, Path(folder))]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
