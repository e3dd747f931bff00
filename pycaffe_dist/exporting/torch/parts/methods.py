"""Caffe's solvers as optimizers."""

import torch


class Solver(torch.optim.Optimizer):
    """The base of Caffe's methods: clipping, decay, and a step from the gradient.

    The gradients of ``iter_size`` backward passes add up before a step.
    """

    def __init__(self, groups, decay_l1=False, iter_size=1, clip=-1.0, **defaults):
        super().__init__(groups, {"weight_decay": 0.0, **defaults})
        self.decay_l1, self.iter_size, self.clip = decay_l1, iter_size, clip
        self.iteration = 0

    @torch.no_grad()
    def step(self):
        """Update all parameters."""
        scale = 1 / self.iter_size
        owned = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.clip >= 0:
            norm = torch.stack([p.grad.square().sum() for p in owned]).sum().sqrt()
            scale = scale * torch.clamp(self.clip / norm, max=1.0)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    regularity = p.sign() if self.decay_l1 else p
                    gradient = p.grad * scale + regularity * group["weight_decay"]
                    p -= self.move(group, self.state[p], gradient)
        self.iteration += 1


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
