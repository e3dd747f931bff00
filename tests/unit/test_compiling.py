from __future__ import annotations

from pycaffe_dist.kernels.compiling import jit


def test_a_function_whose_code_cannot_be_kept_is_compiled_all_the_same():
    names: dict = {}
    exec(compile("def add(x):\n    return x + 1\n", "/proc/nowhere/add.py", "exec"), names)
    assert jit(names["add"])(1) == 2
    assert jit(fast=True)(names["add"])(1.5) == 2.5
