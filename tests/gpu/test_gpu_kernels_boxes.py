"""Matching, mining and decoding of boxes on a GPU against the CPU: equal, also where values tie."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.kernels import boxes as kernels
from pycaffe_dist.kernels import matching, roi_pooling
from pycaffe_dist.kernels.matching import Matching, Mining

IMAGES, PRIORS, LABELS, CLASSES = 2, 600, 24, 3


@pytest.fixture(params=["forward", "reversed"])
def each_gpu(request, gpu, reversed_gpu):
    chosen = gpu if request.param == "forward" else reversed_gpu
    with device.use(chosen):
        yield chosen


def grid(rng, *shape):
    """Boxes with corners of few bits, some beyond the border, so that many overlaps are equal."""
    corners = rng.integers(-1, 12, (*shape, 2))
    sizes = rng.integers(1, 6, (*shape, 2))
    return (np.concatenate([corners, corners + sizes], -1) / 16).astype(np.float32)


def labels(rng):
    label = np.zeros((LABELS, 8), np.float32)
    label[:, 3:7] = grid(rng, LABELS)
    owner = rng.integers(-1, IMAGES, LABELS).astype(np.int32)
    return label, owner, rng.integers(1, CLASSES, LABELS).astype(np.int32)


def on_both(gpu, function, arrays, options, outputs):
    """Return the outputs, the last of ``arrays``, of the CPU and of the GPU."""
    here, there = [array.copy() for array in arrays], [gpu.to_device(array) for array in arrays]
    count = len(arrays) - outputs
    with device.use(device.HOST):
        function(*here[:count], *options, *here[count:])
    function(*there[:count], *options, *there[count:])
    return here[count:], [gpu.to_host(array) for array in there[count:]]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("per_prediction", [False, True])
@pytest.mark.parametrize("own", ["priors", "predictions", "classes"])
def test_matches(own, per_prediction, inside, each_gpu):
    rng = np.random.default_rng(1)
    classes = CLASSES if own == "classes" else 1
    boxes = grid(rng, 1 if own == "priors" else IMAGES, classes, PRIORS)
    matches = np.full((IMAGES, classes, PRIORS), 7, np.int32)
    overlaps = np.full(matches.shape, 7, np.float32)
    how = Matching(own == "classes", per_prediction, 0.4, inside)
    arrays = [boxes, *labels(rng), matches, overlaps]
    here, there = on_both(each_gpu, matching.match_boxes, arrays, [how], 2)
    np.testing.assert_array_equal(there[0], here[0])
    np.testing.assert_array_equal(there[1], here[1])
    assert (here[0] >= 0).sum() >= LABELS // 2


MININGS = {
    "negatives": Mining(False, 0, 2.5, 0.4, 0.0, -1),
    "more than there are": Mining(False, 0, 900, 0.4, 0.0, -1),
    "hard": Mining(True, 150, 0.0, 0.0, 0.0, -1),
    "all": Mining(True, PRIORS, 0.0, 0.0, 0.0, -1),
    "hard and apart": Mining(True, 40, 0.0, 0.0, 0.3, 200),
    "negatives apart": Mining(False, 0, 0.3, 0.4, 0.2, -1),
    "none before suppression": Mining(True, 40, 0.0, 0.0, 0.3, 0),
}


@pytest.mark.parametrize("name", MININGS)
def test_mining(name, each_gpu):
    rng = np.random.default_rng(2)
    matches = rng.choice([-2, -1, -1, 3], (IMAGES + 1, 1, PRIORS)).astype(np.int32)
    overlaps = rng.random(matches.shape).astype(np.float32)
    # Few values, so that many are equal; a NaN is the largest.
    losses = (rng.integers(0, 6, (2, IMAGES + 1, PRIORS)) / 4).astype(np.float32)
    losses[0, 0, 17] = np.nan
    owner = np.array([0, -1, 1, 1], np.int32)  # the last image has no label
    counted, allowed = np.ones((IMAGES + 1, PRIORS), bool), rng.random((IMAGES + 1, PRIORS)) < 0.9
    arrays = [grid(rng, 1, 1, PRIORS), owner, overlaps, allowed, matches, *losses, counted]
    here, there = on_both(each_gpu, matching.mine, arrays, [MININGS[name]], 4)
    for found, wanted in zip(there, here):
        np.testing.assert_array_equal(found, wanted)
    assert not here[3][IMAGES].any()
    assert here[3][:IMAGES].any() == (MININGS[name].top_k != 0)


@pytest.mark.parametrize("variance_in_target", [False, True])
@pytest.mark.parametrize("code", [kernels.CORNER, kernels.CENTER_SIZE, kernels.CORNER_SIZE])
def test_decoding(code, variance_in_target, each_gpu):
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((IMAGES, PRIORS, CLASSES, 4)).astype(np.float32)
    variances = rng.uniform(0.1, 0.2, (PRIORS, 4)).astype(np.float32)
    boxes = np.zeros((IMAGES, CLASSES, PRIORS, 4), np.float32)
    arrays = [numbers, grid(rng, PRIORS), variances, boxes]
    options = [code, variance_in_target]
    here, there = on_both(each_gpu, kernels.decode_boxes, arrays, options, 1)
    np.testing.assert_allclose(there[0], here[0], rtol=1e-5, atol=1e-6)
    assert here[0].any()


def test_slopes_of_samples(each_gpu):
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((2, 5, 4, 6)), rng.standard_normal((7, 5, 2, 3))
    low = np.stack([rng.integers(-1, size, (7, 3)) for size in (6, 4)], axis=1)
    part, share = rng.random((2, 7, 2, 3))
    image = rng.integers(0, 2, 7)
    arrays = x, image, low.astype(np.int32), part, share, dy, np.empty((7, 5, 4))
    here, there = on_both(each_gpu, roi_pooling.roi_sample_slopes, arrays, (), 1)
    assert here[0].any()
    np.testing.assert_allclose(there[0], here[0], rtol=1e-12, atol=1e-12)
