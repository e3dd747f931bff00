"""Every layer on a GPU: against Caffe's golden files, and against our own layer on the CPU."""

from __future__ import annotations

import golden_cases
import numpy as np
import pytest
import test_loss_divisors
from layer_cases import collect
from passes import run

from pycaffe_dist.layers import layer_class
from pycaffe_dist.precision import bfloat16

CASES = collect()
# Two different maxima that are one number in bfloat16.
TIES = {"roipooling_seven_sixteenth"}


@pytest.mark.parametrize("path", golden_cases.CASES, ids=lambda path: path.stem)
def test_layer_computes_the_same_as_caffe(path, gpu):
    golden_cases.check(path, gpu)


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "in_place"),
    [(case, False) for case in CASES] + [(case, True) for case in CASES if case.can_be_in_place()],
    ids=lambda value: (
        {False: "apart", True: "in_place"}[value] if isinstance(value, bool) else value.name
    ),
)
def test_layer_computes_the_same_as_on_the_cpu(case, in_place, reversed_gpu):
    here = case.build(dtype=np.float32, in_place=in_place)
    there = case.build(dtype=np.float32, in_place=in_place, device=reversed_gpu)
    for found_list, expected_list in zip(passes(case, there), passes(case, here)):
        for found, expected in zip(found_list, expected_list):
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)


def passes(case, harness):
    return run(harness) if layer_class(case.type).has_backward else [harness.forward()]


@pytest.mark.parametrize("path", golden_cases.CASES, ids=lambda path: path.stem)
def test_layer_computes_nearly_the_same_in_float16(path, gpu):
    golden_cases.check(path, gpu, np.float16, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", test_loss_divisors.CASES)
def test_losses_divide_by_the_mean_of_all_ranks_numbers(name, gpu):
    test_loss_divisors.check(name, gpu)


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [path for path in golden_cases.CASES if path.stem not in TIES],
    ids=lambda path: path.stem,
)
def test_layer_computes_nearly_the_same_in_bfloat16(path, gpu):
    golden_cases.check(path, gpu, bfloat16(), rtol=1e-1, atol=2e-1)
