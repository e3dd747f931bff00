"""Fixtures of the kernels' tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kernel_reference import UNITS, use_unit

from pycaffe_dist import device


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Use two threads, whatever the machine has."""
    before = device.threads()
    device.set_threads(2)
    yield
    device.set_threads(before)


@pytest.fixture(params=UNITS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> np.dtype:
    """Run a test with every vector unit in float32, and in float64."""
    return use_unit(request.param, monkeypatch)
