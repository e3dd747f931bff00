"""Caffe's losses and measures of quality."""

import torch
from torch import nn
from torch.nn import functional as F


def softmax_loss(x, labels, axis, mode, ignore=None, fixed=1.0, weights=None):
    """Return -log of the labels' softmax; ``mode`` says what the sum is divided by."""
    losses, counted = label_losses(x, labels, axis, ignore, weights)
    return losses.sum() / divisor(mode, len(losses), losses.numel(), counted.sum(), fixed)


def label_losses(x, labels, axis, ignore=None, weights=None):
    """Return -log of each label's softmax (n, m), 0 where it is ignored, and where it is not."""
    scores = x.reshape(x.shape[:axis].numel(), x.shape[axis], -1)
    labels = labels.reshape(len(scores), -1).long()
    skipped = -100 if ignore is None else ignore
    losses = F.nll_loss(
        scores.log_softmax(1), labels, weights, ignore_index=skipped, reduction="none"
    )
    return losses, labels != skipped


def divisor(mode, samples, labels, valid, fixed):
    """Return what a sum of losses is divided by."""
    if mode == "VALID":
        return valid.clamp(min=1)
    return max(1, {"FULL": labels, "BATCH_SIZE": samples, "PRE_FIXED": fixed}.get(mode, 1))


def sigmoid_loss(x, target, mode, ignore=None, fixed=1.0):
    """Return the cross entropy of sigmoids."""
    samples, x, target = len(x), x.flatten(), target.flatten()
    losses = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    valid = target.isfinite() if ignore is None else target.trunc() != ignore
    total = torch.where(valid, losses, 0).sum()
    return total / divisor(mode, samples, x.numel(), valid.sum(), fixed)


def euclidean_loss(a, b):
    """Return half the squared differences of a sample."""
    return (a.flatten() - b.flatten()).square().sum() / (2 * len(a))


def l1_loss(a, b):
    """Return the absolute differences of a sample."""
    return (a.flatten() - b.flatten()).abs().sum() / len(a)


def hinge_loss(x, labels, squared):
    """Return the margins that a sample's scores miss, or their squares."""
    scores, labels = x.flatten(1), labels.flatten().long()
    signs = 1 - 2 * F.one_hot(labels, scores.shape[1])
    margins = (1 + signs * scores).clamp(min=0)
    return (margins.square() if squared else margins).sum() / len(x)


def multinomial_loss(x, labels):
    """Return -log of the labels' probabilities."""
    own = x.flatten(1).gather(1, labels.flatten().long()[:, None])
    return -own.clamp(min=1e-20).log().sum() / len(x)


def infogain_loss(x, labels, gain, axis):
    """Return -log of all softmax values, weighted by the labels' rows of a matrix."""
    classes = x.shape[axis]
    scores = x.reshape(x.shape[:axis].numel(), classes, -1)
    rows = gain.reshape(classes, classes)[labels.reshape(len(scores), -1).long()].transpose(1, 2)
    logs = scores.softmax(1).clamp(min=1e-20).log()
    return -(logs * rows).sum() / max(1, rows.shape[0] * rows.shape[2])


def contrastive_loss(a, b, similar, margin, legacy):
    """Return squared distances of similar pairs, and what others miss of a margin."""
    squares = (a.flatten(1) - b.flatten(1)).square().sum(1)
    # A square root has no slope at 0, where Caffe's gradient is 0.
    distance = torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)
    apart = (margin - squares).clamp(min=0) if legacy else (margin - distance).clamp(min=0) ** 2
    return torch.where(similar.flatten().trunc() != 0, squares, apart).sum() / (2 * len(a))


def smooth_l1_loss(a, b, inside=None, outside=None, sigma=1.0):
    """Return `smooth_l1`, weighted and summed, of a sample."""
    losses = smooth_l1(a, b, inside, sigma)
    return (losses if outside is None else losses * outside).sum() / len(a)


def smooth_l1(a, b, inside=None, sigma=1.0):
    """Return squares of small differences and magnitudes of others."""
    difference = a - b if inside is None else (a - b) * inside
    size = difference.abs()
    small = size < 1 / sigma**2
    return torch.where(small, 0.5 * (sigma * difference) ** 2, size - 0.5 / sigma**2)


def smooth_l1_losses(a, b, inside=None, mode="FULL", fixed=1.0):
    """Return the loss, and its sums over channels at each place."""
    losses = smooth_l1(a, b, inside)
    places = losses.sum(1, keepdim=True)
    places = places.reshape(*places.shape, *(1,) * (4 - places.dim()))
    return losses.sum() / divisor(mode, len(a), places.numel(), None, fixed), places.detach()


def hardest(boxes, losses, labels, weights, count, ignore):
    """Return the labels and weights of the ``count`` boxes of largest loss in each image.

    The others get the label ``ignore`` and weights of 0.
    """
    images, losses = boxes.reshape(-1, 5)[:, 0].contiguous(), losses.flatten()
    order = losses.argsort(descending=True, stable=True)
    order = order[images[order].argsort(stable=True)]
    images = images[order]
    places = torch.arange(len(order)).to(order) - torch.searchsorted(images, images)
    chosen = torch.zeros_like(order, dtype=torch.bool)
    chosen[order] = places < count
    labels, weights = (each.clone() for each in (labels, weights))
    labels[~chosen], weights[~chosen] = ignore, 0
    return labels, weights


class CenterLoss(nn.Module):
    """Half the squared distances to the labels' centres, of a sample."""

    def __init__(self, classes, features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, features))

    def forward(self, x, labels):
        return Distances.apply(x.flatten(1), self.weight, labels.flatten().long())


class Distances(torch.autograd.Function):
    """The value of `CenterLoss`; the centres' gradient is Caffe's, whatever the loss's weight."""

    @staticmethod
    def forward(ctx, x, centers, labels):
        difference = x - centers[labels]
        ctx.save_for_backward(difference, centers, labels)
        return difference.square().sum() / (2 * len(x))

    @staticmethod
    def backward(ctx, slope):
        difference, centers, labels = ctx.saved_tensors
        counts = 1 + labels.bincount(minlength=len(centers))
        moves = -difference / counts[labels, None]
        move = torch.zeros_like(centers).index_add(0, labels, moves)
        return slope * difference / len(difference), move, None


def accuracy_of(x, labels, axis, top_k, ignore=None):
    """Return the share of labels whose scores are among the best; classes of equal scores are."""
    outer = x.shape[:axis].numel()
    scores, labels = x.reshape(outer, x.shape[axis], -1), labels.reshape(outer, 1, -1).long()
    counted = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
    own = scores.gather(1, torch.where(counted, labels, 0))
    right = ((scores >= own).sum(1, keepdim=True) <= top_k) & counted
    return right.sum().to(x) / counted.sum().clamp(min=1)
