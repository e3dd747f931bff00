"""Inputs in place of data layers have the shapes that the layers would give."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from layer_runs import GOLDEN, golden_cases

from pycaffe_dist.errors import NetError
from pycaffe_dist.net import Net
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2

PREFIXES = "annotated", "imageseg"


@pytest.mark.parametrize("case", [case for name in PREFIXES for case in golden_cases(name)])
def test_shapes_are_those_of_the_layer(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    net = text_format.Parse(
        (GOLDEN / f"expected/{case}.prototxt").read_text(), caffe_pb2.NetParameter()
    )
    small = "fit_small" in case
    real = Net(net)
    shape = real.blobs["data"].shape
    try:
        replaced = Net(without_sources(net))
    except NetError:
        replaced = Net(without_sources(net, shape[1:]))
    for name, blob in replaced.blobs.items():
        expected = real.blobs[name].shape
        if name == "label" and case.startswith("annotated"):
            expected = (1, 1, 1, 8)
        assert blob.shape == expected or (small and name == "data")
    real.close()
    replaced.close()


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (
            'type: "VideoData" video_data_param { batch_size: 2 new_length: 5 num_segments: 3 } '
            "transform_param { crop_size: 9 }",
            [(2, 30, 9, 9), (2, 1, 1, 1)],
        ),
        (
            'type: "DenseImageData" dense_image_data_param { batch_size: 2 crop_height: 4 '
            "crop_width: 5 is_color: false }",
            [(2, 1, 4, 5), (2, 1, 4, 5)],
        ),
        (
            'type: "Data" data_param { batch_size: 2 } transform_param { resize_param { height: 4 '
            "width: 5 } }",
            [(2, 3, 4, 5), (2,)],
        ),
    ],
)
def test_shapes_of_other_layers(text, shapes):
    param = text_format.Parse(
        f'layer {{ name: "d" top: "data" top: "label" {text} }}', caffe_pb2.NetParameter()
    )
    net = Net(without_sources(param))
    assert [net.blobs[name].shape for name in ("data", "label")] == shapes
    net.close()
