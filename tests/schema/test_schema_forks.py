"""Prototxts of Caffe's forks: ignored fields, refused fields and their messages."""

from __future__ import annotations

import pytest

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.layers import layer_types
from pycaffe_dist.schema import caffe_pb2, forks, text
from pycaffe_dist.schema.survey import survey
from pycaffe_dist.schema.upgrade import upgrade_net


def _net(prototxt: str) -> caffe_pb2.NetParameter:
    return text.parse(prototxt, caffe_pb2.NetParameter(), "train.prototxt")


def test_the_catalogue_has_only_what_pcaffe_lacks():
    assert sorted(set(forks.TYPES) & set(layer_types())) == []
    messages = caffe_pb2.DESCRIPTOR.message_types_by_name
    for name in forks.FIELDS:
        message, field = name.split(".")
        assert field not in messages[message].fields_by_name, name


def test_the_survey_goes_on_after_unknown_fields():
    prototxt = """name: "n" odd: [1, 2] layer { name: "a" type: 'X' x_param: < y { z: 1 } >
      convolution_param { pad: 1 odder: 2 engine: MKL weight_filler { more: "c" "d" } } }
    layer: [{ type: "Y" name: "b" }, { unknown: -1 name: "c" }] device: 0"""
    found = survey(prototxt, caffe_pb2.NetParameter.DESCRIPTOR)
    assert [(layer.name, layer.type) for layer in found.layers] == [
        ("a", "X"),
        ("b", "Y"),
        ("c", ""),
    ]
    assert [(u.message, u.field, u.value, u.layer and u.layer.name) for u in found.unknown] == [
        ("NetParameter", "odd", "", None),
        ("LayerParameter", "x_param", "", "a"),
        ("ConvolutionParameter", "odder", "2", "a"),
        ("ConvolutionParameter", "engine", "MKL", "a"),
        ("FillerParameter", "more", "", "a"),
        ("LayerParameter", "unknown", "-1", "c"),
        ("NetParameter", "device", "0", None),
    ]
    first, *_, last = found.unknown
    assert prototxt[first.offset : first.end] == "odd: [1, 2]"
    assert prototxt[last.offset : last.end] == "device: 0"


@pytest.mark.parametrize("prototxt", ["layer { a { b", "layer {", "layer: [ {", "a:", "}", "a: [1"])
def test_the_survey_reads_unfinished_texts(prototxt):
    survey(prototxt, caffe_pb2.NetParameter.DESCRIPTOR)


def test_fields_that_change_no_number_are_ignored_with_one_warning(caplog):
    net = _net(
        """default_forward_type: FLOAT16 engine: "MKLDNN"
        layer { name: "c" type: "Convolution" engine: "MKL2017" forward_type: FLOAT
          quantization_param { bw_layer_in: 8 scale_in: 3.5 }
          convolution_param { num_output: 3 engine: MKLDNN kernel_size: 5 } }"""
    )
    assert net.layer[0].convolution_param.num_output == 3
    assert net.layer[0].convolution_param.kernel_size == [5]
    warnings = [record.message for record in caplog.records]
    assert warnings == [
        "train.prototxt: ignored fields of forks that change no number: "
        "default_forward_type, engine, forward_type, quantization_param"
    ]


def test_places_after_an_ignored_field_stay_right():
    with pytest.raises(PrototxtError, match=r"train\.prototxt:3:3: the net has no field 'nam'"):
        _net('mem_param {\n optimize_test: true\n} nam: "x"')


def test_a_field_is_ignored_if_its_value_changes_nothing():
    solver = text.parse("test_offset: 0 base_lr: 1", caffe_pb2.SolverParameter(), "s.prototxt")
    assert solver.base_lr == 1
    with pytest.raises(PrototxtError, match="which comes from intel/caffe and changes numbers"):
        text.parse("test_offset: 3", caffe_pb2.SolverParameter(), "s.prototxt")


def test_fields_of_a_change_that_is_not_made_are_ignored(caplog):
    distortion = "gaussian_prob: %s gaussian_size_min: 2 gaussian_sigma: 8"
    layer = 'layer { type: "Data" transform_param { distort_param { %s } } }'
    _net(layer % (distortion % "0"))
    assert "gaussian_prob, gaussian_size_min, gaussian_sigma" in caplog.text
    with pytest.raises(PrototxtError, match="comes from weiSupreme/MobileNetv2-SSD and changes"):
        _net(layer % (distortion % "0.5"))


def test_batch_norm_gets_the_nets_size_of_statistics():
    net = _net('bn_stats_batch_size: 32 layer { type: "BatchNorm" } layer { type: "ReLU" }')
    assert "moved bn_stats_batch_size" in upgrade_net(net).notes[0]
    assert not net.bn_stats_batch_size
    assert [layer.batch_norm_param.stats_batch_size for layer in net.layer] == [32, 0]


def test_normalize_type_of_softmax_param_is_that_of_normalize():
    net = _net('layer { type: "Normalize" softmax_param { normalize_type: "L1" } }')
    assert "gave Normalize the normalize_param" in upgrade_net(net).notes[0]
    assert net.layer[0].normalize_param.normalize_type == "L1"
    assert not net.layer[0].HasField("softmax_param")


@pytest.mark.parametrize(
    "other",
    [
        'type: "InnerDistance"',
        'type: "Normalize" normalize_param {}',
        'type: "InnerProduct" inner_product_param { normalize: true }',
    ],
)
def test_normalize_without_fields_has_the_form_of_its_net(other):
    bare, scaled = 'layer { type: "Normalize" }', 'layer { type: "Normalize" norm_param {} }'
    net = _net(f"{bare} {scaled} layer {{ {other} }}")
    assert "gave Normalize the normalize_param" in upgrade_net(net).notes[0]
    assert [layer.HasField("normalize_param") for layer in net.layer[:2]] == [True, False]
    assert not upgrade_net(net).notes
    assert not upgrade_net(_net(f"{bare} {scaled}")).notes


def test_a_list_of_gpus():
    solver = text.parse("device_id: [0, 1] base_lr: 1", caffe_pb2.SolverParameter(), "s.prototxt")
    assert solver.device_id == 0


REFUSED = [
    (
        'layer { name: "fc" type: "GlobalLSEMargin"\n global_lse_margin_param { type: 1 } }',
        "1: layer 'fc' is of type 'GlobalLSEMargin', which pcaffe lacks; "
        "it comes from happynear/caffe-windows",
    ),
    (
        'layer { name: "a" type: "Resample" }\nlayer { name: "b" type: "CPMData" p { x: 1 } }'
        '\nlayer { type: "CPMData" }',
        "1: pcaffe lacks 2 of its layer types: 'Resample' (line 1, from lmb-freiburg/flownet2), "
        "'CPMData' (line 2, 3, from ZheC/Realtime_Multi-Person_Pose_Estimation)",
    ),
    (
        'layers { name: "u"\n type: MCWINDOW_DATA }\nlayers { name: "v" type: MCWINDOW_DATA }',
        "1: layer 'u' (and 1 more of its layers) is of type 'MCWINDOW_DATA', which pcaffe lacks; "
        "it comes from Robert0812/deepsaldet",
    ),
    (
        'layer { name: "p" type: "FrcnnProposal" p { } }',
        "1: layer 'p' is of type 'FrcnnProposal', which pcaffe lacks; it comes from "
        "makefile/frcnn; the settings are in a configuration file of the fork, not in the "
        "prototxt",
    ),
    ("layers { name: 'u' type: CONVOLUTON }",
     "1:26: layer 'u' is of the unknown type 'CONVOLUTON'; did you mean 'CONVOLUTION'?"),
    ("layers { name: 'u' type: NONSENSE }", "1:26: layer 'u' is of the unknown type 'NONSENSE'"),
    (
        'layer { name: "n" type: "LRN" lrn_param {\n fuse_type: 1 } }',
        "2:2: layer 'n' (LRN): layer.lrn_param has no field 'fuse_type', which "
        "comes from naibaf7/caffe and changes numbers",
    ),
    (
        'layer { name: "x" type: "Own"\n own_thing_param { } }',
        "2:2: layer 'x' (Own): layer has no field 'own_thing_param'",
    ),
    (
        'layer { name: "x" type: "Pooling"\n poling_param { } }',
        "2:2: layer 'x' (Pooling): layer has no field 'poling_param'; "
        "did you mean 'pooling_param'?",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("prototxt", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_what_is_refused_is_named_with_its_fork(prototxt, message):
    with pytest.raises(PrototxtError) as caught:
        _net(prototxt)
    assert str(caught.value) == f"train.prototxt:{message}"


def test_hole_becomes_dilation():
    net = _net('layer { type: "Convolution" convolution_param { hole: 4 } }')
    assert upgrade_net(net).notes == ("replaced hole by dilation",)
    assert net.layer[0].convolution_param == caffe_pb2.ConvolutionParameter(dilation=[4])
    net = _net("layers { type: CONVOLUTION convolution_param { hole_h: 2 hole_w: 3 } }")
    upgrade_net(net)
    assert net.layer[0].convolution_param.dilation == [2, 3]
    for fields in ("hole: 2 dilation: 2", "hole_h: 2"):
        net = _net(f"layer {{ name: 'c' convolution_param {{ {fields} }} }}")
        with pytest.raises(PrototxtError, match="layer 'c' needs one of dilation, hole"):
            upgrade_net(net)


def test_v1_layers_of_forks():
    net = _net("""layers { type: BN bn_param { bn_mode: INFERENCE } }
        layers { type: INTERP interp_param { zoom_factor: 8 } }
        layers { type: SEG_ACCURACY seg_accuracy_param { ignore_label: 255 } }
        layers { type: IMAGE_SEG_DATA image_data_param { label_type: PIXEL } }""")
    upgrade_net(net)
    assert [layer.type for layer in net.layer] == ["BN", "Interp", "SegAccuracy", "ImageSegData"]
    assert net.layer[0].bn_param.bn_mode == caffe_pb2.BNParameter.INFERENCE
    assert net.layer[1].interp_param.zoom_factor == 8
    assert net.layer[2].seg_accuracy_param.ignore_label == [255]
