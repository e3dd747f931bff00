"""Margins at the label: of inner products, on the angle, and of scores."""

import torch
from torch import nn
from torch.nn import functional as F


def psi(factor, cosine):
    """Return psi of an angle times ``factor`` (2, 3 or 4), and its derivative by the cosine."""
    sign, square = cosine.sign(), cosine.square()
    if factor == 2:
        return 2 * sign * square - 1, 4 * sign * cosine
    if factor == 3:
        inner = (cosine.abs() - 0.5).sign()
        value = inner * cosine * (4 * square - 3) + sign * (1 + inner) - 2
        return value, inner * (12 * square - 3)
    inner = sign * (2 * square - 1).sign()
    value = inner * (8 * square * (square - 1) + 1) + 2 * sign + inner - 3
    return value, inner * 16 * cosine * (2 * square - 1)


class MarginProduct(nn.Module):
    """x·wᵀ, with (psi·|x||w| + lambda·x·w) / (1 + lambda) at the label.

    ``decay`` are base, gamma, power and least value of lambda, which falls with each pass from
    number ``passes`` on.  With ``unit`` each row of weights is first divided by its length.
    """

    def __init__(self, inputs, outputs, axis, factor, decay, passes, unit=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.axis, self.factor, self.decay = axis, factor, decay
        self.passes, self.unit = passes, unit

    def forward(self, x, labels):
        self.passes += 1
        base, gamma, power, least = self.decay
        share = max(base * (1 + gamma * self.passes) ** -power, least)
        if self.unit:
            with torch.no_grad():
                self.weight /= self.weight.norm(dim=1, keepdim=True).clamp(min=1e-12)
        labels = labels.flatten().long()
        rows = x.reshape(-1, self.weight.shape[1])
        if self.factor == 1:
            y = rows @ self.weight.T
        else:
            kind = UnitMargin if self.unit else Margin
            y = kind.apply(rows, self.weight, labels, self.factor, share)
        return y.reshape(*x.shape[: self.axis], -1), x.new_tensor([share])


class Margin(torch.autograd.Function):
    """The product with a margin, and its derivatives."""

    @staticmethod
    def forward(ctx, x, weight, labels, factor, share):
        own = weight[labels]
        lengths = x.norm(dim=1), own.norm(dim=1)
        y, product = x @ weight.T, lengths[0] * lengths[1]
        plain = y.gather(1, labels[:, None])[:, 0]
        value, slope = psi(factor, plain / product.clamp(min=1e-12))
        along = value - plain / product.clamp(min=1e-12) * slope
        y[torch.arange(len(y)), labels] = (product * value + share * plain) / (1 + share)
        ctx.save_for_backward(x, weight, labels, slope, along, *lengths)
        ctx.share = share
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, labels, slope, along, *lengths = ctx.saved_tensors
        of_x, of_w = (length.clamp(min=1e-12) for length in lengths)
        own, mixed = mix(dy, labels, slope, ctx.share)
        dx = mixed @ weight + (own * along * of_w / of_x)[:, None] * x
        rows = (own * along * of_x / of_w)[:, None] * weight[labels]
        return dx, (mixed.T @ x).index_add(0, labels, rows), None, None, None


class UnitMargin(Margin):
    """`Margin` with SphereFace's gradients.

    That of the features has psi's two factors, of w and x, scaled to length 1; that of the weights
    is the product's without a margin.
    """

    @staticmethod
    def backward(ctx, dy):
        x, weight, labels, slope, along, *lengths = ctx.saved_tensors
        along = along / lengths[0].clamp(min=1e-12)
        both = slope.hypot(along).clamp(min=1e-12)
        own, mixed = mix(dy, labels, slope / both, ctx.share)
        dx = mixed @ weight + (own * along / both)[:, None] * x
        return dx, dy.T @ x, None, None, None


def mix(dy, labels, slope, share):
    """Return the labels' elements of dy / (1 + lambda), and dy with the factors of w in these."""
    at = torch.arange(len(dy)), labels
    own, mixed = dy[at] / (1 + share), dy.clone()
    mixed[at] = own * (slope + share)
    return own, mixed


class LabelMargin(nn.Module):
    """Adds a bias to each label's score above -bias.

    With ``growth`` (gamma, power, the least and the largest bias), the bias grows with each pass
    from number ``passes`` on.
    """

    def __init__(self, bias, growth=None, passes=0):
        super().__init__()
        self.bias, self.growth, self.passes = bias, growth, passes

    def forward(self, x, labels):
        bias = self.bias
        if self.growth is not None:
            gamma, power, least, most = self.growth
            bias += (1 + gamma * self.passes) ** power - 1
            bias = min(max(bias, least), most)
            self.passes += 1
        raised = of_labels(x, labels) & (x > -bias)
        return torch.where(raised, x + bias, x), x.new_tensor([bias])


def of_labels(x, labels):
    """Return which scores (N, classes, …) are their label's."""
    return F.one_hot(labels.flatten().long(), x.shape[1]).bool().reshape(x.shape)


def label_rescale(x, labels, positive, negative):
    """Return each label's score times ``positive``, and the others times ``negative``."""
    return torch.where(of_labels(x, labels), x * positive, x * negative)
