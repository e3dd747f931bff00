"""Layers of boxes: wrong input, borders of the definition, and losses without a weight."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist import Net
from pycaffe_dist.errors import LayerError

MAP = (2, 4, 6, 8)
POOL = "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }"
POSITIONS = "psroi_pooling_param { spatial_scale: 0.5 output_dim: 1 group_size: 2 }"
OPTIONS = {"ROIPooling": POOL, "ROIAlign": POOL, "PSROIPooling": POSITIONS}
HARD = "box_annotator_ohem_param { roi_per_img: 1 }"


def build(type, options, tops=1, **values):
    names = "".join(f' bottom: "{name}"' for name in values)
    outs = "".join(f' top: "y{index}"' for index in range(tops))
    return LayerHarness(f'type: "{type}"{names}{outs} {options}', values)


def zeros(**shapes):
    return {name: np.zeros(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("type", "options", "values", "message"),
    [
        ("ROIPooling", "", zeros(x=MAP, b=(3, 5)), "pooled_h and pooled_w of at least 1"),
        ("ROIAlign", "", zeros(x=MAP, b=(3, 5)), "pooled_h and pooled_w of at least 1"),
        ("ROIPooling", POOL, zeros(x=MAP[1:], b=(3, 5)), r"4 axes, found bottom 'x' \(4, 6, 8\)"),
        ("ROIPooling", POOL, zeros(x=MAP, b=(3, 4)), r"rows of image.* found bottom 'b' \(3, 4\)"),
        ("PSROIPooling", POSITIONS, zeros(x=(1, 5, 6, 8), b=(3, 5)), "group_size² = 4 channels"),
        (
            "PSROIPooling",
            POSITIONS.replace("output_dim: 1", "output_dim: 0"),
            zeros(x=MAP, b=(3, 5)),
            "output_dim and group_size of at least 1",
        ),
        ("SmoothL1Loss", "", zeros(a=(4, 5), b=(4, 6)), r"'a' \(4, 5\) and 'b' \(4, 6\) need"),
        (
            "SmoothL1Loss",
            "smooth_l1_loss_param { sigma: 0 }",
            zeros(a=(4, 5), b=(4, 5)),
            "sigma above 0, found 0",
        ),
        (
            "SmoothL1Loss",
            "smooth_l1_loss_param { sigma: 3 }",
            zeros(a=(4, 5), b=(4, 5), w=(4, 5)),
            "no sigma with three bottoms",
        ),
        (
            "SoftmaxWithLoss",
            "loss_param { weight_by_label_freqs: true class_weighting: 2 }",
            zeros(x=(4, 5), t=(4,)),
            r"class_weighting for each of 5 classes of bottom 'x' \(4, 5\), found 1",
        ),
        (
            "BoxAnnotatorOHEM",
            HARD,
            zeros(b=(4, 5), l=(4, 2), t=(4,), w=(4, 8)),
            r"one value per box: 4, found bottom 'l' \(4, 2\)",
        ),
        (
            "BoxAnnotatorOHEM",
            HARD.replace("1 }", "0 }"),
            zeros(b=(4, 5), l=(4,), t=(4,), w=(4, 8)),
            "roi_per_img of at least 1",
        ),
    ],
)
def test_misuse_is_explained(type, options, values, message):
    tops = 2 if type == "BoxAnnotatorOHEM" else 1
    with pytest.raises(LayerError, match=message):
        build(type, options, tops, **values)


@pytest.mark.parametrize("type", OPTIONS)
@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([2, 0, 0, 5, 5], "box 1 of bottom 'b' .* image from 0 to 1, found image 2"),
        ([-1, 0, 0, 5, 5], "found image -1"),
        ([0, 0, np.nan, 5, 5], "needs finite corners .* found image nan"),
        ([0, 0, 0, np.inf, 5], "needs finite corners"),
    ],
)
def test_a_wrong_box_is_named(type, box, message):
    harness = build(type, OPTIONS[type], **zeros(x=MAP, b=(3, 5)))
    with pytest.raises(LayerError, match=message):
        harness.forward({"b": np.array([[0, 0, 0, 4, 4], box, [9, 0, 0, 0, 0]])})


@pytest.mark.parametrize("type", OPTIONS)
def test_boxes_may_lie_far_outside(type):
    harness = build(type, OPTIONS[type], x=np.ones(MAP), b=np.zeros((3, 5)))
    far = [[0, -1e30, -1e30, 1e30, 1e30], [1, 1e30, 0, 1e35, 5], [0, -9, -9, -5, -5]]
    y = harness.forward({"b": np.array(far)})[0]
    assert np.isin(y, (0, 1)).all() and not y[1:].any()
    harness.top[0].diff.fill(1)
    harness.backward()
    assert np.isfinite(harness.bottom[0].diff).all()


def test_gradients_of_overlapping_boxes_add_up():
    x = np.arange(48.0).reshape(1, 1, 6, 8)
    boxes = np.array([[0, 0, 0, 15, 11], [0, 8, 6, 15, 11]])
    options = "roi_pooling_param { pooled_h: 1 pooled_w: 1 spatial_scale: 0.5 }"
    harness = build("ROIPooling", options, x=x, b=boxes)
    np.testing.assert_array_equal(harness.forward()[0].ravel(), [47, 47])
    harness.top[0].diff[...] = np.array([2, 3]).reshape(2, 1, 1, 1)
    harness.backward()
    assert harness.bottom[0].diff[0, 0, 5, 7] == 5
    assert np.count_nonzero(harness.bottom[0].diff) == 1


def test_a_nan_in_a_bin_reaches_the_output():
    x = np.zeros((1, 1, 6, 8))
    x[0, 0, 1, 1] = np.nan
    y = build("ROIPooling", POOL, x=x, b=np.array([[0.0, 0, 0, 15, 11]])).forward()[0]
    assert np.isnan(y[0, 0, 0, 0]) and np.count_nonzero(np.isnan(y)) == 1


@pytest.mark.parametrize(
    ("type", "options", "constants", "shapes"),
    [
        *((type, OPTIONS[type], [1], {"x": MAP, "b": (3, 5)}) for type in OPTIONS),
        ("SmoothL1Loss", "", [2, 3], {"a": (3, 4), "b": (3, 4), "w": (3, 4), "v": (3, 4)}),
        ("BoxAnnotatorOHEM", HARD, [0, 1, 2, 3], {"b": (4, 5), "l": (4,), "t": (4,), "w": (4, 8)}),
    ],
)
def test_boxes_and_weights_get_a_gradient_of_zero(type, options, constants, shapes):
    harness = build(type, options, 2 if type == "BoxAnnotatorOHEM" else 1, **zeros(**shapes))
    harness.forward()
    for index in constants:
        harness.bottom[index].diff.fill(7)
        assert not harness.layer.allow_force_backward(index)
    harness.backward([True] * len(shapes))
    for index in constants:
        assert not harness.bottom[index].diff.any()


def loss_net(tmp_path, bottoms, weight=""):
    path = tmp_path / "net.prototxt"
    inputs = "".join(
        f'layer {{ name: "in_{name}" type: "Input" top: "{name}" '
        "input_param { shape { dim: 2 dim: 4 } } } "
        for name in bottoms
    )
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    loss = f'layer {{ name: "l" type: "SmoothL1Loss" {names} top: "y" {weight} }}'
    path.write_text(f"{inputs} {loss}")
    return Net(path.as_posix(), 0)


def test_a_loss_type_without_a_weight_says_that_it_trains_nothing(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for bottoms, weight, warns in (
        ("ab", "", True),
        ("ab", "loss_weight: 1", False),
        ("ab", "loss_weight: 0", False),
        ("abw", "", False),
        ("abwv", "", True),
    ):
        folder = tmp_path / f"{bottoms}{len(weight)}{weight[-1:]}"
        folder.mkdir()
        caplog.clear()
        net = loss_net(folder, bottoms, weight)
        net = loss_net(folder, bottoms, weight)
        expected = 0 if warns or weight.endswith("0") else 1
        assert net.blob_loss_weights["y"] == expected
        told = [r for r in caplog.records if "has no loss_weight" in r.getMessage()]
        assert len(told) == warns, (bottoms, weight)
