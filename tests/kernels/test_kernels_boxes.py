"""Boxes: overlap, encoding and non-maximum suppression, against plain Python in float32."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pycaffe_dist.kernels import boxes as kernels
from pycaffe_dist.schema import caffe_pb2

CODES = [kernels.CORNER, kernels.CENTER_SIZE, kernels.CORNER_SIZE]


def random_boxes(rng, *shape):
    corners = rng.uniform(-0.2, 0.8, (*shape, 2))
    return np.concatenate([corners, corners + rng.uniform(0.05, 0.5, (*shape, 2))], -1)


def plain_overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    sizes = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    return width * height / (sum(sizes) - width * height)


def plain_suppress(boxes, order, threshold, eta, smallest):
    kept = []
    for index in order:
        x = boxes[index]
        if (x[2] - x[0]) * (x[3] - x[1]) < smallest:
            continue
        if all(plain_overlap(x, boxes[other]) <= threshold for other in kept):
            kept.append(index)
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept


def test_codes_are_those_of_the_schema():
    names = caffe_pb2.PriorBoxParameter.CodeType
    assert [names.Value(name) for name in ("CORNER", "CENTER_SIZE", "CORNER_SIZE")] == CODES


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_overlap(dtype):
    boxes = random_boxes(np.random.default_rng(0), 40).astype(dtype)
    for a in boxes:
        for b in boxes:
            found = kernels.overlap(tuple(a), tuple(b))
            assert found == pytest.approx(plain_overlap(a.tolist(), b.tolist()), abs=1e-6)
            # Symmetric to the last bit, or matching would depend on the order.
            assert found == kernels.overlap(tuple(b), tuple(a))


@pytest.mark.parametrize(
    ("box", "other", "expected"),
    [
        ((0, 0, 1, 1), (0, 0, 1, 1), 1),
        ((0, 0, 1, 1), (0, 0.5, 1, 1), 0.5),
        ((0, 0, 1, 1), (1, 0, 2, 1), 0),  # they touch
        ((0, 0, 1, 1), (0.5, 0.5, 0.5, 0.9), 0),  # no width
        ((0, 0, 1, 1), (0.8, 0.2, 0.3, 0.9), 0),  # reversed
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
    ],
)
def test_overlap_of_special_boxes(box, other, expected):
    assert kernels.overlap(tuple(map(float, box)), tuple(map(float, other))) == expected


def test_area_of_a_reversed_box_is_0():
    assert kernels.area((0.5, 0.5, 0.25, 0.25)) == 0
    assert kernels.area((-0.5, 0.0, 0.5, 0.5)) == 0.5


def decode_by_hand(prior, variance, numbers, code):
    center = (prior[:2] + prior[2:]) / 2
    size = prior[2:] - prior[:2]
    shift = numbers * variance
    if code == kernels.CORNER:
        return prior + shift
    if code == kernels.CORNER_SIZE:
        return prior + shift * np.tile(size, 2)
    center = center + shift[:2] * size
    half = size * np.exp(shift[2:]) / 2
    return np.concatenate([center - half, center + half])


@pytest.mark.parametrize("variance_in_target", [False, True])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decoding(code, variance_in_target, dtype):
    rng = np.random.default_rng(code)
    numbers = rng.standard_normal((2, 5, 3, 4)).astype(dtype)
    priors = random_boxes(rng, 5).astype(dtype)
    variances = rng.uniform(0.1, 0.3, (5, 4)).astype(dtype)
    boxes = np.empty((2, 3, 5, 4), dtype)
    kernels.decode_boxes(numbers, priors, variances, code, variance_in_target, boxes)
    for n, c, p in np.ndindex(2, 3, 5):
        variance = np.ones(4) if variance_in_target else variances[p]
        expected = decode_by_hand(priors[p].astype(float), variance, numbers[n, p, c], code)
        np.testing.assert_allclose(boxes[n, c, p], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variance_in_target", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_encoding_is_the_inverse_of_decoding(code, variance_in_target):
    rng = np.random.default_rng(code)
    for _ in range(20):
        prior, box = random_boxes(rng, 2)
        variance = rng.uniform(0.1, 0.3, 4)
        args = tuple(prior), tuple(variance)
        numbers = kernels.encode_box(*args, tuple(box), code, variance_in_target)
        again = kernels.decode_box(*args, numbers, code, variance_in_target)
        np.testing.assert_allclose(again, box, rtol=1e-12, atol=1e-12)


def test_the_arithmetic_of_float32_boxes_is_in_float32():
    box = tuple(np.float32([0.1, 0.2, 0.7, 0.9]))
    calls = [
        (kernels.encode_box, (box, box, box, kernels.CENTER_SIZE, False)),
        (kernels.decode_box, (box, box, box, kernels.CENTER_SIZE, False)),
        (kernels.overlap, (box, box)),
        (kernels.area, (box,)),
    ]
    for function, args in calls:
        function(*args)
        types = tuple(function.typeof_pyval(arg) for arg in args)
        assert str(function.overloads[types].signature.return_type) in (
            "float32",
            "UniTuple(float32 x 4)",
        )


@pytest.mark.parametrize("count", [-1, 0, 1, 5, 299, 300, 1000])
def test_the_best_scores_come_first_and_equal_ones_keep_their_order(count):
    rng = np.random.default_rng(0)
    for scores in (rng.standard_normal(300), rng.integers(-3, 3, 300) * 0.5, -np.zeros(300)):
        scores = scores.astype(np.float32)
        expected = np.argsort(-scores, kind="stable")[: None if count < 0 else count]
        np.testing.assert_array_equal(kernels.best_scores(scores, count), expected)


def test_no_number_is_the_best_score():
    scores = np.array([0.5, math.nan, math.inf, -math.nan, -math.inf], np.float32)
    assert kernels.best_scores(scores, -1).tolist() == [1, 2, 3, 0, 4]


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("eta", [1.0, 0.9])
@pytest.mark.parametrize("smallest", [0.0, 0.08])
def test_suppression(threshold, eta, smallest):
    rng = np.random.default_rng(4)
    boxes = random_boxes(rng, 60).astype(np.float32)
    boxes[30:] = boxes[:30] + rng.uniform(-0.02, 0.02, (30, 4))
    order = rng.permutation(60)[:50]
    kept = np.full(50, -1, np.int64)
    count = kernels.suppress(boxes, order, threshold, eta, smallest, kept)
    expected = plain_suppress(boxes.tolist(), order.tolist(), threshold, eta, smallest)
    assert kept[:count].tolist() == expected
    assert 1 < count < 50
    few = np.full(count - 1, -1, np.int64)
    assert kernels.suppress(boxes, order, threshold, eta, smallest, few) == count - 1
    assert few.tolist() == expected[:-1]
