"""The Python API, used as pycaffe's users use it."""

import sys
from pathlib import Path

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist.errors import DeviceError, UsageError
from pycaffe_dist.gpu import finding

GOLDEN = Path(__file__).parent.parent / "golden" / "solver"

NET = """
name: 'small' force_backward: true
layer { name: 'data' type: 'Input' top: 'data'
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'fc' type: 'InnerProduct' bottom: 'conv' top: 'fc'
  inner_product_param { num_output: 5 weight_filler { type: 'xavier' } } }
layer { name: 'prob' type: 'Softmax' bottom: 'fc' top: 'prob' }
layer { name: 'extra' type: 'Power' bottom: 'fc' top: 'extra' include { stage: 'more' } }
"""


@pytest.fixture
def prototxt(tmp_path):
    path = tmp_path / "small.prototxt"
    path.write_text(NET)
    return str(path)


@pytest.fixture
def net(prototxt):
    caffe.set_random_seed(3)
    return caffe.Net(prototxt, caffe.TEST)


def test_names_and_shapes(net):
    assert net.inputs == ["data"]
    assert net.outputs == ["prob"]
    assert list(net.blobs) == ["data", "conv", "fc", "prob"]
    assert list(net.params) == ["conv", "fc"]
    assert net.params["conv"][0].data.shape == (4, 3, 3, 3)
    assert [layer.type for layer in net.layers][:2] == ["Input", "Convolution"]
    blob = net.blobs["data"]
    assert (blob.num, blob.channels, blob.height, blob.width) == (2, 3, 8, 8)


def test_data_is_a_writable_view(net):
    net.blobs["data"].data[...] = 1
    first = net.forward()["prob"].copy()
    net.params["fc"][1].data[2] += 10
    second = net.forward()["prob"]
    assert second[0].argmax() == 2
    assert not np.allclose(first, second)


def test_forward_with_arrays(net):
    images = np.random.default_rng(0).random((2, 3, 8, 8))
    out = net.forward(data=images, blobs=["fc"])
    assert set(out) == {"prob", "fc"}
    np.testing.assert_allclose(out["prob"].sum(axis=1), 1, rtol=1e-5)


def test_forward_refuses_arrays_that_do_not_fit(net):
    with pytest.raises(UsageError, match=r"given for \['dta'\], the net's inputs are \['data'\]"):
        net.forward(dta=np.zeros((2, 3, 8, 8)))
    with pytest.raises(UsageError, match="not batch sized"):
        net.forward(data=np.zeros((1, 3, 8, 8)))


def test_forward_from_and_to_a_layer(net):
    net.forward()
    net.blobs["fc"].data[...] = [[0, 0, 9, 0, 0]] * 2
    assert net.forward(start="prob")["prob"][0].argmax() == 2
    assert list(net.forward(end="fc")) == ["fc"]


def test_backward_with_diffs(net):
    net.forward(data=np.ones((2, 3, 8, 8)))
    diff = np.zeros((2, 5))
    diff[:, 1] = 1
    out = net.backward(prob=diff, diffs=["fc"])
    assert set(out) == {"data", "fc"}
    assert np.abs(out["data"]).sum() > 0
    net.clear_param_diffs()
    assert not net.params["fc"][0].diff.any()


def test_reshape(net):
    net.blobs["data"].reshape(5, 3, 8, 8)
    net.reshape()
    assert net.blobs["prob"].data.shape == (5, 5)


def test_stages_and_levels(prototxt):
    assert "extra" in caffe.Net(prototxt, caffe.TEST, stages=["more"]).blobs
    assert "extra" not in caffe.Net(prototxt, caffe.TEST, level=1).blobs


def test_saving_copying_and_sharing(net, prototxt, tmp_path):
    path = str(tmp_path / "small.caffemodel")
    net.save(path)
    for other in (
        caffe.Net(prototxt, caffe.TEST, weights=path),
        caffe.Net(prototxt, path, caffe.TEST),
    ):
        np.testing.assert_array_equal(other.params["fc"][0].data, net.params["fc"][0].data)
    caffe.set_random_seed(4)
    other = caffe.Net(prototxt, caffe.TEST)
    assert not np.array_equal(other.params["fc"][0].data, net.params["fc"][0].data)
    other.share_with(net)
    net.params["fc"][0].data[...] = 7
    np.testing.assert_array_equal(other.params["fc"][0].data, 7)


def test_a_net_needs_a_phase(prototxt):
    with pytest.raises(UsageError, match="phase"):
        caffe.Net(prototxt)


def test_solver(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    expected = np.load("expected_sgd.npz")["losses"]
    solver = caffe.get_solver("solver_sgd.prototxt")
    solver.net.copy_from("init.caffemodel")
    losses = []
    for _ in range(3):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert solver.iter == 3
    np.testing.assert_allclose(losses, expected[:3], rtol=1e-3)


def test_solver_classes_choose_the_method(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    solver = caffe.AdamSolver("solver_sgd.prototxt")
    assert solver.param.type == "Adam"


def test_snapshot_and_restore(monkeypatch, tmp_path):
    monkeypatch.chdir(GOLDEN)
    solver = caffe.SGDSolver("solver_sgd.prototxt")
    solver.param.snapshot_prefix = str(tmp_path / "small")
    solver.step(2)
    solver.snapshot()
    again = caffe.SGDSolver("solver_sgd.prototxt")
    again.restore(str(tmp_path / "small_iter_2.solverstate.h5"))
    assert again.iter == 2
    np.testing.assert_array_equal(again.net.params["ip1"][0].data, solver.net.params["ip1"][0].data)


def test_modes(monkeypatch):
    caffe.set_mode_cpu()
    finding.count.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", None)  # it cannot be imported
    with pytest.raises(DeviceError, match=r"needs CuPy.*call set_mode_cpu"):
        caffe.set_mode_gpu()


def test_type_lists():
    assert {"Convolution", "Data", "SoftmaxWithLoss"} <= set(caffe.layer_type_list())
    assert "Adam" in caffe.solver_type_list()
