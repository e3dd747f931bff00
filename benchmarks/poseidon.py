"""Predicts VGG-19 with 22K classes on 1 to 32 nodes, and compares with Poseidon's speed-ups.

The published speed-ups are from Zhang et al., "Poseidon: An Efficient Communication Architecture
for Distributed Deep Learning on GPU Clusters" (USENIX ATC 2017): 229 million parameters, 32 images
on every node, one TITAN X in each.  Assumptions, without such a GPU:

* one GPU trains 35 images per second without messages, and its time is divided among layers by
  their multiply-adds, a third of it forward;
* it updates parameters with 200 GB/s of its memory, five numbers read or written for each;
* products that rebuild gradients run at the resulting rate of the layers;
* latency is 50 us, and messages reach their full rate in both directions at once.

    python benchmarks/poseidon.py
    python benchmarks/poseidon.py --write FOLDER    # for `pcaffe plan --solver=… --times=…`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from pycaffe_dist.comm.measured import Link
from pycaffe_dist.config import Overlap
from pycaffe_dist.net import Net
from pycaffe_dist.planning import prediction
from pycaffe_dist.planning.search import Workload
from pycaffe_dist.schema import caffe_pb2, text

MODEL = Path(__file__).parent.parent / "models" / "vgg19" / "train_val.prototxt"
CLASSES, BATCH, IMAGES_PER_SECOND = 21841, 32, 35.0
UPDATE_BYTES_PER_SECOND, NUMBERS_PER_UPDATE = 200e9, 5
LATENCY_US = 50
PUBLISHED = {
    40: {1: 1.0, 2: 1.96, 4: 3.83, 8: 7.63, 16: 15.0, 32: 29.5},
    10: {16: 15.5},
}
DATA = """
layer { name: 'data' type: 'DummyData' top: 'data' top: 'label' dummy_data_param {
  shape { dim: %d dim: 3 dim: 224 dim: 224 } shape { dim: %d } } }
"""


def net_text() -> str:
    """Return the net: VGG-19's training layers on made-up data, with a number of classes."""
    source: Any = text.read_net(MODEL)
    net: Any = text.parse(DATA % (BATCH, BATCH), caffe_pb2.NetParameter())
    net.name = "VGG-19 with 22K classes"
    phases = {rule.phase for layer in source.layer for rule in layer.include}
    assert caffe_pb2.TEST in phases
    for layer in source.layer:
        if layer.type == "Data" or any(rule.phase == caffe_pb2.TEST for rule in layer.include):
            continue
        for kind in ("convolution_param", "inner_product_param"):
            if layer.HasField(kind):
                getattr(layer, kind).ClearField("weight_filler")
        if layer.name == "fc8":
            layer.inner_product_param.num_output = CLASSES
        net.layer.append(layer)
    return text.to_text(net)


def write(folder: Path) -> tuple[Path, Path, float]:
    """Write solver and times; return their paths and the FLOP/s of the layers."""
    (folder / "vgg19_22k.prototxt").write_text(net_text())
    solver = folder / "vgg19_22k_solver.prototxt"
    solver.write_text(f"net: '{folder / 'vgg19_22k.prototxt'}' base_lr: 0.01 lr_policy: 'fixed'\n")
    net, _ = prediction.open_net(str(solver))
    adds = {node.name: multiply_adds(net, index) for index, node in enumerate(net.nodes)}
    count = sum(parameter.blob.count for parameter in net.parameters)
    net.close()
    update = count * NUMBERS_PER_UPDATE * 4 / UPDATE_BYTES_PER_SECOND
    seconds = BATCH / IMAGES_PER_SECOND - update
    lines = [
        f"{name} {1e3 * seconds * part / 3:.4f} {2e3 * seconds * part / 3:.4f}"
        for name, part in ((name, of / sum(adds.values())) for name, of in adds.items())
        if part
    ]
    times = folder / "titan_x.times"
    times.write_text("\n".join([*lines, f"update {1e3 * update:.4f}"]) + "\n")
    return solver, times, 3 * 2 * sum(adds.values()) / seconds


def multiply_adds(net: Net, index: int) -> float:
    """Return a layer's multiply-adds forward."""
    node = net.nodes[index]
    if not node.layer.blobs:
        return 0.0
    positions = node.top[0].count / node.layer.blobs[0].shape[0]
    return positions * node.layer.blobs[0].count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="only write solver and times to this folder")
    options = parser.parse_args()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        solver, times, rate = write(options.write)
        print(f"pcaffe plan --solver={solver} --times={times} --gflops={rate / 1e9:.0f}")
        return
    with tempfile.TemporaryDirectory() as folder:
        solver, times, rate = write(Path(folder))
        net, _ = prediction.open_net(str(solver))
        layer_times = prediction.read_times(str(times), net)
    print("| Gbit/s | nodes | Poseidon | allreduce | auto | auto, --overlap=forward |")
    print("| --- | --- | --- | --- | --- | --- |")
    for gbits, published in PUBLISHED.items():
        link = Link(LATENCY_US / 1e6, gbits * 1e9 / 8)
        imagined = prediction.Imagined(32, link, rate)
        columns = []
        for exchange, overlap in (
            ("allreduce", Overlap.BACKWARD),
            ("auto", Overlap.BACKWARD),
            ("auto", Overlap.FORWARD),
        ):
            workload = Workload(layer_times, 1, overlap)
            curve = prediction.curve(net, workload, imagined, exchange)
            columns.append({n: n * curve[0][1].total / found.total for n, found in curve})
        for nodes in columns[0]:
            known = f"{published[nodes]:g}" if nodes in published else ""
            ours = " | ".join(f"{column[nodes]:.2f}" for column in columns)
            print(f"| {gbits} | {nodes} | {known} | {ours} |")
    net.close()


if __name__ == "__main__":
    main()
