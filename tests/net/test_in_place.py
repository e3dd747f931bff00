"""In-place layers: allowed where nothing is lost, refused where a gradient would be wrong."""

import numpy as np
import pytest
from nets import build, input_layer, ip

from pycaffe_dist.errors import LayerError, NetError

LOSS = "layer { name: 'loss' type: 'EuclideanLoss' bottom: '%s' bottom: 'label' top: 'loss' }"
DATA = input_layer("data", 2, 3) + input_layer("label", 2, 3)


def in_place(name, blob, kind):
    return f"layer {{ name: '{name}' type: '{kind}' bottom: '{blob}' top: '{blob}' }}"


def simple(name, bottom, top, kind):
    return f"layer {{ name: '{name}' type: '{kind}' bottom: '{bottom}' top: '{top}' }}"


@pytest.mark.parametrize(
    "chain", [("ReLU",), ("ReLU", "Dropout"), ("BatchNorm", "Scale", "ReLU"), ("Sigmoid",)]
)
def test_common_chains_are_accepted(chain):
    layers = "".join(in_place(f"{kind}{i}", "a", kind) for i, kind in enumerate(chain))
    build(DATA + ip("a", "data", 3) + layers + LOSS % "a")


POOL = (
    input_layer("x", 2, 3, 4, 4) + "layer { name: 'conv' type: 'Convolution' bottom: 'x' top: 'c' "
    "convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: 'xavier' } } }"
    "layer { name: 'pool' type: 'Pooling' bottom: 'c' top: 'p' top: 'mask' "
    "pooling_param { kernel_size: 2 stride: 2 } }"
)


def assert_same_gradients(front):
    """Compare a ReLU in place on ``front``'s top 'p' with one that has a top of its own."""
    loss = "layer { name: 'loss' type: 'Reduction' bottom: 'p' top: 'loss' loss_weight: 1 }"
    apart, within = (
        build(front + relu + loss.replace("'p'", f"'{name}'"))
        for name, relu in (
            ("q", simple("relu", "p", "q", "ReLU")),
            ("p", in_place("relu", "p", "ReLU")),
        )
    )
    for net in (apart, within):
        net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 3, 4, 4))
        net.forward()
        net.backward()
    gradients = [net.parameters[0].gradient for net in (apart, within)]
    assert gradients[0].any()
    np.testing.assert_array_equal(*gradients)


def test_the_values_of_a_pooling_with_a_mask_may_be_overwritten():
    assert_same_gradients(POOL)


LRN = (
    input_layer("x", 2, 3, 4, 4) + "layer { name: 'conv' type: 'Convolution' bottom: 'x' top: 'c' "
    "convolution_param { num_output: 6 kernel_size: 1 weight_filler { type: 'xavier' } } }"
    "layer { name: 'norm' type: 'LRN' bottom: 'c' top: 'p' lrn_param { alpha: 2 %s } }"
)


@pytest.mark.parametrize("options", ["", "norm_region: WITHIN_CHANNEL local_size: 3"])
def test_a_relu_may_overwrite_the_result_of_a_normalization(options):
    """The normalization's gradient has its result only times the diff, which ReLU sets to 0."""
    assert_same_gradients(LRN % options)


def test_a_leaky_relu_may_not_overwrite_the_result_of_a_normalization():
    leaky = in_place("relu", "p", "ReLU").replace(" }", " relu_param { negative_slope: 0.1 } }")
    loss = "layer { name: 'loss' type: 'Reduction' bottom: 'p' top: 'loss' loss_weight: 1 }"
    with pytest.raises(LayerError, match="layer 'norm' needs the old values"):
        build(LRN % "" + leaky + loss)


def test_the_mask_of_a_pooling_may_not_be_overwritten():
    loss = "layer { name: 'loss' type: 'Reduction' bottom: '%s' top: '%s_l' loss_weight: 1 }"
    text = POOL + in_place("relu", "mask", "ReLU") + loss % ("p", "p") + loss % ("mask", "mask")
    with pytest.raises(LayerError, match="layer 'pool' needs the old values"):
        build(text)


def test_overwriting_a_top_that_backward_needs_is_refused():
    with pytest.raises(
        LayerError, match=r"layer 'relu' \(ReLU\).*layer 'sig' needs the old values"
    ):
        build(
            DATA
            + ip("a", "data", 3)
            + simple("sig", "a", "s", "Sigmoid")
            + in_place("relu", "s", "ReLU")
            + LOSS % "s"
        )


def test_a_relu_refuses_an_in_place_layer_that_changes_signs():
    with pytest.raises(LayerError, match="layer 'relu' needs the old values"):
        build(
            DATA
            + ip("a", "data", 3)
            + in_place("relu", "a", "ReLU")
            + in_place("scale", "a", "Scale")
            + LOSS % "a"
        )


def test_nothing_is_refused_without_a_gradient():
    build(
        input_layer("data", 2, 3)
        + simple("sig", "data", "s", "Sigmoid")
        + in_place("r", "s", "ReLU")
    )


def test_overwriting_what_another_layer_reads_is_refused():
    """The tops of an explicit Split share memory."""
    split = "layer { name: 's' type: 'Split' bottom: 'a' top: 's0' top: 's1' }"
    with pytest.raises(LayerError, match="layer 'b' reads them as 's1'"):
        build(
            DATA
            + ip("a", "data", 3)
            + split
            + in_place("relu", "s0", "ReLU")
            + ip("b", "s1", 3)
            + LOSS % "b"
        )


def test_an_in_place_layer_on_a_blob_with_other_readers_gets_a_reason():
    with pytest.raises(NetError, match="cannot work in place on 'a', which other layers read too"):
        build(DATA + ip("a", "data", 3) + ip("b", "a", 3) + in_place("relu", "a", "ReLU"))
