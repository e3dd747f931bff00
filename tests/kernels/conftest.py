"""Fixtures of the kernels' tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_reference import STEP, UNITS, use_unit

from pycaffe_dist.kernels.jit.codegen.target import host_levels
from pycaffe_dist.threads import set_threads, thread_count


@pytest.hookimpl(tryfirst=True)  # before pytest leaves the long ones out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        unit = str(params.get("unit", params.get("dtype"))).rpartition(" ")[2]  # "floats on avx2"
        if unit in host_levels()[1:-1]:
            test = item.nodeid.partition("[")[0], unit
            if seen[test] % STEP:
                item.add_marker(pytest.mark.long)
            seen[test] += 1


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
