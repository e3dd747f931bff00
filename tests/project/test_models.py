"""The nets of models/: numbers of parameters, and published layer names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.net.summary import summarize
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.zoo.models import Model

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
ALL = sorted(path for path in MODELS.rglob("*.prototxt") if "solver" not in path.name)


def _net(path: str) -> Net:
    """Build a net for one image, without its data."""
    param = text.read_net(MODELS / path)
    for layer in param.layer:
        for field in ("data_param", "image_data_param", "hdf5_data_param"):
            if layer.HasField(field):
                getattr(layer, field).batch_size = 1
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = 1
    # Inputs that are not color images: MNIST's digits, their pairs, points.
    shape = (1, 28, 28) if path.startswith(("mnist", "lenet")) else None
    shape = (2, 28, 28) if "siamese_train" in path else shape
    shape = (4, 1, 1) if "hdf5" in path else shape
    shape = (3, 32, 32) if path.startswith(("cifar", "mobilenet_cifar10", "segnet")) else shape
    param = without_sources(with_state(param, caffe_pb2.TRAIN, 0, ()), shape)
    if path == "segnet_shapes/train_val.prototxt":  # whose labels are masks
        param.layer[0].input_param.shape[1].dim.extend([1, 32, 32])
    return Net(param)


@pytest.mark.parametrize(
    ("path", "learned"),
    [
        ("bvlc_alexnet/train_val.prototxt", 60_965_224),
        ("bvlc_alexnet/deploy.prototxt", 60_965_224),
        ("bvlc_reference_caffenet/train_val.prototxt", 60_965_224),
        ("bvlc_reference_rcnn_ilsvrc13/deploy.prototxt", 57_687_624),
        ("bvlc_googlenet/train_val.prototxt", 13_378_280),
        ("bvlc_googlenet/deploy.prototxt", 6_998_552),
        ("vgg16/train_val.prototxt", 138_357_544),
        ("vgg19/deploy.prototxt", 143_667_240),
        # Batch normalization's scales and biases count, its statistics do not; 64 are conv1's.
        ("resnet50/train_val.prototxt", 25_557_032 + 64),
        ("resnet101/deploy.prototxt", 44_549_160),
        ("resnet152/deploy.prototxt", 60_192_808),
        ("squeezenet_v1.1/train_val.prototxt", 1_235_496),
        ("mobilenet_v1/train_val.prototxt", 4_231_976),
        ("nin_imagenet/train_val.prototxt", 7_595_176),
        ("finetune_flickr_style/train_val.prototxt", 56_950_164),
        ("lenet/lenet_train_test.prototxt", 431_080),
        ("mnist_autoencoder/mnist_autoencoder.prototxt", 2_837_314),
        # Both branches of a pair share their parameters.
        ("mnist_siamese/mnist_siamese_train_test.prototxt", 431_080 + 22),
        ("cifar10_full/cifar10_full_sigmoid_train_test_bn.prototxt", 79_200 + 10_250),
    ],
)
def test_numbers_of_learned_parameters(path, learned):
    net = _net(path)
    assert sum(row.learned for row in summarize(net).layers) == learned
    size = int(Model((MODELS / path).parent).facts.get("size", 0))
    if size and path != "bvlc_googlenet/deploy.prototxt":  # which lacks two classifiers
        stored = 4 * sum(blob.count for layer in net.layers for blob in layer.blobs)
        assert stored < size < 1.01 * stored
    net.close()


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("bvlc_alexnet/deploy.prototxt", "conv1 relu1 norm1 pool1 conv2 fc6 drop6 fc8 prob"),
        ("bvlc_reference_caffenet/train_val.prototxt", "conv1 relu1 pool1 norm1 fc8 accuracy loss"),
        ("bvlc_reference_rcnn_ilsvrc13/deploy.prototxt", "pool5 fc6 fc7 fc-rcnn"),
        (
            "bvlc_googlenet/train_val.prototxt",
            "conv1/7x7_s2 conv1/relu_7x7 pool1/3x3_s2 pool1/norm1 conv2/3x3_reduce conv2/norm2 "
            "inception_3a/1x1 inception_3a/relu_5x5_reduce inception_3a/pool_proj "
            "inception_3a/output loss1/ave_pool loss1/conv loss1/fc loss1/classifier loss1/loss "
            "inception_4e/output loss2/classifier pool4/3x3_s2 pool5/7x7_s1 pool5/drop_7x7_s1 "
            "loss3/classifier loss3/loss3 loss3/top-5",
        ),
        ("vgg16/deploy.prototxt", "conv1_1 relu1_1 conv1_2 pool1 conv5_3 pool5 fc6 fc7 fc8 prob"),
        ("vgg19/deploy.prototxt", "conv3_4 conv4_4 conv5_4"),
        (
            "resnet50/deploy.prototxt",
            "conv1 bn_conv1 scale_conv1 conv1_relu pool1 res2a_branch1 bn2a_branch1 "
            "scale2a_branch1 res2a_branch2a res2a_branch2a_relu res2a res2a_relu res4f_branch2c "
            "res5c pool5 fc1000 prob",
        ),
        ("resnet101/deploy.prototxt", "res2c res3b1 res3b3 res4b22_branch2c bn4b22_branch2c res5c"),
        ("resnet152/deploy.prototxt", "res3b7 res4b35 res5c"),
        (
            "squeezenet_v1.1/deploy.prototxt",
            "conv1 relu_conv1 fire2/squeeze1x1 fire2/relu_expand3x3 fire9/concat drop9 conv10",
        ),
        (
            "mobilenet_v1/deploy.prototxt",
            "conv1/bn conv2_1/dw conv2_1/dw/scale relu5_6/sep conv6/sep/bn pool6 fc7",
        ),
        ("nin_imagenet/deploy.prototxt", "cccp1 relu0 pool0 conv4-1024 cccp8-1024 pool4"),
    ],
)
def test_layers_have_their_published_names(path, names):
    layers = [layer.name for layer in text.read_net(MODELS / path).layer]
    places = [layers.index(name) for name in names.split()]
    assert len(layers) == len(set(layers)) or "train" in path
    assert places[0] < places[-1]


@pytest.mark.parametrize("folder", sorted(MODELS.iterdir()), ids=lambda path: path.name)
def test_readmes_say_where_weights_are(folder):
    facts = Model(folder).facts
    assert facts["name"] and facts["license"]
    if "caffemodel_url" not in facts:
        assert "caffemodel" not in facts and "size" not in facts
        return
    assert facts["caffemodel"].endswith(".caffemodel")
    assert facts["caffemodel"] in facts["caffemodel_url"]
    lengths = {"sha1": 40, "sha256": 64}
    (kind,) = facts.keys() & lengths.keys()
    assert re.fullmatch(f"[0-9a-f]{{{lengths[kind]}}}", facts[kind])
    assert Model(folder).deploy_net


@pytest.mark.parametrize("path", [str(p.relative_to(MODELS)) for p in ALL])
def test_every_net_can_be_built(path):
    if any(big in path for big in ("vgg", "resnet1", "char_lstm")):
        pytest.skip("built by the tests of parameters, or of its own")
    net = _net(path)
    outputs = [net.blobs[name] for name in net.outputs]
    assert outputs
    net.close()


def test_deployed_nets_have_the_weights_of_the_trained_nets():
    for train in MODELS.rglob("train_val.prototxt"):
        deployed = train.with_name("deploy.prototxt")
        if not deployed.exists() or "vgg" in str(train) or "resnet1" in str(train):
            continue
        shapes = []
        for path in (train, deployed):
            net = _net(str(path.relative_to(MODELS)))
            shapes.append(
                {n.name: [b.shape for b in n.layer.blobs] for n in net.nodes if n.layer.blobs}
            )
            net.close()
        assert shapes[1].items() <= shapes[0].items()
        assert all(name.startswith("loss") for name in shapes[0].keys() - shapes[1].keys())


def test_solvers_name_files_that_exist():
    for path in MODELS.rglob("*solver*.prototxt"):
        solver = text.read_solver(path)
        assert (ROOT / solver.net).is_file(), path
        assert solver.solver_mode == caffe_pb2.SolverParameter.CPU
