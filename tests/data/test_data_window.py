"""The WindowData layer: sampling, cropping against a plain computation, bad files."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.image_windows import Crop
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2

SIZE = 16


@pytest.fixture
def windows(tmp_path) -> Path:
    """Two images, and a window file: 3 windows of foreground, 2 of background, 1 between."""
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), rng.integers(0, 256, (40, 50, 3), np.uint8))
    (tmp_path / "windows").write_text(
        "# 0\na.png\n3\n40\n50\n4\n"
        "7 1.0 0 0 49 39\n3 0.6 10 5 30 20\n3 0.45 10 5 20 20\n9 0.1 40 30 49 39\n"
        "# 1\nb.png\n3\n40\n50\n2\n5 0.5 2 3 12 33\n4 0 20 20 21 39\n"
    )
    return tmp_path


def _param(folder: Path, transform=None, **fields):
    param = caffe_pb2.LayerParameter(name="d", type="WindowData", top=["data", "label"])
    fields = {"batch_size": 8, "bg_threshold": 0.4, **fields}
    param.window_data_param.CopyFrom(
        caffe_pb2.WindowDataParameter(
            source=str(folder / "windows"), root_folder=f"{folder}/", **fields
        )
    )
    transform = {"crop_size": SIZE, **(transform or {})}
    param.transform_param.CopyFrom(caffe_pb2.TransformationParameter(**transform))
    return param


class _Run:
    def __init__(self, param, **context):
        context.setdefault("seed", 1)
        self.layer = layer_class("WindowData")(param, LayerContext(**context))
        self.tops = [Blob(), Blob()]
        self.layer.setup([], self.tops)
        self.layer.reshape([], self.tops)

    def batch(self) -> list[np.ndarray]:
        self.layer.forward([], self.tops)
        return [top.data.copy() for top in self.tops]


def test_background_first_then_foreground(windows):
    run = _Run(_param(windows, fg_fraction=0.3))
    seen = set()
    for _ in range(30):
        data, label = run.batch()
        assert data.shape == (8, 3, SIZE, SIZE)
        assert not label[:6].any()
        seen |= set(label[6:].tolist())
    assert seen == {3, 5, 7}


def test_same_key_same_windows_and_ranks_differ(windows):
    first = [_Run(_param(windows)).batch() for _ in range(2)]
    assert all(map(np.array_equal, *first))
    other = _Run(_param(windows), shard=Shard(1, 2)).batch()
    assert not np.array_equal(first[0][0], other[0])
    run = _Run(_param(windows, cache_images=True))
    states, batches = [], []
    for _ in range(4):
        states.append(run.layer.state())
        batches.append(run.batch())
    assert all(map(np.array_equal, batches[0], first[0]))
    again = _Run(_param(windows), seed=9)
    again.layer.set_state(states[2])
    assert all(map(np.array_equal, again.batch(), batches[2]))


def _by_pixel(image, window, context, square, mirror):
    """The input that a (H, W, C) image's window becomes, as R-CNN describes it."""

    def c_round(x):
        return math.floor(x + 0.5) if x >= 0 else -math.floor(-x + 0.5)

    x1, y1, x2, y2 = window
    out = np.zeros((3, SIZE, SIZE), np.float32)
    pad_w = pad_h = 0
    size = [SIZE, SIZE]
    if context or square:
        scale = SIZE / (SIZE - 2 * context)
        half_h, half_w = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 2
        cx, cy = x1 + half_w, y1 + half_h
        if square:
            half_h = half_w = max(half_h, half_w)
        x1, x2 = c_round(cx - half_w * scale), c_round(cx + half_w * scale)
        y1, y2 = c_round(cy - half_h * scale), c_round(cy + half_h * scale)
        full_w, full_h = x2 - x1 + 1, y2 - y1 + 1
        left, top = max(0, -x1), max(0, -y1)
        right, bottom = max(0, x2 - 49), max(0, y2 - 39)
        x1, y1, x2, y2 = x1 + left, y1 + top, x2 - right, y2 - bottom
        size = [c_round((x2 - x1 + 1) * SIZE / full_w), c_round((y2 - y1 + 1) * SIZE / full_h)]
        pad_w = c_round((right if mirror else left) * SIZE / full_w)
        pad_h = c_round(top * SIZE / full_h)
        size = [min(size[0], SIZE - pad_w), min(size[1], SIZE - pad_h)]
    part = cv2.resize(image[y1 : y2 + 1, x1 : x2 + 1], tuple(size))
    if mirror:
        part = cv2.flip(part, 1)
    for y in range(size[1]):
        for x in range(size[0]):
            out[:, y + pad_h, x + pad_w] = part[y, x]
    return out


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("context", [0, 3])
@pytest.mark.parametrize("mirror", [False, True])
def test_crops(windows, square, context, mirror):
    image = cv2.imread(str(windows / "a.png"))
    mean = np.zeros((3, 1, 1), np.float32)
    crop = Crop(SIZE, context, square, mean, 1.0)
    for window in [(0, 0, 49, 39), (10, 5, 30, 20), (40, 30, 49, 39), (0, 20, 3, 39), (5, 5, 5, 5)]:
        out = np.full((3, SIZE, SIZE), np.nan, np.float32)
        crop.cut(image.transpose(2, 0, 1), np.array(window), mirror, out)
        assert np.array_equal(out, _by_pixel(image, window, context, square, mirror)), window


def test_mean_and_scale_leave_padding_at_zero(windows):
    param = _param(windows, {"mean_value": [10, 20, 30], "scale": 0.5}, context_pad=4)
    plain = _Run(_param(windows, context_pad=4)).batch()[0]
    data = _Run(param).batch()[0]
    expected = (plain - np.array([10, 20, 30], np.float32)[:, None, None]) * 0.5
    # A pixel that is 0 in all channels is padding (or black, which these random images are not).
    padding = (plain == 0).all(axis=1, keepdims=True)
    assert padding.any()
    assert np.array_equal(data, np.where(padding, 0, expected))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# 1\na.png\n", "expected '# 0'"),
        ("# 0\na.png\n3\n40\n50\n2\n7 1.0 0 0 49 39\n", "malformed at image 0"),
        ("# 0\na.png\n3\n40\n50\n1\n7 1.0 0 0 nan 39\n", "a number that is not below"),
        ("# 0\na.png\n-3\n40\n50\n1\n7 1.0 0 0 49 39\n", "1 or 3 channels, found -3"),
        ("# 0\na.png\n3\n40\n50\n1\n7 1.0 0 0 49 39\n", "both are needed"),
        ("# 0\na.png\n3\n40\n50\n1\n0 1.0 0 0 49 39\n", "label below 1"),
    ],
)
def test_bad_window_files(windows, text, words):
    (windows / "windows").write_text(text)
    with pytest.raises(DataError, match=words):
        _Run(_param(windows))


def test_window_outside_of_its_image(windows):
    text = (windows / "windows").read_text().replace("20 20 21 39", "20 20 21 40")
    (windows / "windows").write_text(text)
    run = _Run(_param(windows))
    with pytest.raises(DataError, match=r"window \(20, 20\) to \(21, 40\) is not inside.*b\.png"):
        for _ in range(20):
            run.batch()


def test_an_image_whose_path_holds_a_zero_byte(windows):
    text = (windows / "windows").read_text()
    (windows / "windows").write_text(text.replace("a.png", "a\0.png").replace("b.png", "b\0.png"))
    with pytest.raises(DataError, match=r"cannot read image '.*\\x00.png': embedded null byte"):
        _Run(_param(windows)).batch()


def test_configuration_errors(windows):
    with pytest.raises(LayerError, match="crop_size"):
        _Run(_param(windows, {"crop_size": 6}, context_pad=3))
    with pytest.raises(LayerError, match="crop_mode"):
        _Run(_param(windows, crop_mode="round"))
