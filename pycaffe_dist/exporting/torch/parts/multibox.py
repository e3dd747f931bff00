"""The loss of SSD's boxes and classes."""

import torch
from torch import nn
from torch.nn import functional as F

from pycaffe_dist.exporting.torch.parts.detecting import decode_boxes, overlaps_of
from pycaffe_dist.exporting.torch.parts.losses import divisor


class MultiBoxLoss(nn.Module):
    """The loss of predicted boxes and of their classes, for the priors that fit a label.

    ``mining`` says which other priors count: "NONE" all, "MAX_NEGATIVE" for each match ``ratio``
    that overlap labels by less than ``least``, "HARD_EXAMPLE" any ``sample`` of an image.
    """

    def __init__(
        self,
        classes,
        background=0,
        code="CORNER",
        mode="VALID",
        mining="MAX_NEGATIVE",
        box_weight=1.0,
        class_weight=1.0,
        threshold=0.5,
        ratio=3.0,
        least=0.5,
        sample=64,
        encoded=False,
        squares=False,
        logistic=False,
        by_prediction=False,
        bipartite=False,
        only_inside=False,
        corners_inside=False,
        skip_difficult=False,
        agnostic=False,
    ):
        super().__init__()
        self.classes, self.background, self.code, self.mode = classes, background, code, mode
        self.weights = box_weight, class_weight
        self.threshold, self.mining = threshold, mining
        self.ratio, self.least, self.sample = ratio, least, sample
        self.encoded, self.squares, self.logistic = encoded, squares, logistic
        self.by_prediction, self.bipartite = by_prediction, bipartite
        self.only_inside, self.corners_inside = only_inside, corners_inside
        self.skip_difficult, self.agnostic = skip_difficult, agnostic

    def forward(self, location, scores, priors, labels):
        boxes, variances = priors.detach().reshape(2, -1, 4)
        images, count = len(location), len(boxes)
        location = location.reshape(images, count, 4)
        scores = scores.reshape(images, count, self.classes)
        coding = boxes, self.code, None if self.encoded else variances
        predicted = boxes.expand(images, -1, -1)
        if self.by_prediction:
            predicted = decode_boxes(location.detach(), *coding)
        matches, overlaps, targets, kinds = self.matched(predicted, labels.detach().reshape(-1, 8))
        difference = location - encode_boxes(targets, *coding)
        if self.encoded:
            # The fork's gradient lacks the factor 1 / variance.
            difference = location + (difference / variances - location).detach()
        if self.corners_inside:
            difference = difference * ((predicted >= 0) & (predicted <= 1))
        size = difference.abs()
        small = self.squares | (size < 1)
        box_losses = torch.where(small, 0.5 * difference**2, size - 0.5).sum(2) * (matches >= 0)
        class_losses = self.class_losses(scores, kinds, matches)
        counted = torch.ones_like(matches, dtype=torch.bool)
        if self.mining != "NONE":
            losses = (class_losses + box_losses).detach().clamp(min=0)
            counted, matches = self.mined(losses, matches, overlaps, labels.reshape(-1, 8))
            box_losses = box_losses * (matches >= 0)
        sums = box_losses.sum(), torch.where(counted, class_losses, 0).sum()
        total = sum(weight * each for weight, each in zip(self.weights, sums))
        return total / divisor(self.mode, images, images * count, (matches >= 0).sum(), 1.0)

    def rows(self, labels, image):
        """Return the rows of an image that count."""
        own = (labels[:, 0] > -1) & (labels[:, 0].long() == image)
        return labels[own & (labels[:, 7].trunc() == 0)] if self.skip_difficult else labels[own]

    def matched(self, predicted, labels):
        """Return each prior's row or a negative number, its overlap, its box, and its class."""
        found = []
        for image, boxes in enumerate(predicted):
            rows = self.rows(labels, image)
            own = match(boxes, rows[:, 3:7], self.bipartite, self.threshold, self.only_inside)
            target, kind = boxes.clone(), torch.full_like(own[0], self.background)
            fits = own[0] >= 0
            target[fits] = rows[own[0][fits], 3:7]
            classes = rows[own[0][fits], 1].long()
            kind[fits] = self.background + 1 if self.agnostic else classes
            found.append((*own, target, kind))
        return [torch.stack(each) for each in zip(*found)]

    def class_losses(self, scores, kinds, matches):
        """Return the loss (N, P) of each prior's class."""
        if not self.logistic:
            return -scores.log_softmax(2).gather(2, kinds[..., None])[..., 0]
        goals = (kinds[..., None] == torch.arange(self.classes).to(kinds)).to(scores)
        if self.mining == "NONE":
            # As in the fork, the targets of all images but the first are misplaced.
            flat = torch.full_like(goals, self.background).flatten()
            image, prior = (matches >= 0).nonzero(as_tuple=True)
            flat[image * matches.shape[1] + prior * self.classes + kinds[image, prior]] = 1
            goals = flat.reshape(goals.shape)
        return F.binary_cross_entropy_with_logits(scores, goals, reduction="none").sum(2)

    def mined(self, losses, matches, overlaps, labels):
        """Return which priors count, matched ones and others with large losses, and the matches."""
        counted, matches = torch.zeros_like(matches, dtype=torch.bool), matches.clone()
        hard = self.mining == "HARD_EXAMPLE"
        for image, own in enumerate(matches):
            if not len(self.rows(labels, image)):
                continue
            fits = own >= 0
            free = fits | ~fits if hard else (own == -1) & (overlaps[image] < self.least)
            places = free.nonzero()[:, 0]
            number = self.sample if hard else int(fits.sum().float() * self.ratio)
            order = losses[image, places].argsort(descending=True, stable=True)
            chosen = torch.zeros_like(fits)
            chosen[places[order[:number]]] = True
            if hard:
                own[fits & ~chosen] = -1
            counted[image] = (own >= 0) | (chosen & ~fits & (own != -2))
        return counted, matches


def match(boxes, labels, bipartite, threshold, only_inside):
    """Return each box's label, -1 for none, -2 if it must not have one, and its largest overlap.

    The best pair of a free box and a free label is matched, again and again.
    """
    found = torch.full((len(boxes),), -1, device=boxes.device)
    if only_inside:
        found[((boxes < 0) | (boxes > 1)).any(1)] = -2
    if not len(labels):
        return found, boxes.new_zeros(len(boxes))
    shares = overlaps_of(labels, boxes)
    shares = torch.where((shares > 1e-6) & (found == -1), shares, 0)
    most, nearest = shares.max(0)
    for _ in range(len(labels)):
        label, box = divmod(int(shares.argmax()), len(boxes))
        if not shares[label, box] > 0:
            break
        found[box] = label
        shares[label], shares[:, box] = 0, 0
    if not bipartite:
        take = (found == -1) & (most > 0) & (most >= threshold)
        found = torch.where(take, nearest, found)
    return found, most


def encode_boxes(boxes, priors, code, variances):
    """Return the numbers that `decode_boxes` turns into ``boxes`` (…, P, 4)."""
    low, high = priors[:, :2], priors[:, 2:]
    size = high - low
    if code == "CENTER_SIZE":
        shift = (boxes[..., :2] + boxes[..., 2:] - low - high) * 0.5 / size
        growth = ((boxes[..., 2:] - boxes[..., :2]) / size).log()
        numbers = torch.cat([shift, growth], -1)
    else:
        numbers = boxes - priors
        if code == "CORNER_SIZE":
            numbers = numbers / torch.cat([size, size], -1)
    return numbers if variances is None else numbers / variances
