"""The files of the nets for ImageNet: with data layers and losses, for use, and solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pycaffe_dist.net_spec import assign_proto
from pycaffe_dist.schema import caffe_pb2
from zoo.builder import Builder
from zoo.imagenet import (
    Body,
    add_googlenet_loss,
    alexnet,
    caffenet,
    flickr_style,
    googlenet,
    mobilenet,
    nin,
    rcnn,
    resnet,
    squeezenet,
    vgg,
)

IMAGENET = "data/ilsvrc12"
VGG_MEAN = (103.939, 116.779, 123.68)


def image_data(
    net: Builder,
    transform: dict[str, Any],
    batches: tuple[int, int],
    sources: tuple[str, str] = (
        f"{IMAGENET}/ilsvrc12_train_lmdb",
        f"{IMAGENET}/ilsvrc12_val_lmdb",
    ),
) -> None:
    """Add the data layers of both phases; the TRAIN phase mirrors."""
    for phase, mirror, source, batch in zip((0, 1), (True, False), sources, batches):
        fields = {
            "include": [{"phase": phase}],
            "transform_param": {"mirror": mirror, **transform} if mirror else transform,
        }
        net.add("Data", "data", (), ("data", "label"), fields, source=source,
                backend=caffe_pb2.DataParameter.LMDB, batch_size=batch)  # fmt: skip


def mean_values(values: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return a transform_param that subtracts a value from each channel."""
    return {**more, "mean_value": list(values)}


def deploy(name: str, body: Body, batch: int, side: int, prob: str = "prob") -> Any:
    """Return the net for classification: an input of ``batch`` images, the body, a softmax."""
    net = Builder(name)
    net.add("Input", "data", (), "data", shape=[{"dim": [batch, 3, side, side]}])
    last = body(net, "data")
    if prob:
        net.add("Softmax", prob, last)
    for layer in net.net.layer:
        del layer.param[:]
        for field in ("convolution_param", "inner_product_param"):
            if layer.HasField(field):
                getattr(layer, field).ClearField("weight_filler")
                getattr(layer, field).ClearField("bias_filler")
    return net.net


def train_val(
    name: str,
    body: Body,
    transform: dict[str, Any],
    batches: tuple[int, int],
    finish: Callable[[Builder, str], None],
) -> Any:
    """Return the net for training and testing on ImageNet."""
    net = Builder(name)
    image_data(net, transform, batches)
    finish(net, body(net, "data"))
    return net.net


def classify(net: Builder, last: str) -> None:
    """End a net with its accuracy and loss."""
    net.accuracy("accuracy", last)
    net.add("SoftmaxWithLoss", "loss", (last, "label"))


def classify_top_5(net: Builder, last: str) -> None:
    """End a net with its loss and its accuracies among 1 and 5 answers."""
    net.add("SoftmaxWithLoss", "loss", (last, "label"))
    net.accuracy("accuracy", last)
    net.accuracy("accuracy_top5", last, 5)


def finish_googlenet(net: Builder, last: str) -> None:
    """End GoogLeNet with its main loss."""
    add_googlenet_loss(net, "loss3", last, 1.0, "loss3")


def flickr_train_val() -> Any:
    """Return the net for fine-tuning CaffeNet on Flickr's styles."""
    net = Builder("FlickrStyleCaffeNet")
    for phase, name in ((0, "train"), (1, "test")):
        fields = {
            "include": [{"phase": phase}],
            "transform_param": {
                "mirror": phase == 0,
                "crop_size": 227,
                "mean_file": f"{IMAGENET}/imagenet_mean.binaryproto",
            },
        }
        net.add("ImageData", "data", (), ("data", "label"), fields,
                source=f"data/flickr_style/{name}.txt", batch_size=50, new_height=256,
                new_width=256)  # fmt: skip
    classify(net, flickr_style(net, "data"))
    return net.net


def solver(folder: str, prefix: str, comment: str, **fields: Any) -> tuple[str, Any]:
    """Return a solver of ``folder``'s train_val.prototxt, and what to say about it."""
    param = caffe_pb2.SolverParameter(
        net=f"models/{folder}/train_val.prototxt",
        snapshot_prefix=f"models/{folder}/{prefix}",
        solver_mode=caffe_pb2.SolverParameter.CPU,
        momentum=0.9,
    )
    for key, value in fields.items():
        assign_proto(param, key, value)
    return comment, param


ALEX = {
    "test_iter": [1000], "test_interval": 1000, "base_lr": 0.01, "lr_policy": "step",
    "gamma": 0.1, "stepsize": 100000, "display": 20, "max_iter": 450000,
    "weight_decay": 0.0005, "snapshot": 10000,
}  # fmt: skip
GOOGLE = {
    "test_iter": [1000], "test_interval": 4000, "test_initialization": False, "display": 40,
    "average_loss": 40, "base_lr": 0.01, "weight_decay": 0.0002, "snapshot": 40000,
}  # fmt: skip
RESNET = {
    "test_iter": [1000], "test_interval": 5000, "test_initialization": False, "display": 20,
    "base_lr": 0.1, "lr_policy": "step", "gamma": 0.1, "stepsize": 150000,
    "max_iter": 600000, "weight_decay": 0.0001, "snapshot": 10000,
}  # fmt: skip


Files = dict[str, tuple[str, Any]]
MEAN_FILE = {"mean_file": f"{IMAGENET}/imagenet_mean.binaryproto"}
VGG_CROPS = mean_values(VGG_MEAN, crop_size=224)


def folder_files(
    folder: str, about: str, train: Any, final: Any, *solvers: tuple[str, Any]
) -> Files:
    """Return the files of one folder: the nets for training (if any) and for use, solvers."""
    out: Files = {}
    if train is not None:
        out[f"{folder}/train_val.prototxt"] = (f"{about}, for training.", train)
    out[f"{folder}/deploy.prototxt"] = (f"{about}, for use.", final)
    for (comment, param), name in zip(solvers, ("solver", "quick_solver")):
        out[f"{folder}/{name}.prototxt"] = (comment, param)
    return out


def alexnet_files() -> Files:
    """Return AlexNet, CaffeNet, and the nets that begin with CaffeNet's weights."""
    out: Files = {}
    for folder, name, body, prefix in (
        ("bvlc_alexnet", "AlexNet", alexnet, "caffe_alexnet_train"),
        ("bvlc_reference_caffenet", "CaffeNet", caffenet, "caffenet_train"),
    ):
        train = train_val(name, body, {"crop_size": 227, **MEAN_FILE}, (256, 50), classify)
        out |= folder_files(folder, name, train, deploy(name, body, 10, 227),
                            solver(folder, prefix, "90 epochs of ImageNet.", **ALEX))  # fmt: skip
    name = "bvlc_reference_rcnn_ilsvrc13"
    out |= folder_files(
        name, "R-CNN for ILSVRC13", None, deploy("R-CNN-ilsvrc13", rcnn, 10, 227, "")
    )
    name = "finetune_flickr_style"
    fine = ALEX | {"test_iter": [100], "base_lr": 0.001, "stepsize": 20000, "max_iter": 100000}
    return out | folder_files(
        name, "CaffeNet for Flickr's styles", flickr_train_val(),
        deploy("FlickrStyleCaffeNet", flickr_style, 10, 227),
        solver(name, name, "Fine-tuning: begin with CaffeNet's weights.", **fine),
    )  # fmt: skip


def googlenet_files() -> Files:
    """Return GoogLeNet with its two schedules."""
    name = "bvlc_googlenet"
    crops = mean_values((104, 117, 123), crop_size=224)
    train = train_val("GoogleNet", lambda net, data: googlenet(net, data, True), crops,
                      (32, 50), finish_googlenet)  # fmt: skip
    slow = GOOGLE | {"lr_policy": "step", "stepsize": 320000, "gamma": 0.96, "max_iter": 10000000}
    quick = GOOGLE | {"lr_policy": "poly", "power": 0.5, "max_iter": 2400000}
    return folder_files(
        name, "GoogLeNet", train, deploy("GoogleNet", googlenet, 10, 224),
        solver(name, name, "The paper's schedule.", **slow),
        solver(name, f"{name}_quick", "BVLC's schedule of 60 epochs.", **quick),
    )  # fmt: skip


def vgg_files() -> Files:
    """Return VGG-16 and VGG-19."""
    out: Files = {}
    for depth, layers in ((16, (2, 2, 3, 3, 3)), (19, (2, 2, 4, 4, 4))):
        folder, name = f"vgg{depth}", f"VGG_ILSVRC_{depth}_layers"
        train = train_val(name, vgg(layers), VGG_CROPS, (64, 50), classify_top_5)
        out |= folder_files(
            folder, f"VGG-{depth}", train, deploy(name, vgg(layers), 10, 224),
            solver(folder, folder, "The paper's batch of 256 is 64 x iter_size.",
                   **ALEX | {"iter_size": 4, "max_iter": 370000}),
        )  # fmt: skip
    return out


def resnet_files() -> Files:
    """Return ResNet-50, -101 and -152."""
    out: Files = {}
    for depth, blocks in ((50, (3, 4, 6, 3)), (101, (3, 4, 23, 3)), (152, (3, 8, 36, 3))):
        folder, name = f"resnet{depth}", f"ResNet-{depth}"
        train = train_val(name, resnet(blocks), VGG_CROPS, (32, 50), classify_top_5)
        out |= folder_files(
            folder, name, train, deploy(name, resnet(blocks), 1, 224),
            solver(folder, folder, "The paper's batch of 256 is 32 x iter_size.",
                   **RESNET | {"iter_size": 8}),
        )  # fmt: skip
    return out


def small_net_files() -> Files:
    """Return the nets with few parameters: SqueezeNet, MobileNet, network in network."""
    name = "squeezenet_v1.1"
    train = train_val(name, squeezenet, mean_values((104, 117, 123), crop_size=227), (32, 25),
                      classify_top_5)  # fmt: skip
    fields = {
        "test_iter": [2000], "test_interval": 1000, "test_initialization": False,
        "base_lr": 0.04, "lr_policy": "poly", "power": 1.0, "max_iter": 170000, "iter_size": 16,
        "weight_decay": 0.0002, "display": 40, "average_loss": 40, "snapshot": 1000,
    }  # fmt: skip
    out = folder_files(
        name, "SqueezeNet 1.1", train, deploy(name, squeezenet, 10, 227),
        solver(name, "squeezenet", "A batch of 512 is 32 x iter_size.", **fields),
    )  # fmt: skip
    name = "mobilenet_v1"
    crops = mean_values((103.94, 116.78, 123.68), scale=0.017, crop_size=224)
    train = train_val("MOBILENET", mobilenet, crops, (64, 50), classify_top_5)
    out |= folder_files(
        name, "MobileNet v1", train, deploy("MOBILENET", mobilenet, 1, 224),
        solver(name, name, "A batch of 256 is 64 x iter_size.",
               **RESNET | {"iter_size": 4, "weight_decay": 0.00004}),
    )  # fmt: skip
    name = "nin_imagenet"
    train = train_val("nin_imagenet", nin, {"crop_size": 224, **MEAN_FILE}, (64, 89), classify)
    fields = ALEX | {"stepsize": 200000, "test_iter": [562], "iter_size": 4}
    return out | folder_files(
        name, "Network in network", train, deploy("nin_imagenet", nin, 10, 224),
        solver(name, name, "90 epochs of ImageNet at a batch of 256.", **fields),
    )  # fmt: skip


def files() -> Files:
    """Return every file's path below models/, with a line about it and its message."""
    return {
        **alexnet_files(),
        **googlenet_files(),
        **vgg_files(),
        **resnet_files(),
        **small_net_files(),
    }
