"""The behaviour of single layers beyond their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError
from pycaffe_dist.layers import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.threads import set_threads, thread_count


def build(type, options="", tops=1, parameters=(), phase="TRAIN", seed=1, **values):
    names = "".join(f' bottom: "{name}"' for name in values)
    outs = "".join(f' top: "y{index}"' for index in range(tops))
    text = f'type: "{type}"{names}{outs} {options}'
    return LayerHarness(text, values, parameters=parameters, phase=phase, seed=seed)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# Dropout and stochastic pooling


def dropped(seed=1, size=200_000, ratio=0.3, threads=1):
    before = thread_count()
    set_threads(threads)
    try:
        options = f"dropout_param {{ dropout_ratio: {ratio} }}"
        harness = build("Dropout", options, x=np.ones(size), seed=seed)
        harness.layer.forward(harness.bottom, harness.top)
    finally:
        set_threads(before)
    return harness


def test_dropout_drops_its_share_and_keeps_the_mean():
    harness = dropped()
    y = harness.top[0].data
    assert abs((y == 0).mean() - 0.3) < 0.005
    assert np.allclose(y[y != 0], 1 / 0.7)
    # Neighbours, and elements a power of two apart, are independent.
    centred = (y == 0) - 0.3
    for distance in (1, 2, 8, 1024, 65536):
        assert abs((centred[distance:] * centred[:-distance]).mean() / 0.21) < 0.01


def test_dropout_scales_in_training_or_in_testing():
    x, options = np.full(1000, 3.0), "dropout_param { dropout_ratio: 0.25 scale_train: %s }"
    scaled = {"true": (4, 3), "false": (3, 2.25)}
    for scale_train, (training, testing) in scaled.items():
        train = build("Dropout", options % scale_train, x=x).forward()[0]
        np.testing.assert_allclose(np.unique(train), [0, training])
        test = build("Dropout", options % scale_train, phase="TEST", x=x).forward()[0]
        np.testing.assert_allclose(test, testing)


def test_dropout_may_drop_in_testing():
    options = "dropout_param { sample_weights_test: true }"
    y = build("Dropout", options, phase="TEST", x=np.ones(1000)).forward()[0]
    np.testing.assert_array_equal(np.unique(y), [0, 2])


def test_dropout_draws_a_new_mask_each_time_and_backward_uses_the_last():
    harness = dropped()
    first = harness.top[0].data.copy()
    harness.layer.forward(harness.bottom, harness.top)
    second = harness.top[0].data
    assert 0.4 < (first == second).mean() < 0.65
    harness.top[0].diff.fill(1)
    harness.backward()
    np.testing.assert_array_equal(harness.bottom[0].diff, second)


def test_dropout_depends_on_the_seed_and_not_on_the_threads():
    assert not np.array_equal(dropped(1).top[0].data, dropped(2).top[0].data)
    np.testing.assert_array_equal(dropped(threads=1).top[0].data, dropped(threads=3).top[0].data)


def test_dropout_differs_between_layers():
    masks = []
    for name in ("drop6", "drop7"):
        harness = build("Dropout", f'name: "{name}"', x=np.ones(1000))
        harness.layer.forward(harness.bottom, harness.top)
        masks.append(harness.top[0].data == 0)
    assert (masks[0] != masks[1]).any()


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_dropout_ratio_zero_or_test_phase_is_the_identity(phase):
    ratio = 0 if phase == "TRAIN" else 0.5
    x = random(3, 4)
    options = f"dropout_param {{ dropout_ratio: {ratio} }}"
    harness = build("Dropout", options, phase=phase, x=x)
    np.testing.assert_allclose(harness.forward()[0], x)


def test_stochastic_pooling_draws_in_proportion_and_tests_with_the_mean():
    x = np.tile([[1.0, 2.0], [0.0, 5.0]], (1, 4000, 1, 1)).reshape(1, 4000, 2, 2)
    options = "pooling_param { pool: STOCHASTIC kernel_size: 2 }"
    train = build("Pooling", options, x=x)
    drawn = train.forward()[0]
    shares = [(drawn == value).mean() for value in (1, 2, 0, 5)]
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 0, 5 / 8], atol=0.03)
    test = build("Pooling", options, phase="TEST", x=x)
    np.testing.assert_allclose(test.forward()[0], 30 / 8)


# Batch normalization


def test_batch_norm_keeps_the_sums_that_caffe_keeps():
    x, y = random(4, 3, 5, 2), random(4, 3, 5, 2, seed=1) * 2 + 1
    harness = build("BatchNorm", "batch_norm_param { moving_average_fraction: 0.9 }", x=x)
    harness.forward()
    harness.forward({"x": y})
    axes, count = (0, 2, 3), 4 * 5 * 2
    mean = 0.9 * x.mean(axes) + y.mean(axes)
    variance = (0.9 * x.var(axes) + y.var(axes)) * count / (count - 1)
    blobs = harness.layer.blobs
    np.testing.assert_allclose(blobs[0].data, mean)
    np.testing.assert_allclose(blobs[1].data, variance)
    np.testing.assert_allclose(blobs[2].data, [1.9])
    assert harness.layer.statistics_blobs() == blobs
    assert [spec.lr_mult for spec in harness.layer.param.param] == [0, 0, 0]
    saved = [blob.data for blob in blobs]
    test = build("BatchNorm", phase="TEST", parameters=saved, x=x)
    shape = (1, 3, 1, 1)
    expected = (x - (mean / 1.9).reshape(shape)) / np.sqrt(variance / 1.9 + 1e-5).reshape(shape)
    np.testing.assert_allclose(test.forward()[0], expected, rtol=1e-5)
    np.testing.assert_allclose(blobs[2].data, [1.9])


def test_batch_norm_without_statistics_takes_zeros():
    harness = build("BatchNorm", "batch_norm_param { eps: 4 }", phase="TEST", x=random(2, 3))
    np.testing.assert_allclose(harness.forward()[0], random(2, 3) / 2)


def test_batch_norm_statistics_lose_no_digits_to_cancellation():
    x = (random(8, 2, 30, 30) + 3000).astype(np.float32)
    harness = LayerHarness('type: "BatchNorm" bottom: "x" top: "y"', {"x": x}, dtype=np.float32)
    y = harness.forward()[0]
    assert abs(y.std() - 1) < 1e-3 and abs(y.mean()) < 1e-2


# Sequences


def recurrent(type, **values):
    return build(
        type, "recurrent_param { num_output: 4 weight_filler { type: 'xavier' } }", **values
    )


@pytest.mark.parametrize("type", ["RNN", "LSTM"])
def test_a_sequence_continues_at_the_end_of_the_previous_batch(type):
    x, going_on = random(6, 2, 3), np.ones((6, 2))
    going_on[0] = 0
    whole = recurrent(type, x=x, c=going_on)
    parts = recurrent(type, x=x[:3], c=going_on[:3])
    expected = whole.forward()[0]
    found = [parts.forward()[0], parts.forward({"x": x[3:], "c": going_on[3:]})[0]]
    np.testing.assert_allclose(np.concatenate(found), expected)
    parts.layer.reset()
    again = parts.forward({"x": x[:3], "c": np.ones((3, 2))})[0]
    np.testing.assert_allclose(again, expected[:3])


@pytest.mark.parametrize("type", ["RNN", "LSTM"])
def test_a_new_sequence_does_not_depend_on_the_previous_one(type):
    x, cont = random(6, 2, 3), np.ones((6, 2))
    cont[3] = 0
    both = recurrent(type, x=x, c=cont).forward()[0]
    alone = recurrent(type, x=x[3:], c=cont[3:]).forward()[0]
    np.testing.assert_allclose(both[3:], alone)


@pytest.mark.parametrize(("type", "states"), [("RNN", 1), ("LSTM", 2)])
def test_exposed_states_can_be_handed_on(type, states):
    option = "recurrent_param { num_output: 4 expose_hidden: true }"
    names = "hk"[:states]
    x, cont = random(6, 2, 3), np.ones((6, 2))
    zero = {name: np.zeros((1, 2, 4)) for name in names}

    def made(steps):
        harness = build(type, option, 1 + states, x=x[:steps], c=cont[:steps], **zero)
        for index, blob in enumerate(harness.layer.blobs):
            blob.data[...] = random(*blob.shape, seed=index)
        return harness

    expected = made(6).forward()
    part = made(3)
    _, *handed = part.forward()
    found = part.forward({"x": x[3:], **dict(zip(names, handed))})
    np.testing.assert_allclose(found[0], expected[0][3:])
    for one, other in zip(found[1:], expected[1:]):
        np.testing.assert_allclose(one, other)


# Inner products


@pytest.mark.parametrize("transpose", ["false", "true"])
def test_gradient_factors_multiply_to_the_weight_gradient(transpose):
    options = f"inner_product_param {{ num_output: 5 transpose: {transpose} }}"
    harness = build("InnerProduct", options, x=random(4, 2, 3))
    assert harness.layer.gradient_factors(0) is None
    harness.forward()
    harness.top[0].diff[...] = random(4, 5, seed=2)
    harness.backward()
    u, v = harness.layer.gradient_factors(0)
    np.testing.assert_allclose(u.T @ v, harness.layer.blobs[0].diff)
    assert harness.layer.gradient_factors(1) is None
    assert [harness.layer.factor_rows(index) for index in (0, 1)] == [4, 0]


def test_with_factors_wanted_backward_leaves_out_the_gradient():
    """That is the gradient of the weights; bias and bottom have gradients as always."""
    options = "inner_product_param { num_output: 5 weight_filler { type: 'xavier' } }"
    harness = build("InnerProduct", options, x=random(4, 6))
    harness.layer.factors_only.add(0)
    harness.forward()
    harness.top[0].diff[...] = random(4, 5, seed=2)
    harness.backward()
    weights, bias = (blob.diff for blob in harness.layer.blobs)
    assert not weights.any()
    np.testing.assert_allclose(bias, harness.top[0].diff.sum(axis=0), rtol=1e-6)
    assert harness.bottom[0].diff.any()


# Losses and accuracy


def test_softmax_loss_of_extreme_scores_is_finite():
    x = np.array([[1e4, -1e4, 0], [1e30, 0, 0]])
    harness = build("SoftmaxWithLoss", x=x, t=np.array([1.0, 0]))
    loss = harness.forward()[0]
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2, rel=1e-6)
    harness.backward()
    np.testing.assert_allclose(harness.bottom[0].diff, [[0.5, -0.5, 0], [0, 0, 0]], atol=1e-12)


def test_softmax_loss_gives_its_probabilities():
    x = random(3, 4)
    options = "loss_weight: 1 loss_weight: 0"
    _, probability = build("SoftmaxWithLoss", options, 2, x=x, t=np.zeros(3)).forward()
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(probability, expected)


def test_all_labels_ignored_is_no_loss():
    option = "loss_param { ignore_label: 1 }"
    harness = build("SoftmaxWithLoss", option, x=random(3, 4), t=np.ones(3))
    assert harness.forward()[0] == 0
    harness.backward()
    assert not harness.bottom[0].diff.any()


def test_a_loss_that_is_not_a_number_stays_so():
    x = random(3, 4)
    x[1, 2] = np.nan
    assert np.isnan(build("SoftmaxWithLoss", x=x, t=np.zeros(3)).forward()[0])


def test_accuracy_counts_ties_against_the_label():
    x = np.array([[1.0, 1, 0], [2, 1, 0], [0, 1, 2]])
    labels = np.array([0.0, 0, 1])
    assert build("Accuracy", x=x, t=labels).forward()[0] == pytest.approx(1 / 3)
    top2 = build("Accuracy", "accuracy_param { top_k: 2 }", x=x, t=labels)
    assert top2.forward()[0] == pytest.approx(1)


def test_accuracy_of_each_class():
    x = np.eye(3)[[0, 1, 1, 2]]
    total, classes = build("Accuracy", tops=2, x=x, t=np.array([0.0, 1, 0, 0])).forward()
    assert total == pytest.approx(0.5)
    np.testing.assert_allclose(classes, [1 / 3, 1, 0])


def test_seg_accuracy_adds_up_without_reset():
    scores = np.array([[[[2.0, 0, 0, 2]], [[1, 1, 1, 1]], [[0, 0, 0, 0]]]])
    first, second = (
        np.array(labels, float).reshape(1, 1, 1, 4) for labels in ([0, 1, 1, 1], [0] * 4)
    )
    once = build("SegAccuracy", x=scores, t=first)
    np.testing.assert_allclose(once.forward()[0].ravel(), [3 / 4, 5 / 6, (1 / 2 + 2 / 3 + 1) / 3])
    np.testing.assert_allclose(
        once.forward({"t": second})[0].ravel(), [1 / 2, 1 / 2, (1 / 2 + 1) / 3]
    )
    summing = build("SegAccuracy", "seg_accuracy_param { reset: false }", x=scores, t=first)
    summing.forward()
    both = summing.forward({"t": second})[0].ravel()
    np.testing.assert_allclose(both, [5 / 8, (3 / 5 + 2 / 3) / 2, (3 / 6 + 2 / 5 + 1) / 3])


def test_seg_accuracy_predicts_the_last_of_equal_classes():
    scores, labels = np.ones((1, 3, 1, 2)), np.array([2.0, 0]).reshape(1, 1, 1, 2)
    assert build("SegAccuracy", x=scores, t=labels).forward()[0].ravel()[0] == 0.5


@pytest.mark.parametrize("label", [3, -1, np.nan, 1e12])
def test_seg_accuracy_names_a_label_that_is_no_class(label):
    labels = np.array([[[[0, 255, label]]]])
    harness = build(
        "SegAccuracy", "seg_accuracy_param { ignore_label: 255 }", x=np.ones((1, 3, 1, 3)), t=labels
    )
    with pytest.raises(
        LayerError, match=r"of sample 0 in bottom 't' \(1, 1, 1, 3\) is none of the 3"
    ):
        harness.forward()


def test_upsample_puts_values_where_the_mask_says():
    x, mask = np.array([[[[5.0, 6, 7]]]]), np.array([[[[3.0, 0, 3]]]])
    harness = build("Upsample", "upsample_param { upsample_h: 2 upsample_w: 2 }", x=x, mask=mask)
    np.testing.assert_array_equal(harness.forward()[0], [[[[6, 0], [0, 7]]]])


def test_unpooling_puts_values_where_the_mask_says():
    x, mask = np.array([[[[5.0, 6, 7]]]]), np.array([[[[4.0, 0, 5]]]])
    harness = build("Unpooling", "unpooling_param { unpool_h: 2 unpool_w: 3 }", x=x, mask=mask)
    np.testing.assert_array_equal(harness.forward()[0], [[[[6, 0, 0], [0, 5, 7]]]])


def test_eltwise_accuracy_takes_the_last_of_equal_classes():
    scores = np.array([[1.0, 5, 2], [3, 5, 2], [3, 0, 2]]).reshape(1, 3, 1, 3)
    labels = np.array([2.0, 1, 255]).reshape(1, 1, 1, 3)
    options = "eltwise_accuracy_param { top_k: %d ignore_label: 255 }"
    for wrong, top_k, expected in (
        (labels, 1, 1),
        (labels - [2, 1, 0], 1, 0),
        (labels - [1, 1, 0], 2, 1),
    ):
        found = build("EltwiseAccuracy", options % top_k, x=scores, t=wrong).forward()[0]
        assert found == expected


@pytest.mark.parametrize("index", [-1, 4, np.nan])
def test_upsample_names_an_index_beyond_its_top(index):
    options = "upsample_param { upsample_h: 2 upsample_w: 2 }"
    harness = build(
        "Upsample", options, x=np.ones((1, 2, 1, 1)), mask=np.array([[[[0]], [[index]]]])
    )
    with pytest.raises(
        LayerError, match=r"at 1 of mask 'mask' .* is not in the top's images of 2 by 2"
    ):
        harness.forward()


def test_infogain_reads_its_matrix_from_a_file(tmp_path):
    gain = random(5, 5)
    message = caffe_pb2.BlobProto(data=gain.reshape(-1))
    message.shape.dim.extend([1, 1, 5, 5])
    path = tmp_path / "gain.binaryproto"
    path.write_bytes(message.SerializeToString())
    x, t = random(4, 5), np.array([0.0, 1, 2, 4])
    option = f'infogain_loss_param {{ source: "{path}" }}'
    found = build("InfogainLoss", option, x=x, t=t).forward()[0]
    expected = build("InfogainLoss", x=x, t=t, h=gain.astype(np.float32)).forward()[0]
    assert found == pytest.approx(float(expected))


# Blobs that share memory, and sources


def test_split_flatten_and_reshape_copy_nothing():
    for type, options in (
        ("Split", ""),
        ("Flatten", ""),
        ("Reshape", "reshape_param { shape { dim: -1 } }"),
    ):
        harness = build(type, options, x=random(2, 3, 4))
        assert harness.top[0].shares_data_with(harness.bottom[0])
        bigger = random(4, 3, 4)
        np.testing.assert_array_equal(harness.forward({"x": bigger})[0].ravel(), bigger.ravel())


def test_a_kernel_may_be_too_large_by_less_than_a_stride():
    options = "num_output: 1 kernel_size: 3 stride: 2 bias_term: false"
    weights = np.arange(9.0).reshape(1, 1, 3, 3)
    harness = build(
        "Convolution",
        f"convolution_param {{ {options} }}",
        x=np.array([[[[1.0, 10.0], [100.0, 1000.0]]]]),
        parameters=[weights],
    )
    np.testing.assert_array_equal(harness.forward()[0], [[[[4310.0]]]])


def test_flatten_of_no_axis_adds_one():
    harness = build("Flatten", "flatten_param { axis: 1 end_axis: 0 }", x=random(2, 3))
    assert harness.top[0].shape == (2, 1, 3)


def test_a_maximum_has_no_use_for_its_coefficients():
    options = "eltwise_param { operation: MAX coeff: 2 coeff: 0 }"
    x = {"a": np.array([1.0, 4.0]), "b": np.array([3.0, 2.0])}
    np.testing.assert_array_equal(build("Eltwise", options, **x).forward()[0], [3.0, 4.0])


def test_clip_gives_min_where_it_is_above_max():
    harness = build("Clip", "clip_param { min: 0.5 max: 0 }", x=np.array([-1.0, 0.2, 1.0]))
    np.testing.assert_array_equal(harness.forward()[0], [0.5, 0.5, 0.5])


def test_filter_takes_the_chosen_samples():
    x = random(4, 3)
    harness = build("Filter", x=x, s=np.array([0.0, 1, 0, 1]))
    np.testing.assert_array_equal(harness.forward()[0], x[[1, 3]])
    np.testing.assert_array_equal(harness.forward({"s": np.ones(4)})[0], x)
    assert harness.forward({"s": np.zeros(4)})[0].shape == (0, 3)


def test_dummy_data_draws_only_what_is_random():
    options = (
        "dummy_data_param { shape { dim: 2 dim: 3 } "
        "data_filler { type: 'constant' value: 7 } data_filler { type: 'gaussian' std: 1 } }"
    )
    harness = build("DummyData", options, 2)
    first = harness.forward()  # sets the random state
    harness.layer.forward(harness.bottom, harness.top)
    second = [blob.data for blob in harness.top]
    assert (first[0] == 7).all() and (second[0] == 7).all()
    assert (first[1] != second[1]).all()


def test_dummy_data_with_old_sizes():
    options = "dummy_data_param { num: 2 num: 5 channels: 3 height: 1 width: 4 }"
    first, second = build("DummyData", options, 2).forward()
    assert first.shape == (2, 3, 1, 4) and second.shape == (5, 3, 1, 4)
    assert not first.any()


def test_input_takes_one_shape_or_one_per_top():
    one = build("Input", "input_param { shape { dim: 2 dim: 3 } }", 2)
    assert [blob.shape for blob in one.top] == [(2, 3), (2, 3)]
    two = build("Input", "input_param { shape { dim: 2 } shape { dim: 3 } }", 2)
    assert [blob.shape for blob in two.top] == [(2,), (3,)]
    two.top[0].reshape(9)
    two.forward()
    assert two.top[0].shape == (9,)


def test_a_layer_keeps_the_weights_it_got():
    text = (
        'name: "l" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 }'
    )
    given = build("InnerProduct", "inner_product_param { num_output: 2 }", x=random(2, 3)).layer
    param = text_format.Parse(text, caffe_pb2.LayerParameter())
    layer = layer_class("InnerProduct")(param, LayerContext())
    layer.blobs = list(given.blobs)
    harness = build("Split", tops=1, x=random(2, 3))
    layer.setup(harness.bottom, harness.top)
    assert layer.blobs == given.blobs
