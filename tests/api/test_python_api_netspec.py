"""Net specifications and coordinate maps."""

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist import layers as L
from pycaffe_dist import params as P
from pycaffe_dist.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    coord_map,
    coord_map_from_to,
    crop,
    inverse,
)
from pycaffe_dist.errors import UsageError
from pycaffe_dist.net_spec import Function, param_name_dict

# The text format of pycaffe's to_proto for the net of `specification`.
EXPECTED = """\
layer {
  name: "data"
  type: "Data"
  top: "data"
  top: "label"
  include {
    phase: TRAIN
    stage: "a"
    stage: "b"
  }
  transform_param {
    scale: 0.5
    mean_value: 1
    mean_value: 2
  }
  data_param {
    source: "x"
    batch_size: 3
    backend: LMDB
  }
}
layer {
  name: "conv"
  type: "Convolution"
  bottom: "data"
  top: "conv"
  param {
    lr_mult: 1
  }
  param {
    lr_mult: 2
  }
  convolution_param {
    num_output: 20
    kernel_size: 5
    weight_filler {
      type: "xavier"
    }
  }
}
layer {
  name: "relu"
  type: "ReLU"
  bottom: "conv"
  top: "conv"
}
layer {
  name: "Pooling1"
  type: "Pooling"
  bottom: "conv"
  top: "Pooling1"
  pooling_param {
    pool: AVE
    kernel_size: 2
  }
}
layer {
  name: "first"
  type: "Slice"
  bottom: "Pooling1"
  top: "first"
  top: "Slice1"
  slice_param {
    slice_point: 3
  }
}
layer {
  name: "quiet"
  type: "Silence"
  bottom: "first"
}
layer {
  name: "py"
  type: "Python"
  bottom: "Slice1"
  bottom: "label"
  top: "py"
  loss_weight: 2.5
  python_param {
    module: "m"
    layer: "X"
    param_str: "{\\'a\\': 1}"
  }
}
"""


def specification():
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        source="x",
        backend=P.Data.LMDB,
        batch_size=3,
        transform_param={"scale": 0.5, "mean_value": [1, 2]},
        include={"phase": caffe.TRAIN, "stage": ["a", "b"]},
        ntop=2,
    )
    n.conv = L.Convolution(
        n.data,
        kernel_size=5,
        num_output=20,
        weight_filler={"type": "xavier"},
        param=[{"lr_mult": 1}, {"lr_mult": 2}],
    )
    n["relu"] = L.ReLU(n.conv, in_place=True)
    n.first, rest = L.Slice(
        L.Pooling(n["relu"], pool=P.Pooling.AVE, kernel_size=2), slice_point=3, ntop=2
    )
    n.quiet = L.Silence(n.first, ntop=0)
    n.py = L.Python(rest, n.label, module="m", layer="X", param_str="{'a': 1}", loss_weight=2.5)
    return n


def test_a_specification_as_text():
    assert str(specification().to_proto()) == EXPECTED


def test_tops_alone_get_automatic_names():
    net = L.Softmax(L.ReLU(L.Input(shape={"dim": [1, 2]}), in_place=True)).to_proto()
    assert [layer.name for layer in net.layer] == ["Input1", "ReLU1", "Softmax1"]
    assert list(net.layer[2].bottom) == ["Input1"]
    both = caffe.to_proto(data := L.Input(shape={"dim": [1]}), L.Power(data))
    assert [layer.type for layer in both.layer] == ["Input", "Power"]


def test_a_tuple_counts_as_a_list():
    net = L.Convolution(L.Input(), kernel_size=(3, 5), num_output=np.int64(2)).to_proto()
    assert list(net.layer[1].convolution_param.kernel_size) == [3, 5]


def test_layers_with_another_layers_parameters():
    net = L.Deconvolution(L.Input(), num_output=2, kernel_size=4).to_proto()
    assert net.layer[1].convolution_param.num_output == 2


def test_a_specified_net_runs(tmp_path):
    n = caffe.NetSpec()
    n.data = L.DummyData(shape={"dim": [2, 3]}, data_filler={"type": "gaussian"})
    n.ip = L.InnerProduct(n.data, num_output=4, weight_filler={"type": "xavier"})
    path = tmp_path / "net.prototxt"
    path.write_text(str(n.to_proto()))
    assert caffe.Net(path, caffe.TEST).forward()["ip"].shape == (2, 4)


def test_inputs_must_be_tops():
    data = L.DummyData(ntop=2)
    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'"):
        L.Silence(data, ntop=0)


def test_unknown_parameters_are_named():
    with pytest.raises(AttributeError, match=r"no parameter 'kernelsize'; did you mean 'kernel_si"):
        L.Convolution(L.Input(), kernelsize=3).to_proto()
    with pytest.raises(TypeError, match=r"'Convolution1' .* cannot set num_output to 'many'"):
        L.Convolution(L.Input(), num_output="many").to_proto()
    with pytest.raises(AttributeError, match="did you mean 'Pooling'"):
        P.Poolng.MAX  # noqa: B018
    n = caffe.NetSpec()
    n.conv1 = L.Input()
    with pytest.raises(KeyError, match="did you mean 'conv1'"):
        n.conv2  # noqa: B018
    assert not hasattr(n, "other")


def test_names_of_parameters():
    names = param_name_dict()
    assert (names["Convolution"], names["InnerProduct"], names["LRN"]) == (
        "convolution",
        "inner_product",
        "lrn",
    )


def test_the_layers_package_makes_layers():
    assert isinstance(L.AnyTypeAtAll().fn, Function)
    with pytest.raises(AttributeError):
        L.any_lower_case_name  # noqa: B018


def segmentation(kernel=3, stride=1, pad=0, pool=2, up=2, up_pad=0):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 1, 100, 100]})
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=kernel, stride=stride, pad=pad)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=pool, stride=pool)
    n.score = L.ReLU(n.pool)
    n.up = L.Deconvolution(
        n.score, convolution_param={"kernel_size": 2 * up, "stride": up, "pad": up_pad}
    )
    return n


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, 1, 0)),
        ({"pad": 3}, (1, 1, -3)),
        ({"up_pad": 3}, (1, 1, 3)),
        ({"pool": 4, "up": 4}, (1, 1, -1)),
        ({"kernel": 5, "pad": 2}, (1, 1, -1)),
        ({"pool": 2, "up": 1}, (1, 2, 0.5)),
        ({"kernel": [3, 5], "pad": [0, 10]}, (1, 1, [0, -9])),
    ],
)
def test_maps_through_a_net(options, expected):
    n = segmentation(**options)
    axis, scale, shift = coord_map_from_to(n.up, n.data)
    assert axis == expected[0]
    np.testing.assert_allclose(scale, expected[1])
    np.testing.assert_allclose(shift, expected[2])


def test_crop_moves_a_prediction_onto_its_image():
    n = segmentation(pad=7)
    cut = crop(n.up, n.data)
    assert cut.fn.params == {"crop_param": {"axis": 2, "offset": [7]}}
    assert cut.fn.inputs == (n.up, n.data)
    _, scale, shift = coord_map_from_to(cut, n.data)
    assert (scale, shift) == (1, 0)


def test_impossible_crops():
    for options in ({"up_pad": 10}, {"pool": 3}, {"kernel": 4}):
        n = segmentation(**options)
        with pytest.raises(AssertionError, match="cannot crop") as caught:
            crop(n.up, n.data)
        assert isinstance(caught.value, UsageError)
    with pytest.raises(AssertionError, match="not kernel_h"):
        coord_map(L.Convolution(L.Input(), kernel_h=3, kernel_w=3).fn)


def test_layers_without_a_coordinate_map():
    n = segmentation()
    n.ip = L.InnerProduct(n.up, num_output=2)
    with pytest.raises(RuntimeError, match="no map between"):
        coord_map_from_to(n.ip, n.data)
    with pytest.raises(UndefinedMapException, match="InnerProduct"):
        coord_map(n.ip.fn)
    with pytest.raises(AxisMismatchException):
        compose((1, 2, 0), (2, 1, 0))


def test_maps_compose_and_invert():
    assert compose((None, 1, 0), (1, 2.0, 3.0)) == (1, 2.0, 3.0)
    assert compose((1, 2.0, 1.0), (1, 3.0, 5.0)) == (1, 6.0, 11.0)
    assert compose((1, 2.0, 1.0), inverse((1, 2.0, 1.0))) == (1, 1.0, 0.0)
