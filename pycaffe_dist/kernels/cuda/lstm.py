"""One time step of long short-term memory on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("lstm")


def lstm_unit_forward(c_old: Any, gates: Any, keep: Any, activations: Any, c: Any, h: Any) -> None:
    """See `pycaffe_dist.kernels.lstm.lstm_unit_forward`."""
    hidden = c.shape[1]
    layout = *division(max(1, hidden)), hidden, c.size
    _cu.lstm_unit_forward(c.size, c_old, gates, keep, activations, c, h, *layout)


def lstm_unit_backward(
    c_old: Any, activations: Any, c: Any, dc: Any, dh: Any, dc_old: Any, dgates: Any
) -> None:
    """See `pycaffe_dist.kernels.lstm.lstm_unit_backward`."""
    hidden = c.shape[1]
    layout = *division(max(1, hidden)), hidden, c.size
    _cu.lstm_unit_backward(c.size, c_old, activations, c, dc, dh, dc_old, dgates, *layout)
