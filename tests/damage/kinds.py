"""Small valid files of every kind that pcaffe reads, and how each is read.

A kind is a function of the same name in `WRITERS` and `READERS`: one writes a valid file, or a
folder of files; the other reads it as a command would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np

from pycaffe_dist.atomic import Checksum
from pycaffe_dist.data import idx
from pycaffe_dist.data.annotation_files import add_boxes, read_boxes
from pycaffe_dist.data.hdf5_rows import HDF5Rows
from pycaffe_dist.data.image import read_image
from pycaffe_dist.data.image_list import read_list
from pycaffe_dist.data.image_windows import read_windows
from pycaffe_dist.data.label_map import read_label_map
from pycaffe_dist.data.mean import mean_image
from pycaffe_dist.data.sources import open_source
from pycaffe_dist.data.video import read_videos
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import UsageError
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import binary, caffe_pb2, text
from pycaffe_dist.snapshot import companion
from pycaffe_dist.snapshot.caffemodel import LayerWeights, load_weights, save_weights
from pycaffe_dist.snapshot.solverstate import SolverStateData, load_state, save_state
from pycaffe_dist.solvers.fields import check_fields
from pycaffe_dist.solvers.lr_policy import LearningRate

NET = """
name: "small"
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }
}
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer {
  name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer { name: "norm" type: "LRN" bottom: "pool" top: "norm" lrn_param { local_size: 3 } }
layer {
  name: "ip" type: "InnerProduct" bottom: "norm" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.1 } }
}
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
SOLVER = """
net: "net.prototxt"
base_lr: 0.01 lr_policy: "inv" gamma: 0.0001 power: 0.75
momentum: 0.9 weight_decay: 0.0005
max_iter: 100 display: 10 test_iter: 2 test_interval: 50
snapshot: 50 snapshot_prefix: "small" type: "SGD" random_seed: 3
"""
WINDOWS = "# 0\na.png\n3\n40\n50\n3\n7 1.0 0 0 49 39\n3 0.6 10 5 30 20\n9 0.1 40 30 49 39\n"

_numbers = np.random.default_rng(0)
_WEIGHTS = [
    LayerWeights(name, kind, [_numbers.random(shape, np.float32), _numbers.random(4, np.float32)])
    for name, kind, shape in (("conv", "Convolution", (4, 3, 3, 3)), ("ip", "InnerProduct", (4, 9)))
]
_ARRAYS = [w for layer in _WEIGHTS for w in layer.blobs]
_STATE = SolverStateData(50, "small.caffemodel", 2, _ARRAYS, averaged=7, weights=_ARRAYS)
_PIXELS = _numbers.integers(0, 256, (20, 24, 3), np.uint8)


BOXES = """<annotation><size><width>24</width><height>20</height></size>
<object><name>cat</name><difficult>1</difficult>
<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>12</ymax></bndbox></object>
<object><name>dog</name>
<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>24</xmax><ymax>20</ymax></bndbox></object>
</annotation>
"""
BOXES_JSON = """{"image": {"width": 24, "height": 20}, "annotation": [
{"category_id": "cat", "bbox": [2, 3, 7, 9], "iscrowd": 1},
{"category_id": "dog", "bbox": [1.5, 3, 20, 10.25]}]}
"""
LABEL_MAP = 'item { name: "cat" label: 1 display_name: "Cat" }\nitem { name: "dog" label: 2 }\n'
_LABELS = {"cat": 1, "dog": 2}


def _annotated_database(path: Path) -> None:
    with create_database(str(path), "lmdb") as writer:
        for i in range(20):
            record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
            record.datum.encoded = True
            record.datum.data = cv2.imencode(".png", _PIXELS)[1].tobytes()
            for label in range(i % 4):
                group = record.annotation_group.add(group_label=label)
                for instance in range(2):
                    bbox = group.annotation.add(instance_id=instance).bbox
                    bbox.xmin, bbox.ymin, bbox.xmax, bbox.ymax = 0.1, 0.2, 0.5, 0.75
            writer.put(b"%05d" % i, record.SerializeToString())


def _read_annotated(path: Path) -> None:
    param = caffe_pb2.LayerParameter(name="data", type="AnnotatedData", top=["data", "label"])
    param.data_param.source, param.data_param.batch_size = str(path), 5
    param.data_param.backend = caffe_pb2.DataParameter.LMDB
    net = Net(caffe_pb2.NetParameter(layer=[param]))
    try:
        for _ in range(4):
            net.forward()
    finally:
        net.close()


def _database(path: Path, backend: str) -> None:
    with create_database(str(path), backend) as writer:
        for i in range(40):
            datum = caffe_pb2.Datum(channels=3, height=20, width=24, label=i)
            if i % 2:
                datum.encoded, datum.data = True, cv2.imencode(".png", _PIXELS)[1].tobytes()
            else:
                datum.data = _PIXELS.tobytes()
            writer.put(b"%05d" % i, datum.SerializeToString())


def _companion(path: Path) -> None:
    random = {"bit_generator": "PCG64", "state": {"state": 2**100, "inc": 2**90}}
    layers = {"drop": {"random": {"": random}}}
    rank = {"losses": [0.5, 0.25], "statistics": [], "train": layers, "test": [{}]}
    values = companion.Companion(
        iteration=50,
        written=1e9,
        weights=Checksum(100, 1),
        state=Checksum(200, 2),
        seed=3,
        ranks=2,
        batch=64,
        tested=[4],
        learning_rate={"current_step": 1, "least_loss": 0.5, "least_at": 3},
        by_rank=[rank, rank],
        plan="{}",
    )
    path.write_bytes(values.encode())


def _hdf5_rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=_PIXELS.astype(np.float32), chunks=(5, 24, 3))
        file["label"] = np.arange(20.0)


def _idx(path: Path) -> None:
    idx.write_idx(str(path), _PIXELS)


def _png(path: Path) -> None:
    path.write_bytes(cv2.imencode(".png", _PIXELS)[1].tobytes())


def _jpeg(path: Path) -> None:
    path.write_bytes(cv2.imencode(".jpg", _PIXELS)[1].tobytes())


def _mean(path: Path) -> None:
    path.write_bytes(binary.array_to_blob(_PIXELS[None].astype(np.float32)).SerializeToString())


WRITERS: dict[str, Callable[[Path], object]] = {
    "net.prototxt": lambda path: path.write_text(NET),
    "solver.prototxt": lambda path: path.write_text(SOLVER),
    "weights.caffemodel": lambda path: save_weights(path, "small", _WEIGHTS),
    "weights.caffemodel.h5": lambda path: save_weights(path, "small", _WEIGHTS),
    "state.solverstate": lambda path: save_state(path, _STATE),
    "state.solverstate.h5": lambda path: save_state(path, _STATE),
    "companion.json": _companion,
    "mean.binaryproto": _mean,
    "lmdb": lambda path: _database(path, "lmdb"),
    "leveldb": lambda path: _database(path, "leveldb"),
    "rows.h5": _hdf5_rows,
    "image.png": _png,
    "image.jpg": _jpeg,
    "images.idx": _idx,
    "images.idx.gz": _idx,
    "windows.txt": lambda path: path.write_text(WINDOWS),
    "list.txt": lambda path: path.write_text("a.png 3\nb c.png -1\n"),
    "annotated": _annotated_database,
    "boxes.xml": lambda path: path.write_text(BOXES),
    "boxes.json": lambda path: path.write_text(BOXES_JSON),
    "boxes.txt": lambda path: path.write_text("1 2 3 9 12\n2 1.5 3 24 20\n"),
    "labelmap.prototxt": lambda path: path.write_text(LABEL_MAP),
    "videos.txt": lambda path: path.write_text("a 12 1\nb/c 3 0\n"),
}


def _build(path: Path) -> None:
    net, places = text.read_net_with_places(path)
    Net(without_sources(with_state(net, caffe_pb2.TEST), None), places=places).close()


def _read_solver(path: Path) -> None:
    solver = text.read_solver(path)
    try:
        check_fields(solver)
        LearningRate(solver).at(3)
    except UsageError as error:  # of a message: it knows of no file
        raise UsageError(f"{path}: {error}") from None


def _read_rows(path: Path) -> None:
    listed = path.parent / "listed"
    listed.write_text(str(path))
    rows = HDF5Rows(str(listed), ["data", "label"], False, 0)
    out = [np.empty((4, *shape), np.float32) for shape in rows.shapes]
    rows.take(np.arange(4), out)


def _read_boxes(path: Path) -> None:
    file = str(path)
    boxes = read_boxes(file, path.suffix[1:], _LABELS)
    add_boxes(caffe_pb2.AnnotatedDatum(), boxes, (20, 24), file)


READERS: dict[str, Callable[[Path], object]] = {
    "net.prototxt": _build,
    "solver.prototxt": _read_solver,
    "weights.caffemodel": load_weights,
    "weights.caffemodel.h5": load_weights,
    "state.solverstate": load_state,
    "state.solverstate.h5": load_state,
    "companion.json": companion.load,
    "mean.binaryproto": binary.read_blob,
    "lmdb": lambda path: mean_image(open_source(str(path), "lmdb")),
    "leveldb": lambda path: mean_image(open_source(str(path), "leveldb")),
    "rows.h5": _read_rows,
    "image.png": lambda path: read_image(str(path), True),
    "image.jpg": lambda path: read_image(str(path), True),
    "images.idx": lambda path: idx.read_images(str(path)),
    "images.idx.gz": lambda path: idx.read_images(str(path)),
    "windows.txt": lambda path: read_windows(str(path), 0.5, 0.5),
    "list.txt": lambda path: read_list(str(path)),
    "annotated": _read_annotated,
    "boxes.xml": _read_boxes,
    "boxes.json": _read_boxes,
    "boxes.txt": _read_boxes,
    "labelmap.prototxt": lambda path: read_label_map(str(path), check=True),
    "videos.txt": lambda path: read_videos(str(path)),
}
TEXTS = frozenset(name for name in WRITERS if name.endswith((".prototxt", ".txt", ".json", ".xml")))
