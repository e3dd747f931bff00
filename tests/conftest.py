"""How the tests are divided among processes, by pytest's plugin xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

PARALLEL = Path(__file__).parent / "parallel"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own turn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, and all those under mpirun: they need several cores."""
    for item in items:
        alone = PARALLEL in item.path.parents
        item.add_marker(pytest.mark.xdist_group("mpirun" if alone else str(item.path)))
