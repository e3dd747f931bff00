"""A solver with a field that its method does not use is refused."""

from __future__ import annotations

import pytest
from tiny import tiny_solver

from pycaffe_dist.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("type: 'AdaGrad' momentum: 0.9", "AdaGrad takes no momentum, found 0.9"),
        ("type: 'RMSProp' momentum: 0.5", "RMSProp takes no momentum, found 0.5"),
        ("type: 'RMSProp' momentum: 0 rms_decay: 1", "rms_decay .* below 1, found 1"),
        ("type: 'RMSProp' momentum: 0 rms_decay: -1", "rms_decay must be at least 0 .* found -1"),
        ("iter_size: 0", "iter_size must be at least 1, found 0"),
        ("average_loss: 0", "average_loss must be at least 1, found 0"),
        ("weight_decay: 1 regularization_type: 'L3'", "unknown regularization_type 'L3'"),
    ],
)
def test_unused_fields_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        tiny_solver(tmp_path, fields)
