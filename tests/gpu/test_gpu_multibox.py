"""Errors that MultiBoxLoss finds on a GPU: they come when the host waits."""

from __future__ import annotations

import numpy as np
import pytest
from layer_cases import collect

from pycaffe_dist.errors import LayerError

CASE = next(case for case in collect() if case.type == "MultiBoxLoss")


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("label", (0, 0, 1, 1), 9, "row 1 of bottom 'label' .* is of class 9, none of 0 to 3"),
        ("label", (0, 0, 3, 0), 3, "row 3 of bottom 'label' .* is of image 3, found images 0 to 2"),
        ("label", (0, 0, 0, 5), np.nan, "row 0 of bottom 'label' .* has nan for xmax"),
        ("prior", (0, 0, 4), np.inf, "prior 1 of bottom 'prior' .* has xmin inf"),
        ("prior", (0, 1, 6), -1, "prior 1 of bottom 'prior' .* has the variance -1 for xmax"),
    ],
)
def test_wrong_values(name, place, value, message, gpu):
    values = CASE.values()
    values[name][place] = value
    harness = CASE.build(values, dtype=np.float32, device=gpu)
    with pytest.raises(LayerError, match=message):
        harness.forward()
    # The layer goes on with right values.
    harness.forward(CASE.values())
