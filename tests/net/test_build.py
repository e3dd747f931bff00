"""How layers are connected, which of them run backward, and errors of bad nets."""

import numpy as np
import pytest
from nets import build, input_layer, ip, parse

from pycaffe_dist.errors import LayerError, NetError
from pycaffe_dist.layers import layer_class
from pycaffe_dist.log import DETAIL
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

LOSS = "layer { name: 'loss' type: 'EuclideanLoss' bottom: '%s' bottom: 'label' top: 'loss' }"
DATA = input_layer("data", 2, 3) + input_layer("label", 2, 4)


def needs_backward(net: Net) -> set[str]:
    return {node.name for node in net.nodes if node.need_backward}


def test_inputs_do_not_need_backward():
    net = build(DATA + ip("a", "data", 5) + ip("b", "a", 4) + LOSS % "b")
    assert needs_backward(net) == {"a", "b", "loss"}
    assert [node.propagate_down for node in net.nodes if node.name in "ab"] == [[False], [True]]
    assert net.inputs == ["data", "label"]
    assert net.outputs == ["loss"]


def test_layers_that_do_not_reach_the_loss_are_skipped():
    net = build(DATA + ip("a", "data", 4) + LOSS % "a" + ip("side", "a", 2))
    assert needs_backward(net) == {"a", "a_a_0_split", "loss"}
    assert net.outputs == ["loss", "side"]


def test_frozen_layers_are_skipped():
    frozen = "param { lr_mult: 0 } param { lr_mult: 0 }"
    net = build(DATA + ip("a", "data", 5, frozen) + ip("b", "a", 4) + LOSS % "b")
    assert needs_backward(net) == {"b", "loss"}
    assert [p.receives_gradient for p in net.parameters] == [False, False, True, True]


def test_propagate_down_cuts_backward_off():
    net = build(DATA + ip("a", "data", 5) + ip("b", "a", 4, "propagate_down: false") + LOSS % "b")
    assert needs_backward(net) == {"b", "loss"}


def test_propagate_down_can_ask_for_an_inputs_diff():
    net = build(DATA + ip("a", "data", 4, "propagate_down: true") + LOSS % "a")
    net.blobs["data"].data[...] = 1
    net.forward()
    net.backward()
    assert np.abs(net.blobs["data"].diff).sum() > 0


def test_force_backward_reaches_the_input_but_not_labels():
    net = build(
        "force_backward: true "
        + input_layer("data", 2, 3)
        + input_layer("label", 2)
        + ip("a", "data", 4)
        + "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'label' top: 'loss' }"
    )
    net.forward()
    net.backward()
    assert np.abs(net.blobs["data"].diff).sum() > 0
    assert net.nodes[-1].propagate_down == [True, False]


def test_loss_weights_scale_loss_and_gradient():
    losses, diffs = [], []
    for weight in (1, 3):
        loss = LOSS.replace("top: 'loss'", f"top: 'loss' loss_weight: {weight}") % "a"
        net = build(DATA + ip("a", "data", 4) + loss)
        net.blobs["data"].data[...] = np.arange(6).reshape(2, 3)
        losses.append(net.forward())
        net.backward()
        diffs.append(net.parameters[0].blob.diff.copy())
    assert losses[1] == pytest.approx(3 * losses[0])
    np.testing.assert_allclose(diffs[1], 3 * diffs[0])


def test_a_loss_layer_may_leave_its_top_unnamed():
    net = build(DATA + ip("a", "data", 4) + (LOSS % "a").replace("top: 'loss'", ""))
    net.blobs["data"].data[...] = 1
    assert net.forward() > 0
    assert net.outputs == []


def test_gradients_are_announced_once_and_last_layer_first():
    shared = "param { name: 'w' } param { name: 'b' }"
    net = build(
        DATA + ip("a", "data", 3, shared) + ip("b", "a", 3, shared) + ip("c", "b", 4) + LOSS % "c"
    )
    announced = []
    net.forward()
    net.backward(on_gradient_ready=announced.append)
    assert [p.key for p in announced] == ["c[1]", "c[0]", "a[1]", "a[0]"]


def test_reshaping_an_input_reshapes_the_net():
    net = build(input_layer("data", 2, 3) + ip("a", "data", 5))
    net.blobs["data"].reshape(7, 3)
    net.forward()
    assert net.blobs["a"].shape == (7, 5)


def test_input_fields_of_old_nets(tmp_path):
    path = tmp_path / "old.prototxt"
    path.write_text("input: 'data' input_dim: 2 input_dim: 3 input_dim: 4 input_dim: 5")
    net = Net(text.read_net(path))
    assert net.blobs["data"].shape == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("prototxt", "message"),
    [
        ("layer { name: 'x' type: 'Convolutoin' }", "did you mean 'Convolution'"),
        ("layer { name: 'x' }", "layer 'x': no layer type is given"),
        (DATA + ip("a", "data", 2) + ip("b", "nowhere", 2), "unknown bottom blob 'nowhere'"),
        (
            DATA + ip("a", "data", 2) + ip("a2", "data", 2).replace("top: 'a2'", "top: 'a'"),
            "top blob 'a' is already made by layer 'a'",
        ),
        (
            DATA + "layer { name: 's' type: 'Softmax' bottom: 'data' bottom: 'label' top: 's' }",
            r"layer 's' \(Softmax\): takes 1 bottom blob\(s\), 2 are given",
        ),
        (
            DATA + ip("a", "data", 2, "propagate_down: true propagate_down: true"),
            "propagate_down is given 2 times for 1 bottoms",
        ),
        (DATA + ip("a", "data", 2, "param {} param {} param {}"), "3 param are given"),
        (
            DATA + ip("a", "data", 2, "loss_weight: 1 loss_weight: 2"),
            "loss_weight is given 2 times",
        ),
        (DATA + ip("a", "data", 3).replace("top: 'a'", "top: 'data'"), "cannot work in place"),
    ],
)
def test_the_error_of_a_bad_net_says_why(prototxt, message):
    with pytest.raises(NetError, match=message):
        build(prototxt)


def test_errors_name_the_line_of_the_layer(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(input_layer("data", 2, 3) + "\n\n" + ip("a", "data", 0))
    param, places = text.read_net_with_places(path)
    with pytest.raises(LayerError, match=r"net.prototxt:3: layer 'a' \(InnerProduct\)"):
        Net(param, places=places)


def test_an_error_points_at_the_layer_of_its_phase(tmp_path):
    """With two layers of one name for two phases, the error points at the one in use."""
    path = tmp_path / "net.prototxt"
    good = ip("a", "data", 1, "include { phase: TRAIN }")
    bad = ip("a", "data", 0, "include { phase: TEST }")
    path.write_text("\n".join([input_layer("data", 2, 3), good, bad]))
    param, places = text.read_net_with_places(path)
    param.state.phase = caffe_pb2.TEST
    with pytest.raises(LayerError, match=r"net.prototxt:3: layer 'a'"):
        Net(param, places=places)


def test_layers_of_a_filtered_phase_keep_their_own_phase():
    net = build(
        input_layer("data", 4)
        + "layer { name: 'd' type: 'Dropout' phase: TEST bottom: 'data' top: 'd' }"
    )
    net.blobs["data"].data[...] = 1
    net.forward()
    np.testing.assert_array_equal(net.blobs["d"].data, 1)


def test_parsing_does_not_change_the_callers_definition():
    param = parse(DATA + ip("a", "data", 4) + LOSS % "a")
    before = param.SerializeToString()
    Net(param)
    assert param.SerializeToString() == before


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_a_lack_of_memory_names_the_layer(monkeypatch, what):
    loss = "layer { name: 'l' type: 'EuclideanLoss' bottom: 'b' bottom: 'label' top: 'l' }"
    net = build(DATA + ip("a", "data", 5) + ip("b", "a", 4) + loss)
    if what == "backward":
        net.forward()

    def refuse(*arguments):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(net.layers[net.layer_index("b")], what, refuse)
    message = rf"^layer 'b' \(InnerProduct\): {what}: Unable to allocate 9 GiB$"
    with pytest.raises(MemoryError, match=message):
        getattr(net, what)()


# Caffe 1.0's log while it builds the net below, without the softmax inside its loss.
LOG = """
Creating layer data
Creating Layer data
data -> data
data -> label
Setting up data
Top shape: 2 3 (6)
Top shape: 2 (2)
Memory required for data: 32
Creating layer ip
Creating Layer ip
ip <- data
ip -> ip
Setting up ip
Top shape: 2 4 (8)
Memory required for data: 64
Creating layer ip_ip_0_split
Creating Layer ip_ip_0_split
ip_ip_0_split <- ip
ip_ip_0_split -> ip_ip_0_split_0
ip_ip_0_split -> ip_ip_0_split_1
Setting up ip_ip_0_split
Top shape: 2 4 (8)
Top shape: 2 4 (8)
Memory required for data: 128
Creating layer seen
Creating Layer seen
seen <- ip_ip_0_split_0
seen -> seen
Setting up seen
Top shape: 2 1 1 (2)
Memory required for data: 136
Creating layer loss
Creating Layer loss
loss <- ip_ip_0_split_1
loss <- label
loss -> loss
Setting up loss
Top shape: (1)
    with loss weight 2
Memory required for data: 140
loss needs backward computation.
seen does not need backward computation.
ip_ip_0_split needs backward computation.
ip needs backward computation.
data does not need backward computation.
This network produces output loss
This network produces output seen
Network initialization done.
"""


def test_the_log_is_caffes(caplog):
    with caplog.at_level(DETAIL):
        build(
            """
            layer { name: "data" type: "Input" top: "data" top: "label"
              input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
            layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
              inner_product_param { num_output: 4 } }
            layer { name: "seen" type: "ArgMax" bottom: "ip" top: "seen" }
            layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
              loss_weight: 2 }
        """,
            dtype=np.float32,
        )
    lines = [record.getMessage() for record in caplog.records]
    assert lines[lines.index("Creating layer data") :] == LOG.strip().splitlines()


def test_kernel_size_beside_one_side_of_the_kernel():
    """Caffe reads kernel_size then."""
    pool = "layer { name: 'p' type: 'Pooling' bottom: 'data' top: 'p' pooling_param { %s } }"
    data = input_layer("data", 1, 1, 6, 6)
    net = build(data + pool % "kernel_size: 3 kernel_h: 2")
    assert net.blobs["p"].shape == (1, 1, 4, 4)
    for fields in ("kernel_h: 2", "kernel_size: 3 kernel_h: 2 kernel_w: 2", ""):
        with pytest.raises(LayerError, match="either kernel_size or both"):
            build(data + pool % fields)


def test_all_unknown_types_of_a_net_are_named_at_once(tmp_path):
    path = tmp_path / "net.prototxt"
    data = input_layer("data", 1, 3, 4, 4)
    path.write_text(
        data
        + """
layer { name: "a" type: "Correlation" bottom: "data" bottom: "data" top: "a" }
layer { name: "b" type: "Nonsense" bottom: "data" top: "b" }
layer { name: "c" type: "Correlation" bottom: "data" bottom: "data" top: "c" }"""
    )
    net, places = text.read_net_with_places(path)
    with pytest.raises(NetError) as caught:
        Net(net, places=places)
    assert str(caught.value) == (
        f"{path}:2: pcaffe lacks 2 of its layer types: "
        "'Correlation' (line 2, 4, from lmb-freiburg/flownet2), 'Nonsense' (line 3)"
    )
    one = "layer { name: 'a' type: 'Correlation' bottom: 'data' top: 'a' }"
    with pytest.raises(NetError, match="which pcaffe lacks; it comes from lmb-freiburg/flownet2"):
        build(data + one)


def test_memory_that_lacks_while_a_layer_is_set_up(monkeypatch):
    def fail(self, bottom, top):
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr(layer_class("InnerProduct"), "reshape", fail)
    with pytest.raises(MemoryError, match=r"layer 'a' \(InnerProduct\): setup: Unable to allocate"):
        build(DATA + ip("a", "data", 2))
