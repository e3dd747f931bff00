"""Golden cases of layers, exported to ONNX and run by ONNX Runtime."""

from __future__ import annotations

import golden_nets
import numpy as np
import pytest

from pycaffe_dist.exporting.onnx.models import Session, model_of
from pycaffe_dist.exporting.onnx.register import CONVERTERS
from pycaffe_dist.exporting.steps import steps_of

# Types that only training has: losses, measures of quality, choices of samples.
TRAINING = {"BoxAnnotatorOHEM", "DetectionEvaluate", "SegAccuracy"}


def cases():
    """Return the cases of layers with a meaning in inference, with their nets."""
    for path in golden_nets.CASES:
        net, blobs = golden_nets.load(path)
        steps = steps_of(net)
        if steps.outputs and not TRAINING & {step.type for step in steps.steps}:
            yield pytest.param(steps, blobs, id=path.stem)


CASES = list(cases())


@pytest.mark.parametrize("steps, blobs", CASES)
def test_onnx_runtime_computes_the_same_as_caffe(steps, blobs):
    session = Session(model_of(steps).SerializeToString())
    found = session.run({name: blobs[name].astype(np.float32) for name in steps.inputs})
    for name, value in found.items():
        assert value.shape == blobs[name].shape
        np.testing.assert_allclose(value, blobs[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_nearly_all_cases_of_inference_are_exported():
    assert len(CASES) >= 155


def test_every_converter_is_for_a_known_type():
    from pycaffe_dist.layers import layer_types

    assert set(CONVERTERS.types()) <= set(layer_types())
