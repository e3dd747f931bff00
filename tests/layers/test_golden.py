"""Every layer against what BVLC Caffe computed for it on the CPU."""

from __future__ import annotations

import golden_cases
import pytest


@pytest.mark.parametrize("path", golden_cases.CASES, ids=lambda path: path.stem)
def test_layer_computes_the_same_as_caffe(path):
    golden_cases.check(path)


def test_there_is_a_case_for_nearly_every_layer():
    assert len(golden_cases.CASES) >= 80
