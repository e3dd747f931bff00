"""ROIWarping, MaskResize and MaskPooling against their definitions in daijifeng001/caffe-mnc."""

import math

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

SCALE, ROWS, COLUMNS = 0.0625, 3, 4
WARPING = f"roi_warping_param {{ pooled_h: {ROWS} pooled_w: {COLUMNS} spatial_scale: {SCALE} }}"
# Inside, on the border, outside, reversed, smaller than the result.
BOXES = np.array(
    [
        [0, 20.3, 18.2, 100.1, 90.4],
        [1, 0, 0, 175, 143],
        [0, -30.6, 50.2, 60.9, 250.7],
        [1, 120.1, 100.3, 80.2, 40.9],
        [0, 33, 47, 49, 62],
    ]
)


def layer(kind, options="", dtype=np.float64, **bottoms):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return LayerHarness(
        f'name: "l" type: "{kind}" {names} top: "y" {options}', bottoms, dtype=dtype
    )


def weights(point, size):
    """The cells around a point of an axis, with their weights."""
    if point < -0.5 or point > size - 0.5:
        return {}
    point = max(point, 0)
    low = min(int(point), size - 1)
    part = point - low if low < size - 1 else 0
    return {low: 1 - part, **({low + 1: part} if part else {})}


def corner(value):
    return math.floor(abs(value * SCALE) + 0.5) * (1 if value >= 0 else -1)


def axis(begin, end, count, size):
    """For each point its place, its weights, and the cells that the fork's gradient reaches."""
    step = max(end - begin, 0) / count
    larger = max(end - begin + 1, 1) / count
    for p in range(count):
        around = weights(begin + p * step, size)
        reached = {
            c
            for c in around
            if begin <= c <= end
            and math.floor((c - begin - 1) / larger - 1) <= p < math.ceil((c - begin + 1) / larger)
        }
        yield begin + p * step, around, reached


def definition(x, dy):
    """The result, and the gradients of the map and the boxes."""
    y, dx, db = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(BOXES)
    for r, (image, *corners) in enumerate(BOXES):
        left, top, right, bottom = map(corner, corners)
        plane, to = x[int(image)], dx[int(image)]
        for p, (row, down, rows) in enumerate(axis(top, bottom, ROWS, x.shape[2])):
            for q, (col, across, cols) in enumerate(axis(left, right, COLUMNS, x.shape[3])):
                for h, v in down.items():
                    for w, u in across.items():
                        y[r, :, p, q] += v * u * plane[:, h, w]
                        if h in rows and w in cols:
                            to[:, h, w] += v * u * dy[r, :, p, q]
                if not down or not across:
                    continue
                row, col = max(row, 0), max(col, 0)
                h, w = int(row), int(col)
                if h + 1 >= x.shape[2] or w + 1 >= x.shape[3]:
                    continue
                v, u = row - h, col - w
                a, b, c, d = (plane[:, h + i, w + j] for i in (0, 1) for j in (0, 1))
                rise = ((1 - v) * (b - a) + v * (d - c)) @ dy[r, :, p, q] * SCALE
                fall = ((1 - u) * (c - a) + u * (d - b)) @ dy[r, :, p, q] * SCALE
                far = (col - left) / max(right - left + 1, 1)
                low = (row - top) / max(bottom - top + 1, 1)
                db[r, 1:] += rise * (1 - far), fall * (1 - low), rise * far, fall * low
    return y, dx, db


def test_roi_warping_follows_the_fork():
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 3, 9, 11)), rng.standard_normal((5, 3, ROWS, COLUMNS))
    harness = layer("ROIWarping", WARPING, x=x, b=BOXES)
    found = harness.forward()[0]
    harness.top[0].diff[...] = dy
    harness.layer.backward(harness.top, [True, True], harness.bottom)
    y, dx, db = definition(x, dy)
    np.testing.assert_allclose(found, y, atol=1e-12)
    np.testing.assert_allclose(harness.bottom[0].diff, dx, atol=1e-12)
    np.testing.assert_allclose(harness.bottom[1].diff, db, atol=1e-12)


@pytest.mark.parametrize("size", [(2, 5), (5, 8), (13, 19)])
def test_mask_resize_follows_the_fork(size):
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((2, 3, 5, 8)), rng.standard_normal((2, 3, *size))
    options = f"mask_resize_param {{ output_height: {size[0]} output_width: {size[1]} }}"
    harness = layer("MaskResize", options, x=x)
    found = harness.forward()[0]
    harness.top[0].diff[...] = dy
    harness.layer.backward(harness.top, [True], harness.bottom)
    y, dx = np.zeros_like(dy), np.zeros_like(x)
    ratio = 5 / size[0], 8 / size[1]
    for p in range(size[0]):
        for q in range(size[1]):
            for h, v in weights(p * ratio[0], 5).items():
                for w, u in weights(q * ratio[1], 8).items():
                    y[:, :, p, q] += v * u * x[:, :, h, w]
                    first = math.floor(h / ratio[0]), math.floor(w / ratio[1])
                    if p - first[0] in (0, 1) and q - first[1] in (0, 1):
                        dx[:, :, h, w] += v * u * dy[:, :, p, q]
    np.testing.assert_allclose(found, y, atol=1e-12)
    np.testing.assert_allclose(harness.bottom[0].diff, dx, atol=1e-12)


X = np.zeros((2, 3, 4, 5))


@pytest.mark.parametrize(
    ("kind", "options", "bottoms", "message"),
    [
        ("ROIWarping", "", {"x": X, "b": BOXES}, "needs pooled_h and pooled_w of at least 1"),
        ("ROIWarping", WARPING, {"x": X, "b": X}, "needs boxes as rows of image, x1, y1, x2, y2"),
        ("MaskResize", "", {"x": X}, "needs output_height and output_width of at least 1"),
        (
            "MaskPooling",
            "",
            {"x": X, "m": X},
            r"bottoms 'x' \(2, 3, 4, 5\) and 'm' \(2, 3, 4, 5\) need the same shape but for 1",
        ),
    ],
)
def test_wrong_input(kind, options, bottoms, message):
    with pytest.raises(LayerError, match=message):
        layer(kind, options, **bottoms)


def test_a_box_of_an_image_that_is_missing():
    harness = layer("ROIWarping", WARPING, x=X, b=np.array([[2.0, 0, 0, 9, 9]]))
    with pytest.raises(LayerError, match="an image from 0 to 1, found image 2"):
        harness.forward()
