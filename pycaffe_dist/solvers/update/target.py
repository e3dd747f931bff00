"""What an update needs of a parameter, or of a part of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class UpdateTarget(Protocol):
    """Weights that an update changes in place, their gradient, and their multipliers.

    ``regularization`` is "L1" or "L2" if it is not the solver's, else empty.
    Weights and gradient have one shape and type, and are arrays of the current device.
    """

    lr_mult: float
    decay_mult: float
    regularization: str

    @property
    def weights(self) -> np.ndarray:
        """The weights."""

    @property
    def gradient(self) -> np.ndarray:
        """The gradient, which the update overwrites with its step, as Caffe does."""


@dataclass
class ArrayTarget:
    """A target of two arrays."""

    weights: np.ndarray
    gradient: np.ndarray
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    regularization: str = ""
