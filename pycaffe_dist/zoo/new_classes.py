"""Nets for other classes: a model's nets with new classifiers, and images of a folder as data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.zoo.means import mean_instead

# Layers with learnt outputs, and the field of their parameters.
_OUTPUTS = {"InnerProduct": "inner_product_param", "Convolution": "convolution_param"}
# New layers learn so many times as fast as the others.
_FASTER = 10


@dataclass(frozen=True)
class Lists:
    """The files of lists of images below ``root``, for training and for tests."""

    root: str
    train: str
    val: str


def classifiers(net: caffe_pb2.NetParameter, place: str) -> list[str]:
    """Return the layers whose outputs are the classes: the last learnt ones before the losses.

    Raises UsageError for a net without them.
    """
    makers = {top: layer for layer in net.layer for top in layer.top if top not in layer.bottom}
    found: dict[str, None] = {}
    for loss in net.layer:
        if loss.type != "SoftmaxWithLoss" or len(loss.bottom) < 2:
            continue
        layer = makers.get(loss.bottom[0])
        while layer is not None and layer.type not in _OUTPUTS and layer.bottom:
            layer = makers.get(layer.bottom[0])
        if layer is not None and layer.type in _OUTPUTS:
            found[layer.name] = None
    if not found:
        raise UsageError(
            f"{place} has no classifier: expected InnerProduct or Convolution layers before a "
            "SoftmaxWithLoss"
        )
    return list(found)


def renew(net: caffe_pb2.NetParameter, names: list[str], suffix: str, classes: int) -> None:
    """Give classifiers new names, so that they start afresh, and ``classes`` outputs.

    They learn faster than the other layers.  Accuracies among as many classes as there are go.
    """
    others = [layer for layer in net.layer if layer.name not in names]
    usual: dict[int, float] = {}  # the learning rates of other layers' weights and biases
    for layer in others:
        for number, param in enumerate(layer.param):
            usual[number] = max(usual.get(number, 0.0), param.lr_mult)
    renamed: dict[str, str] = {}
    for layer in net.layer:
        for blobs in (layer.bottom, layer.top):
            blobs[:] = [renamed.get(blob, blob) for blob in blobs]
        if layer.name not in names:
            continue
        for number, top in enumerate(layer.top):
            if top == layer.name:
                renamed[top] = layer.top[number] = top + suffix
        layer.name += suffix
        options = getattr(layer, _OUTPUTS[layer.type])
        options.num_output = classes
        while len(layer.param) < 1 + options.bias_term:
            layer.param.add()
        for number, param in enumerate(layer.param):
            param.lr_mult = _FASTER * usual.get(number, 1.0)
    for layer in [layer for layer in net.layer if layer.type == "Accuracy"]:
        if layer.accuracy_param.top_k >= classes:
            net.layer.remove(layer)


def read_folders(
    net: caffe_pb2.NetParameter, lists: Lists, channels: int, size: tuple[int, int], place: str
) -> dict[int, caffe_pb2.LayerParameter]:
    """Let the net read the images of ``lists``, resized to ``size``; return its data layers.

    They are by phase.  Means, scales and crops stay.  Raises UsageError.
    """
    found = dict(_data_layers(net))
    if set(found) != {caffe_pb2.TRAIN, caffe_pb2.TEST}:
        raise UsageError(f"{place} needs a data layer with a label for each phase, TRAIN and TEST")
    for phase, layer in found.items():
        batch = _batch_size(layer)
        _check_mean(layer, place)
        for field in ("data_param", "hdf5_data_param", "image_data_param"):
            layer.ClearField(field)
        layer.type = "ImageData"
        param = layer.image_data_param
        train = phase == caffe_pb2.TRAIN
        param.source, param.root_folder = lists.train if train else lists.val, lists.root
        param.new_height, param.new_width = size
        param.batch_size, param.shuffle = batch, train
        param.is_color = channels == 3
    return found


def _data_layers(net: caffe_pb2.NetParameter) -> Iterator[tuple[int, caffe_pb2.LayerParameter]]:
    """Return the layers that bring in images and labels, by the phase that includes them."""
    for layer in net.layer:
        if not layer.bottom and len(layer.top) == 2 and layer.type in ("Data", "ImageData"):
            for rule in layer.include:
                if rule.HasField("phase"):
                    yield rule.phase, layer


def _batch_size(layer: caffe_pb2.LayerParameter) -> int:
    param = layer.data_param if layer.type == "Data" else layer.image_data_param
    return max(1, param.batch_size)


def _check_mean(layer: caffe_pb2.LayerParameter, place: str) -> None:
    """Replace ImageNet's mean file, unless it is there, by its values; raises UsageError."""
    param = layer.transform_param
    if not param.mean_file or os.path.exists(param.mean_file):
        return
    mean = mean_instead(param.mean_file, f"{place}: layer '{layer.name}'")
    param.ClearField("mean_file")
    param.mean_value.extend(mean)
