"""The choice of detections and their evaluation, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import boxes as box_kernels
from pycaffe_dist.kernels.detection import (
    NOT_DECIDED,
    PRIORS_PER_BLOCK,
    RIGHT,
    WRONG,
    Choice,
    NotANumber,
    detections,
    verdicts,
)

CODE = box_kernels.CENTER_SIZE
USUAL = {"background": 0, "least_score": 0.01, "top_k": 40, "overlap": 0.45, "eta": 1.0, "most": 20}


def priors(rng, count, dtype):
    centers, sizes = rng.uniform(0.1, 0.9, (count, 2)), rng.uniform(0.05, 0.3, (count, 2))
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)
    return np.stack([corners, np.tile([0.1, 0.1, 0.2, 0.2], (count, 1))]).astype(dtype)


def problem(seed, dtype, count=60, classes=4, images=2, locations=1):
    """Return scores, many of them equal, predictions and priors."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 50, (images, count, classes)) / 50
    predictions = rng.standard_normal((images, count, locations, 4)) * 0.5
    return scores.astype(dtype), predictions.astype(dtype), priors(rng, count, dtype)


def decoded(predictions, priors):
    """Return boxes (N, P, L, 4) by the definition of CENTER_SIZE."""
    boxes, variances = (array[:, None] for array in priors.astype(float))
    size, center = boxes[..., 2:] - boxes[..., :2], (boxes[..., 2:] + boxes[..., :2]) / 2
    moved = variances * predictions
    center, half = moved[..., :2] * size + center, np.exp(moved[..., 2:]) * size / 2
    return np.concatenate([center - half, center + half], axis=-1)


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    return shared / (sum(areas) - shared)


def plain(scores, predictions, priors, choice):
    """Return the rows of `detections`, one box at a time."""
    boxes, rows = decoded(predictions, priors), []
    for n in range(len(scores)):
        chosen = []
        for c in range(scores.shape[2]):
            if c == choice.background:
                continue
            own = boxes[n, :, min(c, boxes.shape[2] - 1)].tolist()
            better = [p for p in range(scores.shape[1]) if scores[n, p, c] > choice.least_score]
            better.sort(key=lambda p, c=c: -scores[n, p, c])
            kept, limit = [], choice.overlap
            for p in better if choice.top_k < 0 else better[: choice.top_k]:
                if all(overlap(own[p], own[k]) <= limit for k in kept):
                    kept.append(p)
                    limit *= choice.eta if choice.eta < 1 and limit > 0.5 else 1
            chosen += [[n, c, scores[n, p, c], *own[p]] for p in kept]
        if 0 <= choice.most < len(chosen):
            best = sorted(range(len(chosen)), key=lambda k: -chosen[k][2])[: choice.most]
            chosen = [chosen[k] for k in sorted(best)]
        rows += chosen
    return np.array(rows).reshape(-1, 7)


def found_in(scores, predictions, prior, choice):
    return detections(scores, predictions, prior[:1], prior[1], CODE, False, choice)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "different",
    [
        {},
        {"most": -1},
        {"most": 0},
        {"most": 1, "top_k": -1},
        {"top_k": 0},
        {"top_k": 1},
        {"background": -1, "least_score": -np.inf},
        {"background": 2, "least_score": 0.9},
        {"least_score": 1.0},
        {"overlap": 0.8, "eta": 0.9, "most": -1},
        {"overlap": 0.0},
    ],
    ids=str,
)
def test_detections_are_those_of_plain_python(different, dtype):
    choice = Choice(**{**USUAL, **different})
    for seed, locations in ((1, 1), (2, 4)):
        inputs = problem(seed, dtype, locations=locations)
        found = found_in(*inputs, choice)
        expected = plain(*inputs, choice)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found[:, :2], expected[:, :2])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_detections_of_several_blocks_of_priors():
    inputs = problem(3, np.float64, count=2 * PRIORS_PER_BLOCK + 7, classes=2, images=3)
    choice = Choice(**{**USUAL, "most": 90})
    found, expected = found_in(*inputs, choice), plain(*inputs, choice)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_no_images_have_no_detections():
    scores, predictions, prior = problem(1, np.float32)
    found = found_in(scores[:0], predictions[:0], prior, Choice(**USUAL))
    assert found.shape == (0, 7)


@pytest.mark.parametrize("where", ["score", "box"])
def test_what_is_not_a_number_is_found(where):
    scores, predictions, prior = problem(4, np.float32)
    if where == "score":
        scores[1, 30, 2] = np.nan
    else:
        scores[1, 30, 2] = 1
        predictions[1, 30, 0, 3] = np.nan
    with pytest.raises(NotANumber) as raised:
        found_in(scores, predictions, prior, Choice(**USUAL))
    image, label, number = raised.value.place
    assert (image, number) == (1, 30)
    assert label == 2 or where == "box"


def plain_verdicts(found, boxes, least, difficult_too):
    """Return (row of found, verdict) in the order of `verdicts`."""
    result, taken = [], set()
    for image, label in sorted({(row[0], row[1]) for row in found.tolist()}):
        rows = [i for i in range(len(found)) if tuple(found[i, :2]) == (image, label)]
        own = [k for k in range(len(boxes)) if tuple(boxes[k, :2]) == (image, label)]
        if own:
            rows.sort(key=lambda i: -found[i, 2])
        for i in rows:
            shares = [overlap(found[i, 3:7], boxes[k, 3:7]) for k in own]
            best = int(np.argmax(shares)) if own else -1
            if not own or shares[best] < least:
                result.append((i, WRONG))
            elif boxes[own[best], 7] and not difficult_too:
                result.append((i, NOT_DECIDED))
            else:
                result.append((i, WRONG if own[best] in taken else RIGHT))
                taken.add(own[best])
    return result


@pytest.mark.parametrize("difficult_too", [True, False])
@pytest.mark.parametrize("counts", [(40, 15), (0, 15), (40, 0), (0, 0), (1, 1)], ids=str)
def test_verdicts_are_those_of_plain_python(counts, difficult_too):
    rng = np.random.default_rng(8)
    boxes = np.zeros((counts[1], 8))
    boxes[:, 0], boxes[:, 1] = rng.integers(0, 3, counts[1]), rng.integers(1, 4, counts[1])
    boxes[:, 3:5] = rng.uniform(0, 0.5, (counts[1], 2))
    boxes[:, 5:7] = boxes[:, 3:5] + rng.uniform(0.1, 0.5, (counts[1], 2))
    boxes[:, 7] = rng.random(counts[1]) < 0.3
    found = np.zeros((counts[0], 7))
    found[:, 0], found[:, 1] = rng.integers(0, 4, counts[0]), rng.integers(1, 4, counts[0])
    found[:, 2] = rng.integers(0, 9, counts[0]) / 8
    found[:, 3:5] = rng.uniform(0, 0.5, (counts[0], 2))
    found[:, 5:7] = found[:, 3:5] + rng.uniform(0.1, 0.5, (counts[0], 2))
    if counts[1]:
        near = boxes[rng.integers(0, counts[1], counts[0] // 2)]
        found[: len(near), :2], found[: len(near), 3:7] = near[:, :2], near[:, 3:7] + 0.01
    order, decided = verdicts(found, boxes, 0.5, difficult_too)
    expected = plain_verdicts(found, boxes, 0.5, difficult_too)
    assert list(zip(order.tolist(), decided.tolist())) == expected
    if counts == (40, 15):
        assert {RIGHT, WRONG} <= set(decided.tolist())
