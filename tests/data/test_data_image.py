"""The ImageData layer against Caffe's own batches; orders, ranks, resumption and bad images."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import cv2
import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.layers import prefetching
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
TEST = caffe_pb2.TEST


@pytest.fixture(autouse=True)
def _options():
    yield
    set_options(ReadingOptions())


class _Run:
    def __init__(self, param, tops=2, **context):
        context.setdefault("seed", 1)
        self.layer = layer_class("ImageData")(param, LayerContext(**context))
        self.tops = [Blob() for _ in range(tops)]
        self.layer.setup([], self.tops)
        self.layer.reshape([], self.tops)

    def batch(self) -> list[np.ndarray]:
        self.layer.forward([], self.tops)
        return [top.data.copy() for top in self.tops]

    def labels(self, batches: int) -> list[int]:
        return [int(label) for _ in range(batches) for label in self.batch()[1]]


@pytest.fixture
def images(tmp_path) -> Path:
    """11 images of 9×7 pixels; image i has label i and all its values are i."""
    lines = []
    for i in range(11):
        cv2.imwrite(str(tmp_path / f"a {i}.png"), np.full((9, 7, 3), i, np.uint8))
        lines.append(f"a {i}.png {i}\n")
    (tmp_path / "list").write_text("".join(lines))
    return tmp_path


def _param(folder: Path, batch_size: int, transform=None, **fields):
    param = caffe_pb2.LayerParameter(name="d", type="ImageData", top=["data", "label"])
    image = caffe_pb2.ImageDataParameter(
        source=str(folder / "list"), root_folder=f"{folder}/", batch_size=batch_size, **fields
    )
    param.image_data_param.CopyFrom(image)
    param.transform_param.CopyFrom(caffe_pb2.TransformationParameter(**(transform or {})))
    return param


@pytest.mark.parametrize("threads", [(1, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("case", ["imagedata_resize", "imagedata_crop_mean"])
def test_batches_equal_caffes(case, threads, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    set_options(ReadingOptions(*threads))
    net = text_format.Parse(Path(f"expected/{case}.prototxt").read_text(), caffe_pb2.NetParameter())
    run = _Run(net.layer[0], phase=TEST)
    expected = np.load(f"expected/{case}.npz")
    for i in range(4):
        data, label = run.batch()
        np.testing.assert_allclose(data, expected[f"iter{i}/data"], atol=1e-5)
        assert np.array_equal(label, expected[f"iter{i}/label"])
    run.layer.close()


def test_the_list_is_read_again_from_its_start(images):
    assert _Run(_param(images, 4)).labels(7) == [i % 11 for i in range(28)]


def test_shuffled_epochs_have_every_image_once_over_all_ranks(images):
    one = _Run(_param(images, 6, shuffle=True)).labels(11)
    epochs = [one[11 * e : 11 * (e + 1)] for e in range(6)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    ranks = [_Run(_param(images, 3, shuffle=True), shard=Shard(r, 2)).labels(11) for r in range(2)]
    assert np.stack(ranks, axis=1).reshape(-1).tolist() == one
    assert _Run(_param(images, 6, shuffle=True), seed=2).labels(11) != one


def test_image_has_its_label_and_data(images):
    data, label = _Run(_param(images, 9, shuffle=True, is_color=False)).batch()
    assert data.shape == (9, 1, 9, 7)
    assert np.array_equal(data[:, 0, 4, 4], label)


@pytest.mark.parametrize("threads", [1, 3])
def test_resumed_run_sees_the_same_batches(images, threads):
    param = _param(images, 4, {"crop_size": 5, "mirror": True}, shuffle=True, rand_skip=5)
    run = _Run(param)
    states, batches = [], []
    for _ in range(9):
        states.append(json.loads(json.dumps(run.layer.state())))
        batches.append(run.batch())
    set_options(ReadingOptions(threads, threads))
    again = _Run(param, seed=7)
    for start in (6, 0, 3):
        again.layer.set_state(states[start])
        for number in range(start, 9):
            assert all(map(np.array_equal, again.batch(), batches[number]))
    again.layer.close()


def test_images_of_different_shapes_reshape_the_top(images):
    cv2.imwrite(str(images / "a 3.png"), np.full((4, 12, 3), 3, np.uint8))
    run = _Run(_param(images, 1))
    for i in range(15):
        data, label = run.batch()
        assert label[0] == i % 11
        assert data.shape == ((1, 3, 4, 12) if i % 11 == 3 else (1, 3, 9, 7))
        assert (data == i % 11).all()
    with pytest.raises(DataError, match=r"a 3\.png.*new_height"):
        _Run(_param(images, 4)).labels(1)


@pytest.mark.parametrize(("bicubic", "kind"), [(False, cv2.INTER_LINEAR), (True, cv2.INTER_CUBIC)])
@pytest.mark.parametrize("shape", [(40, 30), (30, 41)])
def test_the_shorter_side_is_resized(images, shape, bicubic, kind):
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    cv2.imwrite(str(images / "a 0.png"), pixels)
    data, _ = _Run(_param(images, 1, new_dim=17, bicubic=bicubic)).batch()
    size = (17, 23) if shape[0] > shape[1] else (23, 17)  # 17·4/3 and 17·41/30, rounded
    expected = cv2.resize(pixels, size, interpolation=kind)
    np.testing.assert_array_equal(data[0], expected.transpose(2, 0, 1))


def test_missing_and_damaged_images_are_named(images):
    (images / "a 5.png").write_bytes(b"no image")
    run = _Run(_param(images, 4), where="net.prototxt:7")
    with pytest.raises(DataError, match=r"^net.prototxt:7: layer 'd'.*a 5\.png.*cannot be decoded"):
        run.labels(3)
    (images / "a 2.png").unlink()
    with pytest.raises(DataError, match=r"cannot read image.*a 2\.png.*No such file"):
        _Run(_param(images, 4)).labels(3)


def test_bad_images_can_be_skipped_and_are_counted(images, caplog):
    for i in (0, 5, 6):
        (images / f"a {i}.png").write_bytes(b"no image")
    set_options(ReadingOptions(on_error="skip"))
    with caplog.at_level(logging.WARNING, logger="pcaffe"):
        run = _Run(_param(images, 11))
        data, label = run.batch()
        run.batch()
        run.layer.close()
    assert label.tolist() == [1, 1, 2, 3, 4, 7, 7, 7, 8, 9, 10]
    assert np.array_equal(data[:, 0, 0, 0], label)
    assert caplog.text.count("a 5.png") == 1 and "image(s) that cannot be read" in caplog.text


def test_a_list_of_bad_images_only_ends_the_run(images):
    for i in range(11):
        (images / f"a {i}.png").write_bytes(b"no image")
    set_options(ReadingOptions(on_error="skip"))
    with pytest.raises(DataError, match="nor can the 100 images"):
        _Run(_param(images, 2))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "names no image"), ("a.png 1\nb.png\n", "list:2: expected"), ("x.png one\n", "list:1")],
)
def test_bad_lists(images, text, words):
    (images / "list").write_text(text)
    with pytest.raises(DataError, match=words):
        _Run(_param(images, 2))


def test_configuration_errors(images):
    with pytest.raises(LayerError, match="new_height and new_width"):
        _Run(_param(images, 2, new_height=3))
    with pytest.raises(LayerError, match="new_dim, or new_height and new_width, not both"):
        _Run(_param(images, 2, new_height=3, new_width=3, new_dim=3))
    with pytest.raises(LayerError, match="batch_size"):
        _Run(_param(images, 0))
    (images / "list").unlink()
    with pytest.raises(DataError, match="cannot read the list of images"):
        _Run(_param(images, 2))


def test_long_waits_are_logged(images, caplog, monkeypatch):
    monkeypatch.setattr(prefetching, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(prefetching, "_TELL_SHARE", 1.0)
    run = _Run(_param(images, 4))
    for _ in range(5):
        run.batch()
    assert "waited for data" not in caplog.text
    monkeypatch.setattr(prefetching, "_TELL_SHARE", -1.0)
    run.batch()
    assert "Layer 'd' waited for data for" in caplog.text
