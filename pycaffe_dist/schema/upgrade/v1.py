"""Upgrades V1 layers, whose types are enum values, to today's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from pycaffe_dist.schema import caffe_pb2

TYPES = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
    # Forks.
    "BN": "BN",
    "INTERP": "Interp",
    "SEG_ACCURACY": "SegAccuracy",
    "IMAGE_SEG_DATA": "ImageSegData",
    "UNPOOLING": "Unpooling",
    "ELTWISE_ACCURACY": "EltwiseAccuracy",
    "WINDOW_SEG_DATA": "WindowSegData",
    "CROP": "Crop",
}

_TRANSFORMED = {
    "DATA": "data_param",
    "IMAGE_DATA": "image_data_param",
    "WINDOW_DATA": "window_data_param",
}
# V1 lists with one entry for each parameter: the field of ParamSpec that they became.
_PER_PARAMETER = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}


def _type_name(layer: caffe_pb2.V1LayerParameter) -> str:
    return caffe_pb2.V1LayerParameter.LayerType.Name(layer.type)


def move_transformations(net: caffe_pb2.NetParameter) -> bool:
    """Move image fields of V1 data layers to transform_param; tell whether there were any."""
    moved = False
    for layer in net.layers:
        source_name = _TRANSFORMED.get(_type_name(layer))
        if source_name is None or not layer.HasField(source_name):
            continue
        source = getattr(layer, source_name)
        for name in ("scale", "mean_file", "crop_size", "mirror"):
            if source.HasField(name):
                setattr(layer.transform_param, name, getattr(source, name))
                source.ClearField(name)
                moved = True
    return moved


def upgrade_v1_layers(net: caffe_pb2.NetParameter) -> None:
    """Turn a net's V1 layers into today's, in place."""
    for old in net.layers:
        layer = net.layer.add()
        for field, value in old.ListFields():
            if field.name == "type":
                layer.type = TYPES[_type_name(old)]
            elif field.name in _PER_PARAMETER:
                _spread(layer, _PER_PARAMETER[field.name], value)
            else:
                put(layer, field.name, value)
    net.ClearField("layers")


def put(message: Message, name: str, value: Any) -> None:
    """Set a field to a value of its kind; lists and messages are copied, a single value for a
    repeated field is appended."""
    target = getattr(message, name)
    if hasattr(value, "append"):
        target.MergeFrom(value)
    elif hasattr(target, "append"):
        target.append(value)
    elif isinstance(value, Message):
        target.CopyFrom(value)
    else:
        setattr(message, name, value)


def _spread(layer: caffe_pb2.LayerParameter, name: str, values: Sequence[Any]) -> None:
    while len(layer.param) < len(values):
        layer.param.add()
    for param, value in zip(layer.param, values):
        setattr(param, name, value)
