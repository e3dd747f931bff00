"""Nets with products in bfloat16: near float32's outputs, and the same in each pass."""

from __future__ import annotations

import numpy as np
import pytest
from nets import build
from test_inference import BLOCK, NETS, fill, outputs

from pycaffe_dist.errors import UsageError
from pycaffe_dist.kernels.jit.bfloat16.units import Unit
from pycaffe_dist.precision import checked_precision
from pycaffe_dist.schema import caffe_pb2


@pytest.fixture(autouse=True)
def rounds_on_every_machine(monkeypatch):
    """Round all products, also where that is slower."""
    monkeypatch.setattr(Unit, "is_fast", True)


def both(name, dtype=np.float32):
    """Return a net with float32 products and one with bfloat16, with the same values."""
    layers, _ = NETS[name]
    nets = [
        build("".join(layers), caffe_pb2.TEST, dtype=dtype, keep_blobs=False, precision=precision)
        for precision in ("float32", "bfloat16")
    ]
    for net in nets:
        fill(net)
    for mine, theirs in zip(*(net.parameters for net in nets)):
        theirs.blob.data[...] = mine.blob.data
    return nets


def difference(found, wanted):
    """Return the largest difference, as a part of the largest value."""
    return max(
        np.abs(found[name] - wanted[name]).max() / np.abs(wanted[name]).max() for name in found
    )


@pytest.mark.parametrize("name", NETS)
def test_outputs_are_near_those_of_float32(name):
    plain, net = both(name)
    wanted, found = outputs(plain), outputs(net)
    # Eight bits, and some layers one after the other.
    assert difference(found, wanted) < 3e-2
    same = [np.array_equal(found[output], wanted[output]) for output in found]
    # Groups of few channels are not rounded.
    assert all(same) == (name == "groups, an own scale, a stride")
    for _ in range(4):
        for blob, values in outputs(net).items():
            np.testing.assert_array_equal(values, found[blob])


def test_other_shapes_and_weights_are_followed():
    plain, net = both("a block with a shortcut")
    outputs(net)
    for each in (plain, net):
        each.blobs["data"].reshape(3, 16, 11, 6)
        each.blobs["data"].data[...] = np.random.default_rng(1).standard_normal((3, 16, 11, 6))
    assert difference(outputs(net), outputs(plain)) < 3e-2
    before = outputs(net)
    for parameter in net.parameters:
        parameter.blob.data[...] *= 2
    net.weights_changed()
    assert difference(outputs(net), before) > 0.5


def test_with_all_blobs_products_are_float32_again():
    plain, net = both("a block with a shortcut")
    wanted = outputs(plain)
    outputs(net)
    net.keep_all_blobs()
    assert difference(outputs(net), wanted) < 1e-5


def test_float64_is_not_rounded():
    plain, net = both("inner products", np.float64)
    assert difference(outputs(net), outputs(plain)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bfloat"}, "precision 'bfloat' is none of float32, bfloat16.*bfloat16"),
        ({"precision": "bfloat16"}, "precision bfloat16 is for inference: .*keep_blobs=False"),
    ],
)
def test_what_is_wrong_is_told(options, message):
    with pytest.raises(UsageError, match=message):
        build("".join(BLOCK), caffe_pb2.TEST, **options)


def test_on_a_gpu_it_is_refused():
    with pytest.raises(UsageError, match="precision bfloat16 is for nets on the CPU"):
        checked_precision("bfloat16", keep_blobs=True, on_gpu=True)
