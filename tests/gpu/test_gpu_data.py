"""Images that the GPU crops, mirrors and scales have the CPU's values, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.data.image import encode
from pycaffe_dist.data.packing import Packer
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.schema.binary import array_to_blob

FORKS = Path(__file__).parents[1] / "golden" / "forks_data"
COUNT, SHAPE = 10, (3, 9, 11)
DATABASES = ("raw", "encoded", "mixed")
TRANSFORMS = {
    "as it is": "",
    "values": "crop_size: 6 mirror: true scale: 0.3 mean_value: 4 mean_value: 7 mean_value: 3.1",
    "image": "crop_size: 7 mirror: true mean_file: 'mean.binaryproto' scale: 0.0078125",
}
NET = """
layer {{ name: 'data' type: 'Data' top: 'data' top: 'label' transform_param {{ {} }}
  data_param {{ source: '{}' batch_size: 4 backend: LMDB }} }}
"""


def datum_of(name, number, image):
    """Return a record of the database ``name``; number 5 of "mixed" has floats."""
    if name == "encoded":
        return caffe_pb2.Datum(data=encode(image, "png"), encoded=True, label=number)
    channels, height, width = image.shape
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width, label=number)
    if name == "mixed" and number == 5:
        datum.float_data.extend(image.ravel() / 3)
    else:
        datum.data = image.tobytes()
    return datum


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the databases and a mean image."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    mean = rng.uniform(100, 130, SHAPE).astype(np.float32)
    (folder / "mean.binaryproto").write_bytes(array_to_blob(mean[None]).SerializeToString())
    for name in DATABASES:
        with create_database(str(folder / name), "lmdb") as database:
            for number in range(COUNT):
                image = np.random.default_rng(number).integers(0, 256, SHAPE, np.uint8)
                datum = datum_of(name, number, image)
                database.put(b"%08d" % number, datum.SerializeToString())
    return folder


def batches(net):
    """Return the tops of a few batches; after the last record comes the first."""
    found = []
    for _ in range(4):
        net.forward()
        found += [net.blobs[name].read_data().copy() for name in ("data", "label")]
    net.close()
    return found


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("phase", [caffe_pb2.TRAIN, caffe_pb2.TEST])
def test_values_equal_the_cpus(folder, monkeypatch, gpu, database, transform, phase):
    monkeypatch.chdir(folder)
    unpacked = []
    unpack = Packer.unpack
    monkeypatch.setattr(Packer, "unpack", lambda *a: unpacked.append(1) or unpack(*a))
    param = text.parse(NET.format(TRANSFORMS[transform], database), caffe_pb2.NetParameter())
    param.state.phase = phase
    expected = batches(Net(param, seed=3))
    assert not unpacked
    with device.use(gpu):
        net = Net(param, seed=3)
    found = batches(net)
    # A batch with floats in it is transformed on the host.
    assert len(unpacked) == (4 if database != "mixed" else 2)
    for ours, theirs in zip(found, expected):
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("fields", ["", "noise_param { inverse: true }"])
def test_annotated_images_equal_the_cpus(monkeypatch, gpu, fields):
    monkeypatch.chdir(FORKS)
    layer = f"""layer {{ name: 'data' type: 'AnnotatedData' top: 'data' top: 'label'
        transform_param {{ {TRANSFORMS["values"]} resize_param {{ height: 9 width: 11 }} {fields} }}
        annotated_data_param {{ batch_sampler {{ sampler {{ min_scale: 0.5 }} }} }}
        data_param {{ source: 'anno_lmdb' batch_size: 4 backend: LMDB }} }}"""
    param = text.parse(layer, caffe_pb2.NetParameter())
    param.state.phase = caffe_pb2.TRAIN
    expected = batches(Net(param, seed=3))
    with device.use(gpu):
        net = Net(param, seed=3)
    for ours, theirs in zip(batches(net), expected):
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()
