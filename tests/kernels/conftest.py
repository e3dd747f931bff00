"""Fixtures of the kernels' tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kernel_reference import UNITS, use_unit

from pycaffe_dist.threads import set_threads, thread_count


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Use two threads, whatever the machine has."""
    before = thread_count()
    set_threads(2)
    yield
    set_threads(before)


@pytest.fixture(params=UNITS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> np.dtype:
    """Run a test with every vector unit in float32, and in float64."""
    return use_unit(request.param, monkeypatch)
