"""Layers of forks without golden cases: exports compute what pcaffe does, over random inputs."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting import checking, export_net
from pycaffe_dist.exporting.onnx.models import Session, model_of
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.exporting.torch.exporting import Module
from pycaffe_dist.exporting.torch.module import source_of
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

ANCHORS = "ratio: 0.5 ratio: 1 ratio: 2 scale: 2 scale: 4"
FIELDS = "field_w: 24 field_h: 40 downsample_rate: 8 field_w: 60 field_h: 60 downsample_rate: 16"
LAYERS = {
    "Proposal": (
        f"proposal_param {{ {ANCHORS} min_size: 20 nms_thresh: 0.6 pre_nms_topn: 150 "
        "post_nms_topn: 30 }",
        [(2, 12, 7, 9), (2, 24, 7, 9), (2, 3)],
        2,
    ),
    "Proposal with two scales and few boxes": (
        f"proposal_param {{ {ANCHORS} feat_stride: 8 min_size: 9 post_nms_topn: 4 }}",
        [(3, 12, 4, 5), (3, 24, 4, 5), (3, 4, 1, 1)],
        1,
    ),
    "BoxOutput": (
        f"box_output_param {{ {FIELDS} fg_thr: 0.5 max_nms_num: 40 max_post_nms_num: 12 }} "
        "bbox_reg_param { bbox_mean: 0.1 bbox_mean: 0 bbox_mean: 0 bbox_mean: 0.2 "
        "bbox_std: 0.2 bbox_std: 0.2 bbox_std: 0.4 bbox_std: 0.4 }",
        [(2, 7, 8, 10), (2, 7, 4, 5)],
        2,
    ),
    "BoxOutput of all boxes": (
        f"box_output_param {{ {FIELDS} }}",
        [(1, 6, 8, 10), (1, 6, 4, 5)],
        1,
    ),
    "BoxOutput without any box": (
        f"box_output_param {{ {FIELDS} fg_thr: 100 }}",
        [(2, 6, 8, 10), (2, 6, 4, 5)],
        2,
    ),
    "InnerProduct of unit length": (
        "inner_product_param { num_output: 4 normalize: true weight_filler { type: 'gaussian' "
        "std: 2 } }",
        [(3, 5)],
        1,
    ),
    "ChannelScale": ("", [(2, 3, 4, 5), (2, 1, 4, 5)], 1),
    "Chnwise": ("chnwise_param { coeff: 2 coeff: -0.5 }", [(2, 3, 4, 5), (2, 3)], 1),
    "SeLu": ("selu_param { alpha: 1.5 }", [(2, 3, 4)], 1),
    "PriorBoxClustered": (
        "prior_box_param { width: 20 width: 33 height: 10 height: 44 variance: 0.1 step: 16 }",
        [(1, 3, 4, 5), (1, 3, 64, 80)],
        1,
    ),
}


def net_of(name):
    """Return a net of one layer."""
    options, shapes, tops = LAYERS[name]
    param = caffe_pb2.NetParameter(name="one")
    param.state.phase = caffe_pb2.TEST
    for index, shape in enumerate(shapes):
        source = param.layer.add(name=f"in{index}", type="Input", top=[f"x{index}"])
        source.input_param.shape.add(dim=shape)
    layer = text_format.Parse(options, caffe_pb2.LayerParameter())
    layer.name, layer.type = "l", name.split()[0]
    layer.bottom.extend(f"x{index}" for index in range(len(shapes)))
    layer.top.extend(f"y{index}" for index in range(tops))
    param.layer.append(layer)
    return Net(param)


MARGINS = {
    f"{kind} {name}": (kind, f"num_output: 6 type: {name} {options}")
    for kind in ("MarginInnerProduct", "LargeMarginInnerProduct")
    for name, options in (
        ("SINGLE", "base: 3"),
        ("DOUBLE", "base: 10 gamma: 0.12 lambda_min: 5"),
        ("TRIPLE", "lambda_min: 0.5 iteration: 40"),
        ("QUADRUPLE", "base: 2 gamma: 1 power: 0.5 axis: 2"),
    )
}


@pytest.mark.parametrize("name", MARGINS)
def test_torch_has_the_products_with_a_margin_and_their_gradients(name):
    torch = pytest.importorskip("torch")
    kind, options = MARGINS[name]
    field = "margin" if kind == "MarginInnerProduct" else "largemargin"
    param = caffe_pb2.NetParameter(name="one", force_backward=True)
    shape = (2, 3, 5) if "axis" in options else (6, 5)
    for blob, sizes in (("x", shape), ("label", (6,))):
        source = param.layer.add(name=blob, type="Input", top=[blob])
        source.input_param.shape.add(dim=sizes)
    layer = caffe_pb2.LayerParameter(name="l", type=kind, bottom=["x", "label"], top=["y", "share"])
    text_format.Parse(f"{field}_inner_product_param {{ {options} }}", layer)
    param.layer.append(layer)
    net, rng = Net(param), np.random.default_rng(1)
    product = net.layers[-1]
    product.blobs[0].data[...] = rng.standard_normal((6, 5))
    steps = steps_of(net, training=True)
    text, source = source_of(net, steps)
    module = Module(text, source.title, source.state, training=True).net
    for _ in range(3):  # in each pass lambda falls
        x, dy = rng.standard_normal(shape), rng.standard_normal((*shape[:-1], 6))
        inputs = {"x": x.astype(np.float32), "label": rng.integers(0, 6, 6).astype(np.float32)}
        ours = checking.forward(net, inputs, {"y": "y", "share": "share"})
        net.blobs["y"].diff[...] = dy
        net.clear_parameter_diffs()
        net.backward()
        given = torch.tensor(inputs["x"], requires_grad=True)
        found = module(given, torch.tensor(inputs["label"]))
        module.zero_grad()
        found["y"].backward(torch.tensor(dy, dtype=torch.float32))
        for theirs, mine in (
            (found["y"], ours["y"]),
            (found["share"], ours["share"]),
            (given.grad, net.blobs["x"].diff),
            (module.l.weight, product.blobs[0].data),
            (module.l.weight.grad, product.blobs[0].diff),
        ):
            assert theirs.shape == mine.shape
            np.testing.assert_allclose(theirs.detach(), mine, rtol=1e-4, atol=1e-5)


BIASES = "bias_base: 0.3 bias_gamma: 0.5 bias_power: 1.5 bias_max: 4 iteration: 2"


@pytest.mark.parametrize("phase", [caffe_pb2.TRAIN, caffe_pb2.TEST])
@pytest.mark.parametrize(
    "kind, options",
    [
        ("LabelSpecificAdd", "label_specific_add_param { bias: -0.4 }"),
        ("LabelSpecificAdd", f"label_specific_add_param {{ {BIASES} }}"),
        ("LabelSpecificRescale", "label_specific_rescale_param { positive_weight: 0.5 }"),
        (
            "LabelSpecificRescale",
            "label_specific_rescale_param { negative_weight: 3 rescale_test: true }",
        ),
    ],
)
def test_torch_changes_the_labels_scores(kind, options, phase):
    torch = pytest.importorskip("torch")
    param = caffe_pb2.NetParameter(name="one", force_backward=True)
    param.state.phase = phase
    for blob, sizes in (("x", (6, 5)), ("label", (6,))):
        source = param.layer.add(name=blob, type="Input", top=[blob])
        source.input_param.shape.add(dim=sizes)
    tops = ["y", "bias"] if kind == "LabelSpecificAdd" else ["y"]
    layer = text_format.Parse(options, caffe_pb2.LayerParameter())
    layer.name, layer.type = "l", kind
    layer.bottom.extend(["x", "label"])
    layer.top.extend(tops)
    param.layer.append(layer)
    net, rng = Net(param), np.random.default_rng(1)
    text, source = source_of(net, steps_of(net, training=True))
    module = Module(text, source.title, source.state, training=not phase).net
    for _ in range(3):
        inputs = {"x": rng.standard_normal((6, 5)), "label": rng.integers(0, 5, 6)}
        inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
        ours = checking.forward(net, inputs, {name: name for name in tops})
        net.blobs["y"].diff[...] = dy = rng.standard_normal((6, 5)).astype(np.float32)
        net.backward()
        given = torch.tensor(inputs["x"], requires_grad=True)
        found = module(given, torch.tensor(inputs["label"]))
        found["y"].backward(torch.tensor(dy))
        for name, value in ours.items():
            np.testing.assert_allclose(found[name].detach(), value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(given.grad, net.blobs["x"].diff, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_onnx_runtime_computes_the_same(name):
    net = net_of(name)
    steps = steps_of(net)
    session = Session(model_of(steps).SerializeToString())
    for seed in range(5):
        inputs = checking.random_inputs(steps, steps.inputs, seed)
        found = session.run({key: inputs[key] for key in session.inputs})
        ours = checking.forward(net, inputs, {key: key for key in found})
        for key, value in ours.items():
            assert found[key].shape == value.shape
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_torch_computes_the_same(name):
    pytest.importorskip("torch")
    net = net_of(name)
    steps = steps_of(net, training=True)
    text, source = source_of(net, steps)
    module = Module(text, source.title, source.state, training=False)
    for seed in range(5):
        inputs = checking.random_inputs(steps, steps.inputs, seed)
        found = module.run(inputs)
        ours = checking.forward(net, inputs, {key: key for key in found})
        for key, value in ours.items():
            assert found[key].shape == value.shape
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-4)


def test_proposals_need_32_bits(tmp_path):
    with pytest.raises(NetError, match="16 bits are too few"):
        export_net(net_of("Proposal"), str(tmp_path / "x.onnx"), "onnx", Options(float16=True))
