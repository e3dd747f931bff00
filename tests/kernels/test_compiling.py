from __future__ import annotations

import platform
import re

import numba
import pytest
from numba import float32, int64
from running import python

from pycaffe_dist.kernels import caching, update
from pycaffe_dist.kernels.compiling import jit

PROGRAM = """
from pycaffe_dist.threads import set_threads
set_threads(1)
import numpy as np
from pycaffe_dist.kernels import activation
x = np.ones(8, np.float32)
activation.relu_forward(x, x, 0.0)
hits = activation._relu.stats.cache_hits
print("compiled" if not hits else "loaded")
"""


def test_a_function_whose_code_cannot_be_kept_is_still_compiled():
    names: dict = {}
    exec(compile("def add(x):\n    return x + 1\n", "/proc/nowhere/add.py", "exec"), names)
    assert jit(names["add"])(1) == 2
    assert jit(fast=True)(names["add"])(1.5) == 2.5


def start(directory):
    return python(PROGRAM, PCAFFE_CACHE_DIR=str(directory))


def test_one_process_compiles_and_the_others_load(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    said = [process.finish().output.strip() for process in processes]
    assert sorted(said) == ["compiled", "loaded", "loaded"]


def test_a_damaged_cache_is_compiled_again(tmp_path):
    assert start(tmp_path).finish().output == "compiled\n"
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(b"damaged")
    assert start(tmp_path).finish().output == "compiled\n"
    assert start(tmp_path).finish().output == "loaded\n"


def test_a_folder_that_cannot_be_made_is_no_reason_to_fail(tmp_path):
    (tmp_path / "file").write_text("")
    assert start(tmp_path / "file" / "cache").finish().output == "compiled\n"


def test_scipy_is_imported_for_linear_algebra_only():
    pytest.importorskip("scipy")
    program = f"""{PROGRAM}
import sys, numba
print("scipy.linalg" in sys.modules)
print(round(numba.njit(lambda x: np.linalg.det(x))(2 * np.eye(3))), "scipy.linalg" in sys.modules)
"""
    assert python(program).finish().output.splitlines()[1:] == ["False", "8 True"]


def test_a_change_of_any_kernel_source_makes_a_new_version(tmp_path, monkeypatch):
    (tmp_path / "jit").mkdir()
    inner = tmp_path / "jit" / "inner.py"
    inner.write_text("x = 1\n")
    monkeypatch.setattr(caching, "__file__", str(tmp_path / "caching.py"))
    before = caching.version.__wrapped__()
    inner.write_text("x = 2\n")
    assert caching.version.__wrapped__() != before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for instructions of x86-64")
@pytest.mark.parametrize(
    "kernel, arrays",
    [(update._sgd, 3), (update._adam, 4)],
    ids=["sgd", "adam"],
)
def test_updates_are_vector_code(kernel, arrays):
    signature = (int64, int64, *[float32[::1]] * (arrays + 1))
    compiled = numba.njit(signature, error_model="numpy")(kernel.py_func)
    assert re.search(r"mulps", compiled.inspect_asm(signature))
