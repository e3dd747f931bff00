"""DetectNetTransformation against a plain Python version of its rules, and its errors."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.data import scenes
from pycaffe_dist.errors import LayerError
from pycaffe_dist.schema import caffe_pb2

WIDTH, HEIGHT = 48, 32
CHANGES = ("crop", "scale", "flip", "rotation", "hue_rotation", "desaturation")


def only(**chances):
    """Options by which no change but these happens."""
    chances = {**dict.fromkeys((f"{name}_prob" for name in CHANGES), 0), **chances}
    return " ".join(f"{name}: {value}" for name, value in chances.items())


NONE = only()


def labels(*images):
    """Labels of images with objects of x, y, width, height, class."""
    rows = np.zeros((len(images), 1, 5, 16))
    for n, objects in enumerate(images):
        rows[n, 0, 0, :2] = len(objects), 16
        for k, (*box, kind) in enumerate(objects):
            rows[n, 0, k + 1, :4], rows[n, 0, k + 1, 5] = box, kind
    return rows


def build(options="", augmentation=NONE, x=None, label=None, more="", **rest):
    sizes = {"image_size_x": WIDTH, "image_size_y": HEIGHT}
    options += "".join(f" {key}: {size}" for key, size in sizes.items() if key not in options)
    x = np.random.default_rng(1).uniform(0, 255, (2, 3, HEIGHT, WIDTH)) if x is None else x
    label = labels([(3, 4, 20, 12, 1)], []) if label is None else label
    return LayerHarness(
        'type: "DetectNetTransformation" bottom: "x" bottom: "label" top: "y" top: "goals" '
        f"detectnet_groundtruth_param {{ {options} }} "
        f"detectnet_augmentation_param {{ {augmentation} }} {more}",
        {"x": x, "label": label},
        **rest,
    )


def plain(objects, stride=4, classes=None, classes_count=1, **options):
    """The grid of one image, cell by cell."""
    classes = classes or {1: 0}
    rows, columns = HEIGHT // stride, WIDTH // stride
    goals = np.zeros((8 + classes_count, rows, columns))
    for x, y, w, h, kind in objects:
        if options.get("crop", True):
            right, bottom = min(x + w, WIDTH), min(y + h, HEIGHT)
            x, y = max(x, 0), max(y, 0)
            w, h = right - x, bottom - y
        if kind not in classes or w <= 0 or h <= 0:
            continue
        sides = []
        for low, size in ((x, w), (y, h)):
            inner = size * options.get("scale", 0.5)
            if "least" in options:
                inner = min(size, max(options["least"], inner))
            else:
                inner = min(options.get("most", 50), inner)
            sides.append((low + size / 2 - inner / 2, low + size / 2 + inner / 2))
        (left, right), (top, bottom) = sides
        share = stride * stride / ((right - left) * (bottom - top))
        for row, column in np.ndindex(rows, columns):
            cell_x, cell_y = column * stride, row * stride
            wide = min(right, cell_x + stride) - max(left, cell_x)
            high = min(bottom, cell_y + stride) - max(top, cell_y)
            if wide > 0 and high > 0 and wide * high / stride**2 > 1e-6:
                corners = x - cell_x, y - cell_y, x + w - cell_x, y + h - cell_y
                share_of_cell = share if options.get("normalize") else max(1, share)
                cell = [1, *corners, 1 / w, 1 / h, share_of_cell, *[0] * classes_count]
                cell[8 + classes[kind]] = 1
                goals[:, row, column] = cell
    return goals


OBJECTS = [(3, 4, 20, 12, 1), (-5, 10, 30, 9, 3), (30, 20.5, 31, 20, 2), (90, 1, 5, 5, 1)]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("stride: 8 scale_cvg: 1 max_cvg_len: 10", {"stride": 8, "scale": 1, "most": 10}),
        ("gridbox_type: GRIDBOX_MIN min_cvg_len: 8", {"least": 8}),
        ("obj_norm: true stride: 16", {"normalize": True, "stride": 16}),
        ("crop_bboxes: false", {"crop": False}),
        (
            "object_class { src: 1 dst: 2 } object_class { src: 3 dst: 0 }",
            {"classes": {1: 2, 3: 0}, "classes_count": 3},
        ),
    ],
)
def test_the_grid_is_that_of_the_plain_rules(text, options):
    objects = [OBJECTS, OBJECTS[::-1]]
    _, found = build(text, label=labels(*objects)).forward()
    expected = [plain(each, **options) for each in objects]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert found[:, 0].any()


def test_images_of_the_same_size_only_lose_the_mean():
    means = "transform_param { mean_value: 10 mean_value: 20 mean_value: 30 }"
    for phase in ("TRAIN", "TEST"):
        harness = build(more=means, phase=phase)
        found, _ = harness.forward()
        expected = harness.bottom[0].data - np.array([10, 20, 30]).reshape(3, 1, 1)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_mean_image_is_scaled_to_the_images(tmp_path):
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=2, width=2)
    blob.data.extend(range(12))
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    more = f"transform_param {{ mean_file: '{path}' }}"
    found, _ = build(more=more, x=np.zeros((2, 3, HEIGHT, WIDTH))).forward()
    # In the corners are the mean's own corners, but for the overshoot of cubic curves.
    np.testing.assert_allclose(-found[0, 1][[0, 0, -1, -1], [0, -1, 0, -1]], [4, 5, 6, 7], atol=0.6)


def cubic(values, place):
    """The curve through values at pixels' centres, with a parameter of -0.75."""
    first, total = math.floor(place), 0.0
    for k in range(first - 1, first + 3):
        d, a = abs(place - k), -0.75
        if d <= 1:
            weight = ((a + 2) * d - (a + 3)) * d * d + 1
        else:
            weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        total += weight * values[min(max(k, 0), len(values) - 1)]
    return total


def test_scaled_images_and_boxes():
    row = np.random.default_rng(2).uniform(0, 255, WIDTH)
    x = np.broadcast_to(row, (1, 3, HEIGHT, WIDTH))
    scale = only(scale_prob=1, scale_min=1.5, scale_max=1.5)
    found, goals = build("", scale, x, labels([(9, 8, 16, 8, 1)])).forward()
    # 72 x 48 pixels, of which the middle ones are kept.
    expected = [cubic(row, (k + 12.5) / 1.5 - 0.5) for k in range(WIDTH)]
    np.testing.assert_allclose(found[0, 2, 7], expected, atol=1e-3)
    np.testing.assert_allclose(goals[0], plain([(1.5, 4, 24, 12, 1)]), rtol=1e-6)


def test_mirrored_images_and_boxes():
    harness = build("", only(flip_prob=1))
    found, goals = harness.forward()
    np.testing.assert_allclose(found, harness.bottom[0].data[..., ::-1], atol=1e-4)
    np.testing.assert_allclose(goals[0], plain([(WIDTH - 3 - 20 - 1, 4, 20, 12, 1)]), rtol=1e-6)


def test_crops_shift_images_and_boxes():
    x = np.random.default_rng(3).uniform(1, 255, (1, 3, HEIGHT + 10, WIDTH + 6))
    augmentation = only(crop_prob=1, shift_x=8, shift_y=4)
    harness = build("", augmentation, x, labels([(20, 20, 10, 10, 1)]))
    seen = set()
    for seed in range(12):
        harness.layer.random = np.random.default_rng(seed)
        harness.layer.forward(harness.bottom, harness.top)
        found, goals = (blob.data for blob in harness.top)
        (cell_y, cell_x) = np.argwhere(goals[0, 0])[0]
        left = 20 - (goals[0, 1, cell_y, cell_x] + 4 * cell_x)
        top = 20 - (goals[0, 2, cell_y, cell_x] + 4 * cell_y)
        shift = round(float(left)), round(float(top))
        assert -4 <= shift[0] <= 10 and -2 <= shift[1] <= 12
        padded = np.pad(x, ((0, 0), (0, 0), (9, 9), (9, 9)))
        rows, columns = slice(9 + shift[1], None), slice(9 + shift[0], None)
        expected = padded[:, :, rows, columns][:, :, :HEIGHT, :WIDTH]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        seen.add(shift)
    assert len(seen) > 5


def test_turned_images_and_boxes():
    """A bright spot, and the box around it, turn together about the middle."""
    x = np.zeros((1, 3, HEIGHT, WIDTH))
    x[:, :, 8:11, 38:41] = 240
    augmentation = only(rotation_prob=1, max_rotate_degree=40)
    box = (37, 7, 5, 5, 1)
    harness = build("scale_cvg: 1 crop_bboxes: false", augmentation, x, labels([box]))
    found, goals = harness.forward()
    draws = np.random.default_rng(5).random((1, scenes.DRAWS))
    param = harness.layer.param.detectnet_augmentation_param
    changes = scenes.random_changes(param, draws, (WIDTH, HEIGHT), (WIDTH, HEIGHT))
    angle = math.radians(changes.rotation[0])
    assert abs(angle) > 0.1
    away = np.array([39.5 - WIDTH / 2, 9.5 - HEIGHT / 2])
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    expected = turn @ away + np.array([WIDTH, HEIGHT]) / 2
    rows, columns = np.nonzero(found[0, 0] > 100)
    np.testing.assert_allclose([columns.mean() + 0.5, rows.mean() + 0.5], expected, atol=1.5)
    cell_y, cell_x = np.argwhere(goals[0, 0])[0]
    corners = goals[0, 1:5, cell_y, cell_x] + 4 * np.array([cell_x, cell_y] * 2)
    np.testing.assert_allclose((corners[:2] + corners[2:]) / 2, expected, atol=1.5)
    np.testing.assert_allclose(corners[2:] - corners[:2], 5, rtol=1e-5)


def test_colors_turn_and_fade():
    x = np.random.default_rng(4).uniform(0, 255, (1, 3, HEIGHT, WIDTH))
    augmentation = only(hue_rotation_prob=1, hue_rotation=170, desaturation_prob=1)
    found, _ = build("", augmentation, x, labels([])).forward()
    draws = np.random.default_rng(5).random((1, scenes.DRAWS))
    param = caffe_pb2.DetectNetAugmentationParameter(
        hue_rotation_prob=1, hue_rotation=170, desaturation_prob=1, crop_prob=0
    )
    changes = scenes.random_changes(param, draws, (WIDTH, HEIGHT), (WIDTH, HEIGHT))
    assert abs(changes.hue[0]) > 1 and changes.saturation[0] < 0.99
    for row, column in ((0, 0), (7, 30), (31, 47), (16, 5)):
        blue, green, red = x[0, :, row, column] / 255
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        hue = (hue + changes.hue[0] / 360) % 1
        expected = colorsys.hsv_to_rgb(hue, saturation * changes.saturation[0], value)
        np.testing.assert_allclose(found[0, ::-1, row, column] / 255, expected, atol=1e-4)


def test_changes_are_as_frequent_as_they_should_be():
    param = caffe_pb2.DetectNetAugmentationParameter(flip_prob=0.25, scale_prob=0.5)
    draws = np.random.default_rng(6).random((4000, scenes.DRAWS))
    changes = scenes.random_changes(param, draws, (1000, 500), (800, 400))
    assert changes.flip.mean() == pytest.approx(0.25, abs=0.03)
    assert (changes.size[:, 0] != 1000).mean() == pytest.approx(0.5, abs=0.03)
    assert 700 <= changes.size[:, 0].min() < 720
    assert changes.rotation.astype(bool).mean() == pytest.approx(0.33, abs=0.03)
    assert 0.9 < np.abs(changes.rotation).max() <= 1
    assert 14 < np.abs(changes.hue).max() <= 15
    assert 0.5 <= changes.saturation.min() < 0.52


@pytest.mark.parametrize(
    ("options", "rest", "message"),
    [
        ("stride: 0", {}, "needs stride of at least 1, found 0"),
        ("image_size_x: 0", {}, "needs image_size_x of at least 1, found 0"),
        ("scale_cvg: -1", {}, "needs scale_cvg of at least 0, found -1"),
        ("", {"augmentation": "scale_min: 0"}, "scale_min above 0 .* found 0 and 1"),
        ("", {"augmentation": "scale_min: 2"}, "scale_max of at least scale_min, found 2 and 1"),
        ("", {"more": "transform_param { mean_value: [1, 2] }"}, "1 or 3 mean_value, found 2"),
        ("", {"x": np.zeros((2, 1, 8, 8))}, r"needs images \(N, 3, H, W\), found 'x' \(2, 1, 8, 8"),
        ("", {"x": np.zeros((1, 3, 8, 8))}, "need the same first dimension"),
        ("", {"label": np.zeros((2, 1, 4, 5))}, r"labels \(N, 1, rows, 16\), found 'label' \(2, 1"),
    ],
)
def test_wrong_options_and_shapes(options, rest, message):
    with pytest.raises(LayerError, match=message):
        build(options, **rest)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((1, 0, 0, 0), 5, "begin with at most 4 objects of 16 numbers, found 5 of 16 in image 1"),
        ((1, 0, 0, 0), math.nan, "found nan of 16 in image 1"),
        ((0, 0, 0, 1), 13, "found 1 of 13 in image 0"),
        ((0, 0, 1, 2), math.inf, "needs finite numbers, found others in object 0 of image 0"),
        ((0, 0, 1, 5), math.nan, "needs finite numbers, found others in object 0 of image 0"),
    ],
)
def test_wrong_labels(place, value, message):
    harness = build()
    harness.bottom[1].data[place] = value
    with pytest.raises(LayerError, match=message):
        harness.layer.forward(harness.bottom, harness.top)


def test_a_mean_of_other_channels_is_refused(tmp_path):
    blob = caffe_pb2.BlobProto(num=1, channels=1, height=2, width=2, data=[0] * 4)
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    with pytest.raises(LayerError, match=r"one image of 3 channels .* found \(1, 1, 2, 2\)"):
        build(more=f"transform_param {{ mean_file: '{path}' }}")
