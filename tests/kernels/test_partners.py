"""Primitives whose GPU side is missing."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.kernels import kernel


def test_a_kernel_without_a_partner_names_itself():
    class DeviceArray:
        __cuda_array_interface__: dict = {}

    @kernel
    def double(x):
        x *= 2

    with pytest.raises(DeviceError, match="double has no implementation for GPUs"):
        double(DeviceArray())
    x = np.ones(2)
    double(x)
    assert x.tolist() == [2, 2]
