"""Errors of layers name the layer, the blobs, and what is possible instead."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError


def bottoms(**shapes):
    return {name: np.zeros(shape) for name, shape in shapes.items()}


def build(type, options="", tops=1, **shapes):
    names = "".join(f' bottom: "{name}"' for name in shapes)
    outs = "".join(f' top: "y{index}"' for index in range(tops))
    return LayerHarness(f'type: "{type}"{names}{outs} {options}', bottoms(**shapes))


X = (2, 3, 8, 8)
CONV, POOL = "convolution_param", "pooling_param"


@pytest.mark.parametrize(
    ("type", "options", "shapes", "message"),
    [
        ("Convolution", f"{CONV} {{ kernel_size: 3 }}", {"x": X}, "num_output of at least 1"),
        ("Convolution", f"{CONV} {{ num_output: 2 }}", {"x": X}, "needs kernel_size once"),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 kernel_h: 2 kernel_w: 2 }}",
            {"x": X},
            "kernel_size or kernel_h and kernel_w, not both",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 stride_h: 2 stride_w: 2 }}",
            {"x": X[:3]},
            "stride_h and stride_w need 2 spatial axes, found 1",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 pad: 1 pad: 1 pad: 1 }}",
            {"x": X},
            "pad once, or once for each of 2 spatial axes, found 3 times",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 stride: 0 }}",
            {"x": X},
            "stride of at least 1",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 4 kernel_size: 3 group: 2 }}",
            {"x": X},
            "channels 3 is not a multiple of group 2",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 9 }}",
            {"x": X},
            r"does not fit an image of \(8, 8\): bottom 'x' \(2, 3, 8, 8\)",
        ),
        (
            "Convolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 weight_filler {{ type: 'xaver' }} }}",
            {"x": X},
            "parameter 0: unknown filler type 'xaver'; did you mean 'xavier'",
        ),
        ("Convolution", f"{CONV} {{ axis: 7 }}", {"x": X}, "axis 7 is out of range for bottom 'x'"),
        (
            "Deconvolution",
            f"{CONV} {{ num_output: 2 kernel_size: 3 pad: 9 }}",
            {"x": X},
            "leaves nothing of bottom 'x'",
        ),
        (
            "Pooling",
            f"{POOL} {{ kernel_size: 9 }}",
            {"x": X},
            r"does not fit \(8, 8\): bottom 'x'",
        ),
        ("Pooling", "", {"x": X}, "either kernel_size or both"),
        ("Pooling", f"{POOL} {{ kernel_h: 3 }}", {"x": X}, "both kernel_h and kernel_w"),
        ("Pooling", f"{POOL} {{ kernel_size: 2 pad: 2 }}", {"x": X}, "pad smaller than its kernel"),
        (
            "Pooling",
            f"{POOL} {{ kernel_size: 2 ceil_mode: false round_mode: CEIL }}",
            {"x": X},
            "a ceil_mode and a round_mode that contradict each other",
        ),
        (
            "Pooling",
            f"{POOL} {{ global_pooling: true kernel_size: 3 }}",
            {"x": X},
            "no kernel size with global_pooling",
        ),
        (
            "Pooling",
            f"{POOL} {{ global_pooling: true stride: 2 }}",
            {"x": X},
            "no stride and no pad with global_pooling",
        ),
        (
            "Pooling",
            f"{POOL} {{ pool: STOCHASTIC kernel_size: 3 pad: 1 }}",
            {"x": X},
            "pad for MAX and AVE only",
        ),
        ("Pooling", f"{POOL} {{ kernel_size: 2 }}", {"x": X[:3]}, r"4 axes, found bottom 'x' \(2,"),
        (
            "SPP",
            "spp_param { pyramid_height: 4 }",
            {"x": (2, 3, 15, 17)},
            r"'x' \(2, 3, 15, 17\) into 8 by 8 bins: pad \(1, 4\) would not be smaller than kernel",
        ),
        (
            "Permute",
            "permute_param { order: 1 order: 1 }",
            {"x": X},
            r"different axes of bottom 'x' \(2, 3, 8, 8\) as its order, found \[1, 1\]",
        ),
        ("Permute", "permute_param { order: 4 }", {"x": X}, "found \\[4\\]"),
        ("Transpose", "transpose_param { dim: 1 dim: 0 }", {"x": X}, "every axis of bottom 'x'"),
        ("Transpose", "transpose_param { dim: 4 }", {"x": X}, "dim 4 is out of range"),
        ("ShuffleChannel", "shuffle_channel_param { group: 2 }", {"x": X}, "'x' .* into 2 groups"),
        ("Reorg", "reorg_param { stride: 2 }", {"x": X}, "stride 2 and bottom 'x'"),
        ("Reorg", "reorg_param { stride: 3 }", {"x": (2, 9, 6, 4)}, "stride 3 and bottom 'x'"),
        ("Reorg", "reorg_param { stride: 0 }", {"x": X}, "stride of at least 1"),
        ("Reverse", "reverse_param { axis: 4 }", {"x": X}, "axis 4 is out of range"),
        ("Flip", "", {"x": X[:3]}, "needs 4 axes"),
        ("Normalize", "", {"x": (5,)}, "channel axis 1 is out of range"),
        ("Interp", "", {"x": X}, "height and width, or a shrink_factor or a zoom_factor"),
        (
            "Interp",
            "interp_param { height: 5 width: 0 }",
            {"x": X},
            "height and a width of at least 1",
        ),
        ("Interp", "interp_param { zoom_factor: 0 }", {"x": X}, "zoom_factor of at least 1"),
        ("Interp", "interp_param { zoom_factor: 2 pad_beg: 1 }", {"x": X}, "of at most 0"),
        (
            "Interp",
            "interp_param { zoom_factor: 2 pad_beg: -4 pad_end: -4 }",
            {"x": X},
            "leaves no pixels of bottom 'x'",
        ),
        ("Upsample", "upsample_param { scale: 0 }", {"x": X}, "scales of at least 1"),
        ("Upsample", "upsample_param { upsample_h: 8 }", {"x": X, "m": X}, "both upsample_h and"),
        ("Upsample", "upsample_param { scale_h: 2 }", {"x": X, "m": X}, "both scale_h and scale_w"),
        ("Upsample", "upsample_param { pad_out_h: true }", {"x": X}, "a second bottom is a pool"),
        (
            "Upsample",
            "upsample_param { scale: 3 pad_out_h: true }",
            {"x": X, "m": X},
            "pad_out_w for scale 2 only",
        ),
        ("Unpooling", "", {"x": X, "m": X}, "unpool_size, or unpool_h and unpool_w, above 0"),
        ("Unpooling", "unpooling_param { unpool: AVE }", {"x": X, "m": X}, "does only MAX"),
        ("Unpooling", "unpooling_param { pad: 1 }", {"x": X, "m": X}, "takes no pad"),
        (
            "Unpooling",
            "unpooling_param { unpool_size: 9 unpool_h: 9 unpool_w: 9 }",
            {"x": X, "m": X},
            "unpool_h and unpool_w, not both",
        ),
        ("EltwiseAccuracy", "eltwise_accuracy_param { top_k: 0 }", {"x": X, "t": (2,)}, "top_k"),
        ("Upsample", "", {"x": X, "m": (2, 3, 8, 4)}, "'x' .* and 'm' .* need the same shape"),
        (
            "SegAccuracy",
            "",
            {"x": X, "t": (2, 1, 8, 4)},
            "there are 128 predictions among 3 classes",
        ),
        ("LRN", "lrn_param { local_size: 4 }", {"x": X}, "odd local_size, found 4"),
        ("InnerProduct", "", {"x": X}, "num_output of at least 1"),
        ("Dropout", "dropout_param { dropout_ratio: 1 }", {"x": X}, "dropout_ratio < 1, found 1"),
        (
            "SoftmaxWithLoss",
            "",
            {"x": (4, 5), "t": (3,)},
            r"'x' \(4, 5\) and 't' \(3,\) need the same first dimension",
        ),
        (
            "SoftmaxWithLoss",
            "",
            {"x": (4, 5, 2), "t": (4,)},
            r"'x' \(4, 5, 2\) and 't' \(4,\) do not fit: there are 8 predictions among 5 classes",
        ),
        (
            "EuclideanLoss",
            "",
            {"x": (4, 5), "t": (4, 6)},
            r"'x' \(4, 5\) and 't' \(4, 6\) need the same number of elements",
        ),
        (
            "Eltwise",
            "",
            {"a": (4, 5), "b": (4, 6)},
            r"'a' \(4, 5\) and 'b' \(4, 6\) need the same shape",
        ),
        ("Eltwise", "eltwise_param { coeff: 1 }", {"a": (4,), "b": (4,)}, "1 coeff for 2 bottoms"),
        (
            "Eltwise",
            "eltwise_param { operation: PROD coeff: 1 coeff: 1 }",
            {"a": (4,), "b": (4,)},
            "coeff for SUM only",
        ),
        (
            "Flatten",
            "flatten_param { axis: 2 end_axis: 0 }",
            {"x": X},
            "end_axis 0 lies before axis 2",
        ),
        (
            "Concat",
            "",
            {"a": (4, 5, 2), "b": (4, 6, 3)},
            r"'a' \(4, 5, 2\) and 'b' \(4, 6, 3\) need the same shape but for the joined axis 1",
        ),
        ("Concat", "concat_param { axis: 1 concat_dim: 1 }", {"a": (4, 5)}, "axis or concat_dim"),
        ("Slice", "slice_param { slice_point: 2 }", {"a": (4, 5)}, "needs 2 slice_point"),
        (
            "Slice",
            "slice_param { slice_point: 2 slice_point: 9 }",
            {"a": (4, 5)},
            r"rising slice points between 0 and 5, the size of axis 1 of bottom 'a'",
        ),
        ("Slice", "", {"a": (4, 5)}, r"axis 1 of bottom 'a' \(4, 5\) into 3 equal parts"),
        ("Crop", "crop_param { offset: 4 }", {"a": X, "r": (2, 3, 5, 5)}, "fit with offset 4"),
        ("Tile", "tile_param { tiles: 0 }", {"a": X}, "tiles of at least 1"),
        ("Reshape", "reshape_param { shape { dim: 7 } }", {"a": X}, "numbers of elements differ"),
        (
            "Reshape",
            "reshape_param { shape { dim: -1 dim: 7 } }",
            {"a": X},
            "cannot infer a size",
        ),
        (
            "Reshape",
            "reshape_param { shape { dim: -1 dim: -1 } }",
            {"a": X},
            "at most one -1",
        ),
        ("Scale", "scale_param { axis: 3 num_axes: 2 }", {"a": X}, "num_axes 2 from axis 3"),
        ("Scale", "", {"a": X, "s": (4,)}, r"'s' \(4,\) does not fit bottom 'a' .* from axis 1"),
        ("Accuracy", "accuracy_param { top_k: 6 }", {"x": (4, 5), "t": (4,)}, "top_k 6 .* 5 class"),
        ("ArgMax", "argmax_param { top_k: 6 }", {"x": (4, 5)}, "top_k 6 .* 5 values"),
        ("Embed", "embed_param { num_output: 2 }", {"x": (4,)}, "input_dim of at least 1"),
        ("Exp", "exp_param { base: -3 }", {"x": X}, "positive base, or -1 for e, found -3"),
        ("Log", "log_param { base: 1 }", {"x": X}, "cannot use base 1"),
        ("PReLU", "", {"x": (4,)}, "at least 2 axes"),
        ("LSTM", "", {"x": (4, 2, 3), "c": (4, 2)}, "num_output of at least 1"),
        (
            "LSTM",
            "recurrent_param { num_output: 4 }",
            {"x": (4, 2, 3), "c": (4, 3)},
            r"'x' \(4, 2, 3\) and 'c' \(4, 3\) need the same steps and streams",
        ),
        (
            "BatchNorm",
            "param { lr_mult: 1 }",
            {"x": X},
            "statistics, which are not learnt: give param 0 lr_mult: 0",
        ),
        ("DummyData", "", {}, "needs shape once, or for each of its 3 tops, found 0"),
        ("InfogainLoss", "", {"x": (4, 5), "t": (4,)}, "third bottom or as infogain_loss_param"),
        (
            "InfogainLoss",
            "infogain_loss_param { source: 'nowhere.binaryproto' }",
            {"x": (4, 5), "t": (4,)},
            "cannot read the matrix: .*nowhere.binaryproto",
        ),
        (
            "InfogainLoss",
            "",
            {"x": (4, 5), "t": (4,), "h": (4, 5)},
            r"needs a 5×5 matrix, found 'h' \(4, 5\)",
        ),
    ],
)
def test_misuse_is_explained(type, options, shapes, message):
    tops = 3 if type in ("Slice", "DummyData") else 1
    with pytest.raises(LayerError, match=message) as raised:
        build(type, options, tops, **shapes)
    assert str(raised.value).startswith(f"net:1: layer 'l' ({type}): ")


@pytest.mark.parametrize(
    ("type", "options", "shapes", "larger"),
    [
        ("Convolution", f"{CONV} {{ num_output: 2 kernel_size: 1 }}", X, (2, 4, 8, 8)),
        ("Convolution", f"{CONV} {{ num_output: 2 kernel_size: 1 }}", X, (2, 3, 8)),
        ("InnerProduct", "inner_product_param { num_output: 2 }", X, (2, 3, 8, 9)),
        ("BatchNorm", "", X, (2, 4, 8, 8)),
        ("PReLU", "", X, (2, 4, 8, 8)),
        ("Scale", "", X, (2, 4, 8, 8)),
    ],
)
def test_weights_do_not_fit_another_shape(type, options, shapes, larger):
    harness = build(type, options, x=shapes)
    with pytest.raises(LayerError, match=rf"'x' \({larger[0]}, {larger[1]}"):
        harness.forward({"x": np.zeros(larger)})


@pytest.mark.parametrize(
    ("type", "options", "values", "message"),
    [
        ("SoftmaxWithLoss", "", [0, 4, 5, 1], r"label 5 of sample 2 in bottom 't' \(4,\) is none"),
        ("SoftmaxWithLoss", "", [0, 4, -1, 1], r"label -1 of sample 2 .* the 5 classes \(0 to 4\)"),
        ("SoftmaxWithLoss", "", [0, 4, np.nan, 1], "label nan of sample 2"),
        ("SoftmaxWithLoss", "loss_param { ignore_label: 9 }", [0, 9, 4, 7], "label 7 of sample 3"),
        ("Accuracy", "", [0, 4, 5, 1], "label 5 of sample 2 .* the 5 classes"),
        ("Accuracy", "", [0, 4, np.nan, 1], "label nan of sample 2"),
        ("HingeLoss", "", [0, 4, 5, 1], "label 5 of sample 2"),
        ("MultinomialLogisticLoss", "", [0, 4, -2, 1], "label -2 of sample 2"),
    ],
)
def test_a_label_that_is_no_class_is_named(type, options, values, message):
    harness = build(type, options, x=(4, 5), t=(4,))
    with pytest.raises(LayerError, match=message):
        harness.forward({"t": np.array(values)})


def test_the_sample_of_a_wrong_label_in_a_map():
    harness = build("SoftmaxWithLoss", x=(2, 3, 4, 5), t=(2, 1, 4, 5))
    labels = np.zeros((2, 1, 4, 5))
    labels[1, 0, 2, 3] = 3
    with pytest.raises(LayerError, match="label 3 of sample 1 "):
        harness.forward({"t": labels})


@pytest.mark.parametrize(
    ("type", "options", "values", "message"),
    [
        ("Embed", "embed_param { num_output: 2 input_dim: 3 }", [0, 3], "found 3 as element 1"),
        ("Embed", "embed_param { num_output: 2 input_dim: 3 }", [0.5, 1], "whole numbers .* 0.5"),
    ],
)
def test_an_index_out_of_range_is_named(type, options, values, message):
    harness = build(type, options, i=(2,))
    with pytest.raises(LayerError, match=message):
        harness.forward({"i": np.array(values)})
    reindex = build("BatchReindex", x=(3, 2), i=(2,))
    with pytest.raises(LayerError, match=r"index 3 at 1 of bottom 'i' .* no sample of bottom 'x'"):
        reindex.forward({"i": np.array([0, 3])})


@pytest.mark.parametrize("type", ["SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss"])
def test_labels_have_no_gradient(type):
    harness = build(type, x=(4, 5), t=(4,))
    harness.forward()
    assert not harness.layer.allow_force_backward(1)
    with pytest.raises(LayerError, match="cannot backpropagate to 't'; set propagate_down: false"):
        harness.backward([True, True])


@pytest.mark.parametrize("type", ["Accuracy", "ArgMax", "Threshold"])
def test_layers_without_gradient_say_so(type):
    shapes = {"x": (4, 5), "t": (4,)} if type == "Accuracy" else {"x": (4, 5)}
    harness = build(type, **shapes)
    harness.forward()
    with pytest.raises(LayerError, match="has no gradient"):
        harness.backward([True] * len(shapes))
