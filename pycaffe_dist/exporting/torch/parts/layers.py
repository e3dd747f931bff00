"""Layers that PyTorch has not, or has with other rules."""

import torch
from torch import nn
from torch.nn import functional as F


class BatchNorm(nn.Module):
    """Caffe's BatchNorm: running sums of mean and variance, and the sum of their weights."""

    def __init__(self, channels, eps, keep, fixed, affine=False):
        super().__init__()
        self.eps, self.keep, self.fixed = eps, keep, fixed
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.zeros(channels))
        self.register_buffer("factor", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x):
        own = self.weight, self.bias
        if self.fixed:
            share = torch.where(self.factor == 0, 0, 1 / self.factor)
            return F.batch_norm(x, self.mean * share, self.variance * share, *own, eps=self.eps)
        with torch.no_grad():
            axes = [axis for axis in range(x.dim()) if axis != 1]
            self.mean.mul_(self.keep).add_(x.mean(axes))
            self.variance.mul_(self.keep).add_(x.var(axes))
            self.factor.mul_(self.keep).add_(1)
        return F.batch_norm(x, None, None, *own, training=True, eps=self.eps)


class RunningNorm(nn.Module):
    """BN with slope, bias and running statistics; ``keep`` is their share of the old values."""

    def __init__(self, channels, eps, keep, fixed):
        super().__init__()
        self.eps, self.keep, self.fixed = eps, keep, fixed
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x):
        if self.fixed:
            return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=self.eps)
        with torch.no_grad():
            axes = [axis for axis in range(x.dim()) if axis != 1]
            self.mean.lerp_(x.mean(axes), 1 - self.keep)
            self.variance.lerp_(x.var(axes, correction=0), 1 - self.keep)
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)


class Scale(nn.Module):
    """x·weight + bias, which span the axes of x from ``axis`` on."""

    def __init__(self, shape, axis, scale=True, bias=False):
        super().__init__()
        self.axis = axis
        self.weight = nn.Parameter(torch.ones(shape)) if scale else None
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def forward(self, x, weight=None):
        weight = self.weight if weight is None else weight
        if weight is not None:
            x = x * spread(weight, x, self.axis)
        return x if self.bias is None else x + spread(self.bias, x, self.axis)


def spread(value, x, axis):
    """Give ``value`` the axes of x after its own, with size 1."""
    after = x.dim() - axis - value.dim() if value.dim() else 0
    return value.reshape((*value.shape, *(1,) * after))


class Normalize(nn.Module):
    """Division by the L2 norm over channels, or over the whole image, times a scale."""

    def __init__(self, scales, eps, across_spatial):
        super().__init__()
        self.eps, self.across_spatial = eps, across_spatial
        self.weight = nn.Parameter(torch.ones(scales))

    def forward(self, x):
        axes = list(range(1, x.dim())) if self.across_spatial else [1]
        norm = (x.square().sum(axes, keepdim=True) + self.eps).sqrt()
        return x / norm * spread(self.weight, x, 1)


class UnitLinear(nn.Linear):
    """A product; forward first divides each row of weights by its length."""

    def forward(self, x):
        with torch.no_grad():
            self.weight /= (self.weight.square().sum(1, keepdim=True) + 1e-6).sqrt()
        return super().forward(x)


class Embed(nn.Module):
    """Rows of a table, plus a bias."""

    def __init__(self, rows, size, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x):
        rows = self.weight[x.long()]
        return rows if self.bias is None else rows + self.bias


class Recurrent(nn.Module):
    """LSTM, or RNN with its output's weights, over steps of which marks tell whether to go on."""

    def __init__(self, inputs, hidden, lstm=True, static=0):
        super().__init__()
        self.lstm, rows = lstm, hidden * (4 if lstm else 1)
        self.x = nn.Parameter(torch.zeros(rows, inputs))
        self.bias = nn.Parameter(torch.zeros(rows))
        self.static = nn.Parameter(torch.zeros(rows, static)) if static else None
        self.h = nn.Parameter(torch.zeros(rows, hidden))
        self.out = None if lstm else nn.Parameter(torch.zeros(hidden, hidden))
        self.out_bias = None if lstm else nn.Parameter(torch.zeros(hidden))

    def forward(self, x, marks=None, static=None, h=None, c=None):
        steps, streams = x.shape[:2]
        gates = F.linear(x.reshape(steps, streams, -1), self.x, self.bias)
        if static is not None:
            gates = gates + F.linear(static.reshape(streams, -1), self.static)
        if marks is None:
            marks = torch.ones(steps, streams).to(x)
        marks = marks.reshape(steps, streams, 1)
        zero = torch.zeros(streams, self.h.shape[1]).to(x)
        h, c = (zero if state is None else state[0] for state in (h, c))
        hs = []
        for gate, mark in zip(gates, marks):
            gate = gate + F.linear(h * mark, self.h)
            if self.lstm:
                c, h = lstm_step(c, gate, mark)
            else:
                h = gate.tanh()
            hs.append(h)
        y = torch.stack(hs)
        if not self.lstm:
            return F.linear(y, self.out, self.out_bias).tanh(), h[None]
        return y, h[None], c[None]


def lstm_step(c, gates, mark):
    """Return cell and output; gates are input, forget, output and cell input."""
    i, f, o, g = gates.chunk(4, -1)
    c = f.sigmoid() * mark * c + i.sigmoid() * g.tanh()
    return c, o.sigmoid() * c.tanh()


def max_pool(x, kernel, stride, pad, ceil_mode, indices=False):
    """Return maxima of windows that are cut off at the borders, on request with their indices."""
    height, width = x.shape[2:]
    x = F.pad(x, (pad[1], pad[1], pad[0], pad[0]), value=float("-inf"))
    y, places = F.max_pool2d(x, kernel, stride, ceil_mode=ceil_mode, return_indices=True)
    y, places = (within(each, height, width, stride, pad) for each in (y, places))
    if not indices:
        return y
    rows, columns = places // x.shape[3] - pad[0], places % x.shape[3] - pad[1]
    return y, (rows * width + columns).to(x)


def avg_pool(x, kernel, stride, pad, ceil_mode):
    """Return means of windows that are cut off at the borders of the padding."""
    height, width = x.shape[2:]
    x = F.pad(x, (pad[1], pad[1], pad[0], pad[0]))
    y = F.avg_pool2d(x, kernel, stride, ceil_mode=ceil_mode)
    return within(y, height, width, stride, pad)


def within(y, height, width, stride, pad):
    """Leave out windows that begin after the image's end."""
    rows = -(-(height + pad[0]) // stride[0])
    return y[:, :, :rows, : -(-(width + pad[1]) // stride[1])]


def stochastic_mean(x, kernel, stride, ceil_mode):
    """Return the sum of squares over the sum of each window: what stochastic pooling expects."""
    squares = F.avg_pool2d(x * x, kernel, stride, ceil_mode=ceil_mode)
    return squares / (F.avg_pool2d(x, kernel, stride, ceil_mode=ceil_mode) + 1.2e-38)


def lrn_within(x, size, alpha, beta):
    """Return local response normalization over windows of each channel."""
    mean = F.avg_pool2d(x * x, size, 1, size // 2)
    return x * (1 + alpha * mean) ** -beta


def mvn(x, across_channels, normalize, eps):
    """Return differences from the mean, on request over the deviation."""
    x = x.reshape(*x.shape, *(1,) * (4 - x.dim()))
    axes = (1, 2, 3) if across_channels else (2, 3)
    rest = x - x.mean(axes, keepdim=True)
    if not normalize:
        return rest
    return rest / (rest.square().mean(axes, keepdim=True).sqrt() + eps)


def batch_norm_of_batch(x, weight, bias, eps):
    """Return BN by the batch's statistics, its mean and its variance."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    y = spread(weight, x, 1) * (x - mean) / (variance + eps).sqrt() + spread(bias, x, 1)
    return y, mean, variance


def unpool(x, mask, height, width):
    """Put values where a mask says, into planes of zeros."""
    planes = torch.zeros(*x.shape[:2], height * width).to(x)
    planes = planes.scatter(2, mask.flatten(2).long(), x.flatten(2))
    return planes.reshape(*x.shape[:2], height, width)


def arg_max(x, count, axis, values):
    """Return the indices of the largest values, of equal ones the last; Caffe's shapes."""
    flat = x.flatten(1) if axis is None else x
    along = 1 if axis is None else axis
    best = flat.flip(along).argsort(dim=along, descending=True, stable=True)
    places = flat.shape[along] - 1 - best.narrow(along, 0, count)
    found = flat.gather(along, places)
    if axis is not None:
        return found if values else places.to(x)
    pair = [places.to(x), found] if values else [places.to(x)]
    ones = (1,) * (x.dim() - 3)
    return torch.stack(pair, 1).reshape(len(x), len(pair), count, *ones)


def interp(x, height, width, begin=0, end=0):
    """Interpolate between the corners, after cutting off pixels."""
    x = x[:, :, begin : x.shape[2] + end, begin : x.shape[3] + end]
    return F.interpolate(x, (height, width), mode="bilinear", align_corners=True)


def rearrange(x, shape, order, top):
    """Return x, seen as ``shape`` after the samples, with axes in ``order``, as ``top``."""
    return x.reshape(-1, *shape).permute(*order).reshape(-1, *top)


def crop_like(x, like, axis, offsets):
    """Cut x to the sizes of ``like`` from ``axis`` on."""
    for index, offset in enumerate(offsets, axis):
        x = x.narrow(index, offset, like.shape[index])
    return x
