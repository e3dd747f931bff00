"""Average precision: values worked out by hand, and a plain version of the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.solvers.average_precision import VERSIONS, average_precision

# By falling score: right, wrong, right, right, wrong; of four boxes one is missed.  Recall is
# 1/4, 1/4, 2/4, 3/4, 3/4 and precision 1, 1/2, 2/3, 3/4, 3/5.
SCORES, HITS, BOXES = [0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0], 4
BY_HAND = {
    # Best precision at a recall of at least 0, .1, .2: 1; of .3 to .7: 3/4; of .8 to 1: none.
    "11point": (3 * 1 + 5 * 0.75) / 11,
    # Made to fall only, precision is 1, 3/4, 3/4, 3/4, 3/5.
    "MaxIntegral": 0.25 * 1 + 0.25 * 0.75 + 0.25 * 0.75,
    "Integral": 0.25 * 1 + 0.25 * 2 / 3 + 0.25 * 0.75,
}


def measured(scores, hits, boxes, version):
    return average_precision(np.array(scores, np.float32), np.array(hits), boxes, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_value_worked_out_by_hand(version):
    assert measured(SCORES, HITS, BOXES, version) == pytest.approx(BY_HAND[version])
    back = slice(None, None, -1)
    assert measured(SCORES[back], HITS[back], BOXES, version) == pytest.approx(BY_HAND[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_extremes(version):
    assert measured([0.9, 0.8], [1, 1], 2, version) == pytest.approx(1)
    assert measured([0.9, 0.8], [0, 0], 2, version) == 0
    assert measured([], [], 2, version) == 0
    assert measured([0.5], [0], 0, version) == 0


def test_of_equal_scores_the_first_counts_first():
    assert measured([1, 1], [1, 0], 1, "Integral") == 1
    assert measured([1, 1], [0, 1], 1, "Integral") == 0.5


def test_seven_of_ten_boxes_are_less_than_seven_tenths_as_in_the_fork():
    found = measured(np.arange(7, 0, -1), [1] * 7, 10, "11point")
    assert found == pytest.approx(7 / 11)


def plain(scores, hits, boxes, version):
    """The definitions, one detection at a time, as the fork's loops have them."""
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
    recall, precision, right = [], [], 0
    for count, i in enumerate(ranked, 1):
        right += hits[i]
        recall.append(right / boxes)
        precision.append(right / count)
    if version == "11point":
        total = 0.0
        for tenth in range(11):
            reached = [p for r, p in zip(recall, precision) if np.float32(r) >= tenth / 10]
            total += max(reached, default=0)
        return total / 11
    if version == "Integral":
        return sum(p * (r - b) for p, r, b in zip(precision, recall, [0, *recall]))
    total, height, right_end = 0.0, precision[-1], recall[-1]
    for r, p in zip(recall[-2::-1], precision[-2::-1]):
        height = max(height, p)
        total += height * (right_end - r)
        right_end = r
    return total + right_end * height


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_detections_agree_with_a_plain_version(version, seed):
    rng = np.random.default_rng(seed)
    for count in (1, 7, 200):
        # Some scores are equal.
        scores = rng.integers(0, 2 * count, count) / 7
        hits = (rng.random(count) < 0.6).astype(int)
        boxes = int(hits.sum() + rng.integers(1, 5))
        expected = plain(scores.tolist(), hits.tolist(), boxes, version)
        assert measured(scores, hits, boxes, version) == pytest.approx(expected, abs=1e-9)
