"""The published nets for ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pycaffe_dist.schema import caffe_pb2
from zoo.builder import Builder

Body = Callable[[Builder, str], str]


def alexnet_like(net: Builder, data: str, pool_first: bool, bias: float, last: str | None) -> str:
    """AlexNet (Krizhevsky 2012) up to fc7 or, with a name for it, the last layer.

    CaffeNet has pooling before normalization, and biases of 1 where AlexNet's are 0.1.
    """
    small, large = {"type": "gaussian", "std": 0.01}, {"type": "gaussian", "std": 0.005}

    def normalized(number: int, top: str) -> str:
        def pool(bottom: str) -> str:
            return net.pool(f"pool{number}", bottom, 3, 2)

        if pool_first:
            return net.norm(f"norm{number}", pool(top))
        return pool(net.norm(f"norm{number}", top))

    def conv(number: int, bottom: str, outputs: int, size: int, bias: float, **param: Any) -> str:
        top = net.conv(f"conv{number}", bottom, outputs, size, filler=small, bias=bias, **param)
        return net.relu(f"relu{number}", top)

    top = normalized(1, conv(1, data, 96, 11, 0.0, stride=4))
    top = normalized(2, conv(2, top, 256, 5, bias, pad=2, group=2))
    top = conv(3, top, 384, 3, 0.0, pad=1)
    top = conv(4, top, 384, 3, bias, pad=1, group=2)
    top = net.pool("pool5", conv(5, top, 256, 3, bias, pad=1, group=2), 3, 2)
    for number in (6, 7):
        top = net.relu(f"relu{number}", net.fc(f"fc{number}", top, 4096, filler=large, bias=bias))
        top = net.dropout(f"drop{number}", top)
    return net.fc(last, top, 1000, filler=small) if last else top


def caffenet(net: Builder, data: str) -> str:
    """BVLC's reference CaffeNet."""
    return alexnet_like(net, data, True, 1.0, "fc8")


def alexnet(net: Builder, data: str) -> str:
    """BVLC's AlexNet."""
    return alexnet_like(net, data, False, 0.1, "fc8")


def rcnn(net: Builder, data: str) -> str:
    """R-CNN for ILSVRC13: CaffeNet whose last layer is made from support vector machines."""
    return net.fc("fc-rcnn", alexnet_like(net, data, True, 1.0, None), 200)


def flickr_style(net: Builder, data: str) -> str:
    """CaffeNet with a new last layer for 20 styles, which learns ten times as fast."""
    top = alexnet_like(net, data, True, 1.0, None)
    return net.fc("fc8_flickr", top, 20, filler={"type": "gaussian", "std": 0.01},
                  rates=((10, 1), (20, 0)))  # fmt: skip


INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: Builder, data: str, auxiliary: bool = False) -> str:
    """GoogLeNet (Szegedy 2014), with the two auxiliary classifiers or without."""

    def conv(prefix: str, name: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
        top = net.conv(f"{prefix}/{name}", bottom, outputs, size, bias=0.2, **param)
        return net.relu(f"{prefix}/relu_{name.removesuffix('_s2')}", top)

    def inception(name: str, bottom: str) -> str:
        one, reduce3, three, reduce5, five, projected = INCEPTIONS[name]
        prefix = f"inception_{name}"
        parts = [
            conv(prefix, "1x1", bottom, one, 1),
            conv(prefix, "3x3", conv(prefix, "3x3_reduce", bottom, reduce3, 1), three, 3, pad=1),
            conv(prefix, "5x5", conv(prefix, "5x5_reduce", bottom, reduce5, 1), five, 5, pad=2),
            conv(
                prefix, "pool_proj", net.pool(f"{prefix}/pool", bottom, 3, 1, pad=1), projected, 1
            ),
        ]
        return net.add("Concat", f"{prefix}/output", parts)

    top = conv("conv1", "7x7_s2", data, 64, 7, pad=3, stride=2)
    top = net.norm("pool1/norm1", net.pool("pool1/3x3_s2", top, 3, 2))
    top = conv("conv2", "3x3", conv("conv2", "3x3_reduce", top, 64, 1), 192, 3, pad=1)
    top = net.pool("pool2/3x3_s2", net.norm("conv2/norm2", top), 3, 2)
    for name in INCEPTIONS:
        top = inception(name, top)
        if name in ("3b", "4e"):
            top = net.pool(f"pool{int(name[0])}/3x3_s2", top, 3, 2)
        if auxiliary and name in ("4a", "4d"):
            prefix = f"loss{1 if name == '4a' else 2}"
            side = net.pool(f"{prefix}/ave_pool", top, 5, 3, "AVE")
            side = net.relu(
                f"{prefix}/relu_conv", net.conv(f"{prefix}/conv", side, 128, 1, bias=0.2)
            )
            side = net.relu(f"{prefix}/relu_fc", net.fc(f"{prefix}/fc", side, 1024, bias=0.2))
            side = net.dropout(f"{prefix}/drop_fc", side, 0.7)
            add_googlenet_loss(net, prefix, net.fc(f"{prefix}/classifier", side, 1000), 0.3, "loss")
    top = net.pool("pool5/7x7_s1", top, 7, 1, "AVE")
    return net.fc("loss3/classifier", net.dropout("pool5/drop_7x7_s1", top, 0.4), 1000)


def add_googlenet_loss(net: Builder, prefix: str, last: str, weight: float, name: str) -> None:
    """Add one of GoogLeNet's three losses, and its accuracies."""
    net.add("SoftmaxWithLoss", f"{prefix}/{name}", (last, "label"), f"{prefix}/{prefix}",
            {"loss_weight": [weight]})  # fmt: skip
    net.accuracy(f"{prefix}/top-1", last)
    net.accuracy(f"{prefix}/top-5", last, 5)


def vgg(layers: Sequence[int]) -> Body:
    """VGG (Simonyan and Zisserman 2014) with so many convolutions at each of five scales."""

    def body(net: Builder, top: str) -> str:
        filler = {"type": "gaussian", "std": 0.01}
        for scale, (count, outputs) in enumerate(zip(layers, (64, 128, 256, 512, 512)), 1):
            for number in range(1, count + 1):
                top = net.conv(f"conv{scale}_{number}", top, outputs, 3, pad=1, filler=filler)
                top = net.relu(f"relu{scale}_{number}", top)
            top = net.pool(f"pool{scale}", top, 2, 2)
        for number in (6, 7):
            top = net.fc(
                f"fc{number}", top, 4096, filler={"type": "gaussian", "std": 0.005}, bias=0.1
            )
            top = net.dropout(f"drop{number}", net.relu(f"relu{number}", top))
        return net.fc("fc8", top, 1000, filler=filler)

    return body


def resnet(blocks: Sequence[int]) -> Body:
    """ResNet (He 2015) with so many bottleneck blocks at each of four scales."""
    filler = {"type": "msra"}

    def conv(net: Builder, suffix: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
        name = suffix if suffix == "conv1" else f"res{suffix}"
        tail = f"_{suffix}" if suffix == "conv1" else suffix
        # The published ResNet-50, and no other, has biases in its first convolution.
        bias = 0.0 if suffix == "conv1" and sum(blocks) == 16 else None
        top = net.conv(name, bottom, outputs, size, bias=bias, rates=((1, 1), (2, 0)),
                       filler=filler, **param)  # fmt: skip
        net.add("BatchNorm", f"bn{tail}", top, top)
        rates = {"param": [{"lr_mult": 1, "decay_mult": 0}, {"lr_mult": 1, "decay_mult": 0}]}
        return net.add("Scale", f"scale{tail}", top, top, rates, bias_term=True)

    def body(net: Builder, data: str) -> str:
        top = conv(net, "conv1", data, 64, 7, pad=3, stride=2)
        top = net.pool("pool1", net.relu("conv1_relu", top), 3, 2)
        for scale, count in enumerate(blocks, 2):
            width = 64 << (scale - 2)
            for number in range(count):
                name = f"{scale}{_block_name(number, count, blocks)}"
                stride = 2 if number == 0 and scale > 2 else 1
                short = top
                if number == 0:
                    short = conv(net, f"{name}_branch1", top, 4 * width, 1, stride=stride)
                top = conv(net, f"{name}_branch2a", top, width, 1, stride=stride)
                top = net.relu(f"res{name}_branch2a_relu", top)
                top = conv(net, f"{name}_branch2b", top, width, 3, pad=1)
                top = net.relu(f"res{name}_branch2b_relu", top)
                top = conv(net, f"{name}_branch2c", top, 4 * width, 1)
                top = net.relu(f"res{name}_relu", net.add("Eltwise", f"res{name}", (short, top)))
        top = net.pool("pool5", top, 7, 1, "AVE")
        return net.fc("fc1000", top, 1000, filler=filler)

    return body


def _block_name(number: int, count: int, blocks: Sequence[int]) -> str:
    """Blocks are called a, b, c, …; in the deeper nets, where there are many, a, b1, b2, …."""
    if number and sum(blocks) > 16 and count > 3:
        return f"b{number}"
    return "abcdef"[number]


def squeezenet(net: Builder, data: str) -> str:
    """SqueezeNet 1.1 (Iandola 2016)."""

    def conv(name: str, relu: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
        return net.relu(relu, net.conv(name, bottom, outputs, size, **param))

    def fire(number: int, bottom: str, squeezed: int, expanded: int) -> str:
        name = f"fire{number}"

        def part(kind: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
            return conv(f"{name}/{kind}", f"{name}/relu_{kind}", bottom, outputs, size, **param)

        small = part("squeeze1x1", bottom, squeezed, 1)
        parts = [
            part("expand1x1", small, expanded, 1),
            part("expand3x3", small, expanded, 3, pad=1),
        ]
        return net.add("Concat", f"{name}/concat", parts)

    top = net.pool("pool1", conv("conv1", "relu_conv1", data, 64, 3, stride=2), 3, 2)
    top = fire(3, fire(2, top, 16, 64), 16, 64)
    top = fire(5, fire(4, net.pool("pool3", top, 3, 2), 32, 128), 32, 128)
    top = fire(7, fire(6, net.pool("pool5", top, 3, 2), 48, 192), 48, 192)
    top = net.dropout("drop9", fire(9, fire(8, top, 64, 256), 64, 256))
    top = conv("conv10", "relu_conv10", top, 1000, 1, filler={"type": "gaussian", "std": 0.01})
    pool = caffe_pb2.PoolingParameter.AVE
    return net.add("Pooling", "pool10", top, pool=pool, global_pooling=True)


MOBILE = (
    ("2_1", 64, 1), ("2_2", 128, 2), ("3_1", 128, 1), ("3_2", 256, 2), ("4_1", 256, 1),
    ("4_2", 512, 2), ("5_1", 512, 1), ("5_2", 512, 1), ("5_3", 512, 1), ("5_4", 512, 1),
    ("5_5", 512, 1), ("5_6", 1024, 2), ("6", 1024, 1),
)  # fmt: skip


def mobilenet(net: Builder, data: str) -> str:
    """MobileNet v1 (Howard 2017)."""

    def conv(name: str, relu: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
        top = net.conv(name, bottom, outputs, size, bias=None, filler={"type": "msra"}, **param)
        net.add("BatchNorm", f"{name}/bn", top, top)
        rates = {"param": [{"lr_mult": 1, "decay_mult": 0}, {"lr_mult": 1, "decay_mult": 0}]}
        net.add("Scale", f"{name}/scale", top, top, rates, bias_term=True)
        return net.relu(relu, top)

    top, channels = conv("conv1", "relu1", data, 32, 3, pad=1, stride=2), 32
    for number, outputs, stride in MOBILE:
        name, relu = f"conv{number}", f"relu{number}"
        top = conv(f"{name}/dw", f"{relu}/dw", top, channels, 3, pad=1, stride=stride,
                   group=channels)  # fmt: skip
        top, channels = conv(f"{name}/sep", f"{relu}/sep", top, outputs, 1), outputs
    pool = caffe_pb2.PoolingParameter.AVE
    top = net.add("Pooling", "pool6", top, pool=pool, global_pooling=True)
    return net.conv("fc7", top, 1000, 1, filler={"type": "msra"})


def nin(net: Builder, data: str) -> str:
    """Network in network for ImageNet (Lin 2013)."""

    def conv(name: str, relu: int, bottom: str, outputs: int, size: int, **param: Any) -> str:
        filler = {"type": "gaussian", "std": param.pop("std", 0.05)}
        return net.relu(
            f"relu{relu}", net.conv(name, bottom, outputs, size, filler=filler, **param)
        )

    top = conv("conv1", 0, data, 96, 11, stride=4, std=0.01)
    top = conv("cccp2", 2, conv("cccp1", 1, top, 96, 1), 96, 1)
    top = conv("conv2", 3, net.pool("pool0", top, 3, 2), 256, 5, pad=2)
    top = conv("cccp4", 6, conv("cccp3", 5, top, 256, 1), 256, 1)
    top = conv("conv3", 7, net.pool("pool2", top, 3, 2), 384, 3, pad=1, std=0.01)
    top = conv("cccp6", 9, conv("cccp5", 8, top, 384, 1), 384, 1)
    top = net.dropout("drop", net.pool("pool3", top, 3, 2))
    top = conv("conv4-1024", 10, top, 1024, 3, pad=1)
    top = conv("cccp8-1024", 12, conv("cccp7-1024", 11, top, 1024, 1), 1000, 1, std=0.01)
    return net.pool("pool4", top, 6, 1, "AVE")
