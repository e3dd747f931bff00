"""Caffe's solvers as optimizers, and its schedules of rates."""

import math

import torch


class Solver(torch.optim.Optimizer):
    """The base of Caffe's methods: clipping, decay, and a step from the gradient.

    The gradients of ``iter_size`` backward passes add up before a step.
    """

    decays_beside = False

    def __init__(self, groups, decay_l1=False, iter_size=1, clip=-1.0, **defaults):
        super().__init__(groups, {"weight_decay": 0.0, **defaults})
        self.decay_l1, self.iter_size, self.clip = decay_l1, iter_size, clip
        self.iteration = 0

    @torch.no_grad()
    def step(self):
        """Update all parameters."""
        scale = gradient_scale(self.param_groups, self.iter_size, self.clip)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    decay = (p.sign() if self.decay_l1 else p) * group["weight_decay"]
                    if self.decays_beside:
                        step = self.move(group, self.state[p], p.grad * scale)
                        p -= step + group["lr"] * decay
                    else:
                        p -= self.move(group, self.state[p], p.grad * scale + decay)
        self.iteration += 1


def gradient_scale(groups, iter_size, clip):
    """Return what gradients are multiplied by: for a mean, and to clip their norm."""
    squares = [p.grad.square().sum() for g in groups for p in g["params"] if p.grad is not None]
    if clip < 0 or not squares:
        return 1 / iter_size
    return torch.clamp(clip / torch.stack(squares).sum().sqrt(), max=1.0) / iter_size


class SGD(Solver):
    """Momentum of steps, each with the rate of its time."""

    def move(self, group, state, gradient):
        """Return the step."""
        before = state.get("step", 0)
        state["step"] = group["momentum"] * before + group["lr"] * gradient
        return state["step"]


class Nesterov(Solver):
    """Nesterov's accelerated gradient."""

    def move(self, group, state, gradient):
        """Return the step."""
        momentum, before = group["momentum"], state.get("step", 0)
        state["step"] = after = momentum * before + group["lr"] * gradient
        return (1 + momentum) * after - momentum * before


class AdaGrad(Solver):
    """Rates that fall with all squares so far."""

    def move(self, group, state, gradient):
        """Return the step."""
        state["squares"] = state.get("squares", 0) + gradient.square()
        return group["lr"] * gradient / (state["squares"].sqrt() + group["delta"])


class RMSProp(Solver):
    """Rates that follow a running mean of squares."""

    def move(self, group, state, gradient):
        """Return the step."""
        keep = group["rms_decay"]
        state["squares"] = keep * state.get("squares", 0) + (1 - keep) * gradient.square()
        return group["lr"] * gradient / (state["squares"].sqrt() + group["delta"])


class AdaDelta(Solver):
    """Rates from running means of squares of gradients and of steps."""

    def move(self, group, state, gradient):
        """Return the step."""
        keep, delta = group["momentum"], group["delta"]
        state["squares"] = keep * state.get("squares", 0) + (1 - keep) * gradient.square()
        before = state.get("steps", torch.zeros_like(gradient))
        step = gradient * ((delta + before) / (delta + state["squares"])).sqrt()
        state["steps"] = keep * before + (1 - keep) * step.square()
        return group["lr"] * step


class Adam(Solver):
    """Running mean and variance of the gradient, corrected for their start."""

    def move(self, group, state, gradient):
        """Return the step."""
        first, second, time = group["momentum"], group["momentum2"], self.iteration + 1
        state["mean"] = first * state.get("mean", 0) + (1 - first) * gradient
        state["squares"] = second * state.get("squares", 0) + (1 - second) * gradient.square()
        rate = group["lr"] * (1 - second**time) ** 0.5 / (1 - first**time)
        return rate * state["mean"] / (state["squares"].sqrt() + group["delta"])


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, after clipping; the gradients of ``iter_size`` passes add up."""

    def __init__(self, groups, momentum, momentum2, delta, iter_size=1, clip=-1.0):
        super().__init__(groups, betas=(momentum, momentum2), eps=delta)
        self.iter_size, self.clip = iter_size, clip

    @torch.no_grad()
    def step(self):
        """Update all parameters."""
        scale = gradient_scale(self.param_groups, self.iter_size, self.clip)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(scale)
        super().step()


class Lion(Solver):
    """Steps of one size, with the sign of a mean of gradients; weights decay beside them."""

    decays_beside = True

    def move(self, group, state, gradient):
        """Return the step."""
        first, second = group["momentum"], group["momentum2"]
        before = state.get("mean", 0)
        state["mean"] = second * before + (1 - second) * gradient
        return group["lr"] * (first * before + (1 - first) * gradient).sign()


def cosine(done, length, last, growth=0.0):
    """Return half a cosine from 1 to ``last``; with ``growth`` more follow, each so much longer."""
    if growth == 1:
        done %= length
    while growth and done >= length:
        done, length = done - length, length * growth
    return last + (1 - last) * (1 + math.cos(math.pi * min(done / length, 1))) / 2


def one_cycle(iteration, length, rise, first, last):
    """Return half a cosine from ``first`` up to 1 and another down to ``last``."""
    peak = rise * length - 1
    if iteration < peak:
        return 1 + first - cosine(iteration, peak, first)
    peak = max(peak, 0)
    return cosine(iteration - peak, length - 1 - peak, last) if length - 1 > peak else last
