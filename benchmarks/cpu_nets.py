"""The nets of cpu.py: Caffe's prototxts with Input layers in place of data layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import filter_layers, kept_layers, with_state
from pycaffe_dist.schema import caffe_pb2, text

DATA_LAYERS = ("Data", "ImageData", "HDF5Data", "DummyData", "MemoryData", "Input")


@dataclass(frozen=True)
class BenchmarkNet:
    """A net of the model folder, and its training data."""

    path: str
    batch: int
    image: tuple[int, ...]
    classes: int

    def read(self, models: Path) -> Any:
        """Return its NetParameter in the TRAIN phase, with an Input layer for its data."""
        param = text.read_net(str(models / self.path))
        param = with_state(param, caffe_pb2.TRAIN, 0, [])
        param = filter_layers(param, kept_layers(param))
        old = next(layer for layer in param.layer if layer.type in DATA_LAYERS)
        layers = [layer for layer in param.layer if layer is not old]
        data = caffe_pb2.LayerParameter(name=old.name, type="Input", top=list(old.top))
        data.input_param.shape.add(dim=[self.batch, *self.image])
        data.input_param.shape.add(dim=[self.batch])
        del param.layer[:]
        param.layer.extend([data, *layers])
        return param


NETS = {
    "LeNet": BenchmarkNet("lenet/lenet_train_test.prototxt", 64, (1, 28, 28), 10),
    "CIFAR-10 quick": BenchmarkNet(
        "cifar10_quick/cifar10_quick_train_test.prototxt", 100, (3, 32, 32), 10
    ),
    "CIFAR-10 full": BenchmarkNet(
        "cifar10_full/cifar10_full_train_test.prototxt", 100, (3, 32, 32), 10
    ),
    "CaffeNet": BenchmarkNet("bvlc_reference_caffenet/train_val.prototxt", 32, (3, 227, 227), 1000),
    "VGG-16": BenchmarkNet("vgg16/train_val.prototxt", 4, (3, 224, 224), 1000),
    "GoogLeNet": BenchmarkNet("bvlc_googlenet/train_val.prototxt", 16, (3, 224, 224), 1000),
    "ResNet-50": BenchmarkNet("resnet50/train_val.prototxt", 8, (3, 224, 224), 1000),
    "SqueezeNet v1.1": BenchmarkNet("squeezenet_v1.1/train_val.prototxt", 16, (3, 227, 227), 1000),
    "MobileNet v1": BenchmarkNet("mobilenet_v1/train_val.prototxt", 16, (3, 224, 224), 1000),
}


def describe(net: Net, classes: int) -> list[dict[str, Any]]:
    """Return the layers of a net, without its splits, for another framework to rebuild."""
    real: dict[str, str] = {}  # a split's tops stand for its bottom
    layers = []
    for node in net.nodes:
        bottom = [real.get(name, name) for name in node.bottom_names]
        if node.layer.type == "Split":
            real.update(dict.fromkeys(node.top_names, bottom[0]))
            continue
        layer = {
            "type": node.layer.type,
            "bottom": bottom,
            "top": node.top_names,
            "loss_weight": node.layer.loss_weights[0],
            **_fields(node.layer),
        }
        if node.layer.type == "Input":
            layer["shapes"] = [blob.shape for blob in node.top]
            layer["classes"] = [classes if blob.ndim == 1 else 0 for blob in node.top]
        if node.layer.blobs:
            layer["weights"] = node.layer.blobs[0].shape
        layers.append(layer)
    return layers


def _fields(layer: Any) -> dict[str, Any]:
    param = layer.param
    if layer.type == "Convolution":
        convolution = param.convolution_param
        return {
            "stride": [*convolution.stride, 1][0],
            "pad": [*convolution.pad, 0][0],
            "group": convolution.group,
            "has_bias": convolution.bias_term,
        }
    if layer.type == "Pooling":
        pooling = param.pooling_param
        return {
            "kernel": pooling.kernel_size,
            "stride": pooling.stride,
            "pad": pooling.pad,
            "average": pooling.pool == caffe_pb2.PoolingParameter.AVE,
        }
    if layer.type == "LRN":
        lrn = param.lrn_param
        within = lrn.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL
        names = "alpha", "beta", "k"
        return {
            "size": lrn.local_size,
            "within": within,
            **{name: getattr(lrn, name) for name in names},
        }
    return {"ratio": param.dropout_param.dropout_ratio} if layer.type == "Dropout" else {}
