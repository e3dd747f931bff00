"""AdamW: Adam with a weight decay beside the gradient."""

from __future__ import annotations

from math import sqrt

from pycaffe_dist.kernels.update import adamw_update
from pycaffe_dist.solvers.method import register
from pycaffe_dist.solvers.moments import Moments


@register("AdamW")
class AdamW(Moments):
    """AdamW (Loshchilov and Hutter, 2019): weights decay by rate·decay, beside Adam's step.

    As in PyTorch, ``delta`` joins the corrected root; in Caffe's Adam the one that is not.
    """

    slots = 2
    step = staticmethod(adamw_update)
    usual = (0.9, 0.999)

    def scalars(self, iteration: int) -> tuple[float, ...]:
        """Return what `step` takes after the rate; the last two correct the means' start."""
        first, second = self.decays
        t = iteration + 1
        return first, second, self.param.delta, 1 / (1 - first**t), 1 / sqrt(1 - second**t)
