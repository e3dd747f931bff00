"""MultiBoxLoss against a plain Python version of its rules, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

IMAGES, CLASSES = 3, 4
BOTTOMS = ("loc", "conf", "prior", "label")


def build(options="", num_classes=CLASSES, more="", **values):
    bottoms = " ".join(f'bottom: "{name}"' for name in (*BOTTOMS, *list(values)[4:]))
    number = f"num_classes: {num_classes} " if num_classes else ""
    text = f'type: "MultiBoxLoss" {bottoms} top: "y" {more}'
    return LayerHarness(f"{text} multibox_loss_param {{ {number}{options} }}", values)


def random_values(seed, images=IMAGES, priors=40, classes=CLASSES, own=1):
    """Return random bottoms: rows in any order, some empty or difficult, an image without boxes."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-0.1, 0.7, (priors, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.15, 0.5, (priors, 2))], 1)
    rows = []
    for n in range(images - 1):
        for _ in range(rng.integers(1, 6)):
            x, y = rng.uniform(0, 0.6, 2)
            w, h = rng.uniform(0.15, 0.4, 2)
            rows.append((n, rng.integers(1, classes), 0, x, y, x + w, y + h, rng.random() < 0.3))
    rows.append((-1,) * 8)
    rng.shuffle(rows)
    # Two equal labels: of equal overlaps the first counts.
    rows.append(rows[0])
    return {
        "loc": rng.standard_normal((images, priors * 4 * own)),
        "conf": rng.standard_normal((images, priors * classes)),
        "prior": np.stack([boxes.ravel(), rng.uniform(0.1, 0.3, 4 * priors)])[None],
        "label": np.array(rows, float)[None, None],
    }


def first_stage(seed, priors=40):
    """Return what a first stage says: probabilities, and offsets."""
    rng = np.random.default_rng(seed)
    return {
        "chances": rng.uniform(0, 1, (IMAGES, priors * 2)),
        "moves": rng.normal(0, 1.2, (IMAGES, priors * 4)),
    }


def area(box):
    return max(0, box[2] - box[0]) * max(0, box[3] - box[1])


def overlap(a, b):
    shared = area([*np.maximum(a[:2], b[:2]), *np.minimum(a[2:], b[2:])])
    return shared / (area(a) + area(b) - shared) if shared else 0.0


def decoded(prior, variance, numbers):
    """The box that numbers mean with CENTER_SIZE."""
    size, shift = prior[2:] - prior[:2], numbers * variance
    center = (prior[:2] + prior[2:]) / 2 + shift[:2] * size
    half = size * np.exp(shift[2:]) / 2
    return np.concatenate([center - half, center + half])


def encoded(prior, variance, box):
    size = prior[2:] - prior[:2]
    shift = ((box[:2] + box[2:]) - (prior[:2] + prior[2:])) / 2 / size
    return np.concatenate([shift, np.log((box[2:] - box[:2]) / size)]) / variance


def match(boxes, labels, threshold, inside):
    """Return what label each box has (or None, or "out"), and its largest overlap."""
    found, best = [None] * len(boxes), [0.0] * len(boxes)
    pairs = []
    for p, box in enumerate(boxes):
        if inside and (box.min() < 0 or box.max() > 1):
            found[p] = "out"
            continue
        overlaps = [(overlap(box, row[3:7]), -k) for k, row in enumerate(labels)]
        pairs += [(-value, p, -k) for value, k in overlaps if value > 1e-6]
        if overlaps:
            best[p], nearest = max(overlaps)
            if threshold is not None and best[p] >= threshold:
                found[p] = ("near", -nearest)
    taken = set()
    final = [None if isinstance(each, tuple) else each for each in found]
    for _, p, k in sorted(pairs):
        if final[p] is None and k not in taken:
            final[p] = k
            taken.add(k)
    for p, each in enumerate(found):
        if final[p] is None and isinstance(each, tuple):
            final[p] = each[1]
    return final, best


def class_loss(scores, label, logistic):
    if logistic:
        target = np.arange(len(scores)) == label
        return float(np.sum(np.logaddexp(0, scores) - scores * target))
    return float(np.log(np.sum(np.exp(scores - scores.max()))) + scores.max() - scores[label])


def chosen_apart(order, boxes, threshold, top_k):
    kept = []
    for p in order if top_k < 0 else order[:top_k]:
        if area(boxes[p]) >= 1e-5 and all(overlap(boxes[p], boxes[q]) <= threshold for q in kept):
            kept.append(p)
    return kept


class Plain:
    """MultiBoxLoss with CENTER_SIZE and a shared location, one image and prior after the other."""

    def __init__(self, values, **options):
        self.threshold = options.get("threshold", 0.5)
        self.logistic, self.hard = options.get("logistic", False), options.get("hard", 0)
        self.ratio, self.least = options.get("ratio", 3), options.get("neg_overlap", 0.5)
        self.nms = options.get("nms")
        self.by_prediction = options.get("by_prediction", False)
        self.inside, self.difficult = options.get("inside", False), options.get("difficult", True)
        self.agnostic, self.border = options.get("agnostic", False), options.get("border", False)
        self.priors, self.variances = values["prior"].reshape(2, -1, 4)
        count = len(self.priors)
        self.loc = values["loc"].reshape(-1, count, 4)
        self.conf = values["conf"].reshape(len(self.loc), count, -1)
        self.rows = values["label"].reshape(-1, 8)
        self.origins, self.allowed = [self.priors] * len(self.loc), np.ones((len(self.loc), count))
        if "chances" in values:
            self.allowed = values["chances"].reshape(-1, count, 2)[:, :, 1] >= options["least"]
        if "moves" in values:
            moves = values["moves"].reshape(-1, count, 4)
            self.origins = [self.moved(each) for each in moves]

    def loss(self):
        parts = [self.image(n) for n in range(len(self.loc))]
        return sum(loss for loss, _ in parts) / max(1, sum(count for _, count in parts))

    def moved(self, numbers):
        return np.array([decoded(*each) for each in zip(self.priors, self.variances, numbers)])

    def location(self, n, p, row, origins):
        goal = encoded(origins[p], self.variances[p], row[3:7])
        place = origins[p]
        if self.by_prediction:
            place = decoded(origins[p], self.variances[p], self.loc[n, p])
        keep = (place >= 0) & (place <= 1) if self.border else np.ones(4)
        size = np.abs(self.loc[n, p] - goal) * keep
        return float(np.sum(np.where(size < 1, size * size / 2, size - 0.5)))

    def image(self, n):
        """Return the loss of an image, and its matches."""
        labels = [r for r in self.rows if r[0] == n and (self.difficult or not r[7])]
        self.predicted = self.moved(self.loc[n])
        boxes = self.predicted if self.by_prediction else self.origins[n]
        if not labels:
            return 0.0, 0
        found, best = match(boxes, labels, self.threshold, self.inside)
        matched = [isinstance(each, int) for each in found]
        kinds = [
            (1 if self.agnostic else int(labels[k][1])) if is_matched else 0
            for k, is_matched in zip(found, matched)
        ]
        scores = [class_loss(*each, self.logistic) for each in zip(self.conf[n], kinds)]
        first, places = (
            [
                self.location(n, p, labels[found[p]], origins) if matched[p] else 0.0
                for p in range(len(boxes))
            ]
            for origins in (self.priors, self.origins[n])
        )
        chosen = self.mined(found, best, matched, np.add(scores, first), self.allowed[n])
        counted = [p for p, is_matched in enumerate(matched) if is_matched]
        if self.hard:
            counted = [p for p in counted if p in chosen]
        negatives = [p for p in chosen if found[p] is None]
        loss = sum(scores[p] + places[p] for p in counted) + sum(scores[p] for p in negatives)
        return loss, len(counted)

    def mined(self, found, best, matched, losses, allowed):
        fits = [
            p
            for p in np.flatnonzero(allowed)
            if self.hard or (found[p] is None and best[p] < self.least)
        ]
        number = self.hard or int(sum(matched) * self.ratio)
        order = sorted(fits, key=lambda p: -losses[p])
        if self.nms:
            order = chosen_apart(order, self.predicted, *self.nms)
        return set(order[:number])


OPTIONS = {
    "": {},
    "overlap_threshold: 0.3 neg_pos_ratio: 1.7": {"threshold": 0.3, "ratio": 1.7},
    "match_type: BIPARTITE neg_overlap: 0.2": {"threshold": None, "neg_overlap": 0.2},
    "use_prior_for_matching: false": {"by_prediction": True},
    "use_prior_for_matching: false bp_inside: true": {"by_prediction": True, "border": True},
    "bp_inside: true": {"border": True},
    "ignore_cross_boundary_bbox: true overlap_threshold: 0.2": {"inside": True, "threshold": 0.2},
    "use_difficult_gt: false": {"difficult": False},
    "conf_loss_type: LOGISTIC": {"logistic": True},
    "mining_type: HARD_EXAMPLE sample_size: 9": {"hard": 9},
    "mining_type: HARD_EXAMPLE sample_size: 9 ignore_cross_boundary_bbox: true": {
        "hard": 9,
        "inside": True,
    },
    "mining_type: HARD_EXAMPLE sample_size: 8 nms_param { nms_threshold: 0.3 top_k: 25 }": {
        "hard": 8,
        "nms": (0.3, 25),
    },
    "nms_param { nms_threshold: 0.2 top_k: -1 }": {"nms": (0.2, -1)},
    "nms_param { nms_threshold: 0.2 }": {"nms": (0.2, 0)},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("text", "options"), OPTIONS.items(), ids=list(OPTIONS))
def test_loss_is_that_of_the_plain_rules(text, options, seed):
    values = random_values(seed)
    harness = build(f"code_type: CENTER_SIZE {text}", **values)
    assert harness.forward()[0] == pytest.approx(Plain(values, **options).loss(), rel=1e-5)


STAGED = {
    "": {},
    "neg_pos_ratio: 20 neg_overlap: 0.3": {"ratio": 20, "neg_overlap": 0.3},
    "bp_inside: true ignore_cross_boundary_bbox: true": {"border": True, "inside": True},
    "use_prior_for_matching: false bp_inside: true": {"by_prediction": True, "border": True},
    "mining_type: HARD_EXAMPLE sample_size: 9": {"hard": 9},
}


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(("text", "options"), STAGED.items(), ids=list(STAGED))
def test_loss_of_a_second_stage_is_that_of_the_plain_rules(text, options, offsets):
    values = random_values(3)
    stage = first_stage(4)
    values.update(stage if offsets else {"chances": stage["chances"]})
    harness = build(f"code_type: CENTER_SIZE objectness_score: 0.6 {text}", **values)
    expected = Plain(values, least=np.float32(0.6), **options).loss()
    assert harness.forward()[0] == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(Plain(random_values(3), **options).loss(), rel=1e-3)


def test_two_classes_of_a_first_stage_are_nothing_and_something():
    values = random_values(5)
    values["conf"] = values["conf"][:, : 40 * 2]
    assert values["label"][..., 1].max() > 1
    found = build("code_type: CENTER_SIZE objectness_score: 0.01", 2, **values).forward()[0]
    assert found == pytest.approx(Plain(values, agnostic=True).loss(), rel=1e-5)
    with pytest.raises(LayerError, match="none of 0 to 1"):
        build("code_type: CENTER_SIZE", 2, **values).forward()


def test_a_first_stage_gets_no_gradient_from_the_second():
    harness = build(**random_values(3), **first_stage(4))
    harness.forward()
    for blob in harness.bottom[4:]:
        blob.diff.fill(7)
    harness.backward([True, True, False, False, True, True])
    assert not any(blob.diff.any() for blob in harness.bottom[4:])


def test_agnostic_classes():
    values = random_values(5)
    values["conf"] = values["conf"][:, : 40 * 2]
    options = "code_type: CENTER_SIZE map_object_to_agnostic: true"
    found = build(options, 2, **values).forward()[0]
    assert found == pytest.approx(Plain(values, agnostic=True).loss(), rel=1e-5)


def test_every_class_matches_its_own_predictions():
    """A class's predictions that are its labels exactly leave no location loss."""
    values = random_values(6, own=CLASSES)
    options = (
        "code_type: CORNER share_location: false mining_type: NONE use_prior_for_matching: false "
        "match_type: BIPARTITE"
    )
    priors, variances = values["prior"].reshape(2, -1, 4)
    numbers = values["loc"].reshape(IMAGES, -1, CLASSES, 4)
    numbers[...] = 100
    label = values["label"][:, :, :-1]
    for p, row in enumerate(label.reshape(-1, 8)):
        if row[0] >= 0:
            numbers[int(row[0]), p, int(row[1])] = (row[3:7] - priors[p]) / variances[p]
    values.update(label=label, conf=np.zeros_like(values["conf"]))
    harness = build(options, more="loss_param { normalization: NONE }", **values)
    assert harness.forward()[0] == pytest.approx(math.log(CLASSES) * IMAGES * 40)
    harness.backward([True, True, False, False])
    assert not harness.bottom[0].diff.any()
    gradient = harness.bottom[1].diff.reshape(IMAGES, 40, CLASSES)
    for p, row in enumerate(label.reshape(-1, 8)):
        if row[0] >= 0:
            assert gradient[int(row[0]), p, int(row[1])] == pytest.approx(1 / CLASSES - 1)


def test_logistic_targets_without_mining_are_misplaced_as_in_the_fork():
    values = random_values(7, images=2, priors=8)
    # The only label is in image 1, and prior 5 is its box.
    values["label"] = np.array([[1, 2, 0, *values["prior"][0, 0, 20:24], 0]])[None, None]
    values["conf"][:] = 0
    options = "conf_loss_type: LOGISTIC mining_type: NONE match_type: BIPARTITE"
    harness = build(options, more="loss_param { normalization: NONE }", **values)
    harness.forward()
    harness.backward([True, True, False, False])
    gradient = harness.bottom[1].diff.reshape(-1)
    # Image 1 begins at 8·4; the fork begins at 8.
    assert np.flatnonzero(gradient < 0).tolist() == [8 + 5 * CLASSES + 2]
    np.testing.assert_allclose(np.abs(gradient), 0.5)


@pytest.mark.parametrize(
    ("old", "new"),
    [("do_neg_mining: false", "mining_type: NONE"), ("do_neg_mining: true", "")],
)
def test_the_old_form_of_mining(old, new):
    values = random_values(8)
    assert build(old, **values).forward() == build(new, **values).forward()


@pytest.mark.parametrize(
    ("mode", "divisor"), [("FULL", IMAGES * 40), ("BATCH_SIZE", IMAGES), ("NONE", 1)]
)
def test_normalization(mode, divisor):
    values = random_values(9)
    found = build(more=f"loss_param {{ normalization: {mode} }}", **values)
    total = build(more="loss_param { normalization: NONE }", **values).forward()[0]
    assert found.forward()[0] * divisor == pytest.approx(total)


def test_nan_scores_reach_the_loss():
    values = random_values(10)
    values["conf"][0, 5] = math.nan
    assert math.isnan(build(**values).forward()[0])


def test_gradients_of_priors_and_labels_are_refused():
    harness = build(**random_values(11))
    harness.forward()
    for index in (2, 3):
        wanted = [number == index for number in range(4)]
        with pytest.raises(LayerError, match=f"cannot backpropagate to '{BOTTOMS[index]}'"):
            harness.backward(wanted)


@pytest.mark.parametrize(
    ("options", "classes", "message"),
    [
        ("", 0, "needs num_classes of at least 1, found 0"),
        ("share_location: false", CLASSES, "mining needs share_location: true; set mining_type"),
        ("background_label_id: 4", CLASSES, r"background_label_id 4 is none of the 4 classes"),
        ("map_object_to_agnostic: true", CLASSES, "needs num_classes: 2 .* found 4 with 0"),
        (
            "do_neg_mining: true mining_type: NONE",
            CLASSES,
            "do_neg_mining: true contradicts mining_type: NONE; leave do_neg_mining out",
        ),
        (
            "mining_type: HARD_EXAMPLE sample_size: 0",
            CLASSES,
            "needs sample_size of at least 1, found 0",
        ),
    ],
)
def test_wrong_options(options, classes, message):
    with pytest.raises(LayerError, match=message) as caught:
        build(options, classes, **random_values(0))
    assert "layer 'l' (MultiBoxLoss)" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("nms_param { nms_threshold: 0.3 }", "takes no nms_param with a first stage"),
        ("share_location: false mining_type: NONE", "share_location: true with the offsets of a"),
    ],
)
def test_wrong_options_with_a_first_stage(options, message):
    with pytest.raises(LayerError, match=message):
        build(options, **random_values(0, own=CLASSES), **first_stage(0))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("prior", (1, 160), r"priors of shape \(1, 2, 4·number\), found 'prior' \(1, 160\)"),
        ("prior", (1, 2, 158), r"priors of shape .* found 'prior' \(1, 2, 158\)"),
        ("label", (1, 1, 3, 7), r"labels of shape \(1, 1, boxes, 8\), found 'label'"),
        (
            "loc",
            (IMAGES, 156),
            r"needs 40·4 = 160 numbers of each image for the 40 priors of 'prior' \(1, 2, 160\), "
            r"found 'loc' \(3, 156\)",
        ),
        ("conf", (IMAGES, 120), r"needs 40·4 = 160 numbers .* found 'conf' \(3, 120\)"),
        ("conf", (IMAGES + 1, 160), "'loc' .* and 'conf' .* need the same first dimension"),
        ("chances", (IMAGES, 160), r"needs 40·2 = 80 numbers .* found 'chances' \(3, 160\)"),
        ("chances", (1, 80), "'loc' .* and 'chances' .* need the same first dimension"),
        ("moves", (IMAGES, 80), r"needs 40·4 = 160 numbers .* found 'moves' \(3, 80\)"),
    ],
)
def test_wrong_shapes(name, shape, message):
    values = {**random_values(0), **first_stage(0)}
    values[name] = np.zeros(shape)
    with pytest.raises(LayerError, match=message):
        build(**values)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, IMAGES, "row 1 of bottom 'label' .* is of image 3, found images 0 to 2"),
        (0, math.nan, "row 1 of bottom 'label' .* is of image nan"),
        (0, -2, "is of image -2, found images 0 to 2"),
        (1, CLASSES, "is of class 4, none of 0 to 3"),
        (1, -1, "is of class -1, none of 0 to 3"),
        (1, 0, "is of class 0, the background"),
        (4, math.nan, "has nan for ymin"),
        (5, math.inf, "has inf for xmax"),
    ],
)
def test_wrong_labels(column, value, message):
    values = random_values(0)
    values["label"] = np.array([[2, 1, 0, 0.1, 0.1, 0.5, 0.5, 0]] * 3)[None, None]
    values["label"][0, 0, 1:, column] = value
    with pytest.raises(LayerError, match=message):
        build(**values).forward()


@pytest.mark.parametrize(
    ("row", "place", "value", "options", "message"),
    [
        (0, 9, math.nan, "", "prior 2 of bottom 'prior' .* has ymin nan"),
        (0, 2, -9, "code_type: CENTER_SIZE use_prior_for_matching: false", "prior 0 .* xmax -9"),
        (1, 5, 0, "", "prior 1 of bottom 'prior' .* has the variance 0 for ymin"),
        (1, 5, math.nan, "", "prior 1 .* has the variance nan for ymin"),
    ],
)
def test_wrong_priors(row, place, value, options, message):
    values = random_values(0)
    values["prior"][0, row, place] = value
    with pytest.raises(LayerError, match=message):
        build(options, **values).forward()


def test_an_empty_prior_is_never_matched():
    values = random_values(12)
    values["prior"][0, 0, 2:4] = values["prior"][0, 0, :2]
    harness = build(**values)
    harness.forward()
    harness.backward([True, True, False, False])
    assert harness.bottom[0].diff.any()
    assert not harness.bottom[0].diff[:, :4].any()
