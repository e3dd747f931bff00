"""A test that ends its process fails; all other tests run, and the run ends."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from running import Finished, Job

TESTS = Path(__file__).parents[1]
FILE = """
import os, pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    if number == {abort}:
        os.abort()
"""
# The tests of each file, and which one aborts.
FILES = {
    "parallel/test_launching.py": (3, 1),
    "parallel/test_training.py": (2, None),
    "test_complete.py": (2, None),
    "test_first.py": (3, 0),
    "test_last.py": (2, 1),
    "test_single.py": (1, None),
}
COLLECTED_BY_ONE = """
import os

if os.environ.get("PYTEST_XDIST_WORKER") != "gw0":
    os.abort()

def test_it():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs pytest on files with the given texts and returns its result."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests/parallel").mkdir(parents=True)
    for name in ("conftest.py", "by_file.py"):
        shutil.copy(TESTS / name, tmp_path / "tests")
    removed = {name: None for name in os.environ if name.startswith("PYTEST_")}

    def run(files: dict[str, str], *flags: str) -> Finished:
        for name, text in files.items():
            (tmp_path / "tests" / name).write_text(text)
        command = [sys.executable, "-m", "pytest", "-rA", *flags, "tests"]
        return Job(command, tmp_path, **removed).finish(60)

    return run


def outcomes(output: str, outcome: str) -> list[str]:
    return sorted(re.findall(rf"(?m)^{outcome} tests/(\S+)", output))


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_a_test_that_ends_its_process_fails_and_the_others_run(run, workers):
    texts = {name: FILE.format(count=n, abort=abort) for name, (n, abort) in FILES.items()}
    done = run(texts, f"-n{workers}")
    tests = [(name, i, i == abort) for name, (n, abort) in FILES.items() for i in range(n)]
    assert outcomes(done.output, "FAILED") == [f"{name}::test_it[{i}]" for name, i, a in tests if a]
    assert outcomes(done.output, "PASSED") == [
        f"{name}::test_it[{i}]" for name, i, aborts in tests if not aborts
    ]
    assert done.status == pytest.ExitCode.TESTS_FAILED


def test_a_process_that_dies_outside_of_tests_fails_the_run(run):
    """Only the first worker lives long enough to collect the tests, so none runs."""
    done = run({"test_collected.py": COLLECTED_BY_ONE}, "-n2", "--max-worker-restart=1")
    assert "node down" in done.output
    assert done.status == pytest.ExitCode.TESTS_FAILED


def test_without_xdist(run):
    done = run({"test_single.py": FILE.format(count=2, abort=None)}, "-p", "no:xdist")
    assert len(outcomes(done.output, "PASSED")) == 2
    assert done.status == pytest.ExitCode.OK
