"""Smaller nets: for MNIST, for CIFAR-10 with sigmoids, on HDF5 files, for characters."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.net_spec import assign_proto
from pycaffe_dist.schema import caffe_pb2
from zoo.builder import Builder

LMDB, LEVELDB = caffe_pb2.DataParameter.LMDB, caffe_pb2.DataParameter.LEVELDB
TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST
XAVIER = {"type": "xavier"}
# Weights and biases of LeNet and the nets for CIFAR-10.
PLAIN = ((1, 1), (2, 1))


def mnist_autoencoder() -> Any:
    """Hinton and Salakhutdinov's autoencoder (2006)."""
    net = Builder("MNISTAutoencoder")
    for rule, source in (
        ({"phase": TRAIN}, "train"),
        ({"phase": TEST, "stage": ["test-on-train"]}, "train"),
        ({"phase": TEST, "stage": ["test-on-test"]}, "test"),
    ):
        fields = {"include": [rule], "transform_param": {"scale": 0.0039215684}}
        net.add("Data", "data", (), "data", fields, batch_size=100, backend=LMDB,
                source=f"data/mnist/mnist_{source}_lmdb")  # fmt: skip
    net.add("Flatten", "flatdata", "data")
    filler = {"type": "gaussian", "std": 1, "sparse": 15}
    top = "data"
    widths = {"encode": (1000, 500, 250, 30), "decode": (784, 1000, 500, 250)}
    for kind, numbers in (("encode", (1, 2, 3, 4)), ("decode", (4, 3, 2, 1))):
        for number in numbers:
            name = f"{kind}{number}"
            top = net.fc(name, top, widths[kind][number - 1], filler=filler, rates=((1, 1), (1, 0)))
            if name not in ("encode4", "decode1"):
                top = net.add("Sigmoid", f"{name}neuron", top)
    net.add("SigmoidCrossEntropyLoss", "loss", ("decode1", "flatdata"), "cross_entropy_loss",
            {"loss_weight": [1.0]})  # fmt: skip
    net.add("Sigmoid", "decode1neuron", "decode1")
    net.add("EuclideanLoss", "loss", ("decode1neuron", "flatdata"), "l2_error",
            {"loss_weight": [0.0]})  # fmt: skip
    return net.net


def _siamese_branch(net: Builder, data: str, suffix: str, shared: bool) -> str:
    """Add LeNet with two outputs; the branches of a pair share their weights by name."""

    def named(stem: str) -> tuple[str, ...]:
        return (f"{stem}_w", f"{stem}_b") if shared else ()

    top = data
    for number, outputs in ((1, 20), (2, 50)):
        top = net.conv(f"conv{number}{suffix}", top, outputs, 5, rates=PLAIN,
                       names=named(f"conv{number}"))  # fmt: skip
        top = net.pool(f"pool{number}{suffix}", top, 2, 2)
    top = net.fc(f"ip1{suffix}", top, 500, rates=PLAIN, names=named("ip1"))
    top = net.relu(f"relu1{suffix}", top)
    top = net.fc(f"ip2{suffix}", top, 10, rates=PLAIN, names=named("ip2"))
    return net.fc(f"feat{suffix}", top, 2, rates=PLAIN, names=named("feat"))


def mnist_siamese_train_test() -> Any:
    """A siamese net (Hadsell 2006) on pairs of MNIST's digits."""
    net = Builder("mnist_siamese_train_test")
    for phase, source, batch in ((TRAIN, "train", 64), (TEST, "test", 100)):
        fields = {"include": [{"phase": phase}], "transform_param": {"scale": 0.00390625}}
        net.add("Data", "pair_data", (), ("pair_data", "sim"), fields, batch_size=batch,
                source=f"data/mnist/mnist_siamese_{source}_leveldb", backend=LEVELDB)  # fmt: skip
    net.add("Slice", "slice_pair", "pair_data", ("data", "data_p"), axis=1, slice_point=[1])
    one = _siamese_branch(net, "data", "", True)
    two = _siamese_branch(net, "data_p", "_p", True)
    net.add("ContrastiveLoss", "loss", (one, two, "sim"), margin=1.0)
    return net.net


def mnist_siamese() -> Any:
    """One branch of the siamese net, for use."""
    net = Builder("mnist_siamese")
    net.add("Input", "data", (), "data", shape=[{"dim": [100, 1, 28, 28]}])
    _siamese_branch(net, "data", "", False)
    return _without_training(net.net)


def _without_training(net: Any) -> Any:
    for layer in net.layer:
        del layer.param[:]
        for field in ("convolution_param", "inner_product_param"):
            if layer.HasField(field):
                getattr(layer, field).ClearField("weight_filler")
                getattr(layer, field).ClearField("bias_filler")
    return net


def cifar10_full_sigmoid(batch_norm: bool) -> Any:
    """The full net for CIFAR-10 with sigmoids, which learns only with batch normalization."""
    net = Builder("CIFAR10_full_sigmoid" + ("_bn" if batch_norm else ""))
    for phase, source, batch in (
        (TRAIN, "train", 100 if batch_norm else 111),
        (TEST, "test", 1000),
    ):
        mean = {"mean_file": "data/cifar10/mean.binaryproto"}
        fields = {"include": [{"phase": phase}], "transform_param": mean}
        net.add("Data", "cifar", (), ("data", "label"), fields, batch_size=batch, backend=LMDB,
                source=f"data/cifar10/cifar10_{source}_lmdb")  # fmt: skip

    def conv(number: int, bottom: str, outputs: int, std: float) -> str:
        rates = ((1, 1), (1 if number == 3 else 2, 1))
        return net.conv(f"conv{number}", bottom, outputs, 5, pad=2, rates=rates,
                        bias=None if batch_norm else 0.0,
                        filler={"type": "gaussian", "std": std})  # fmt: skip

    def neuron(number: int, bottom: str) -> str:
        if batch_norm:
            bottom = net.add("BatchNorm", f"bn{number}", bottom)
        return net.add("Sigmoid", f"Sigmoid{number}", bottom)

    top = neuron(1, net.pool("pool1", conv(1, "data", 32, 0.0001), 3, 2))
    top = net.pool("pool2", neuron(2, conv(2, top, 32, 0.01)), 3, 2, "AVE")
    top = net.pool("pool3", neuron(3, conv(3, top, 64, 0.01)), 3, 2, "AVE")
    rates = ((1, 1), (1, 0)) if batch_norm else ((1, 0), (2, 0))
    net.fc("ip1", top, 10, filler={"type": "gaussian", "std": 0.01}, rates=rates)
    net.accuracy("accuracy", "ip1")
    net.add("SoftmaxWithLoss", "loss", ("ip1", "label"))
    return net.net


def hdf5_classification(hidden: int) -> Any:
    """Logistic regression on HDF5 files, or a net with one hidden layer."""
    net = Builder("NonlinearNet" if hidden else "LogisticRegressionNet")
    for phase, source in ((TRAIN, "train"), (TEST, "test")):
        net.add("HDF5Data", "data", (), ("data", "label"), {"include": [{"phase": phase}]},
                source=f"data/hdf5_classification/{source}.txt", batch_size=10)  # fmt: skip
    top, name = "data", "fc1"
    if hidden:
        top = net.relu("relu1", net.fc("fc1", top, hidden))
        name = "fc2"
    top = net.fc(name, top, 2)
    net.add("SoftmaxWithLoss", "loss", (top, "label"))
    net.accuracy("accuracy", top)
    return net.net


STEPS, STREAMS, BYTES = 50, 20, 256


def _characters(net: Builder) -> str:
    uniform = {"type": "uniform", "min": -0.08, "max": 0.08}
    top = net.add("Embed", "embed", "data", input_dim=BYTES, num_output=128, bias_term=False,
                  weight_filler=uniform)  # fmt: skip
    top = net.add("LSTM", "lstm", (top, "cont"), num_output=256, weight_filler=uniform,
                  bias_filler={"type": "constant"})  # fmt: skip
    return net.add("InnerProduct", "predict", top, num_output=BYTES, axis=2,
                   weight_filler=uniform, bias_filler={"type": "constant"})  # fmt: skip


def char_lstm_train_test() -> Any:
    """A recurrent net that predicts a text's next byte."""
    net = Builder("char_lstm")
    for phase, source in ((TRAIN, "train"), (TEST, "test")):
        net.add("HDF5Data", "data", (), ("data", "cont", "target"), {"include": [{"phase": phase}]},
                source=f"data/characters/{source}.txt", batch_size=STEPS)  # fmt: skip
    top = _characters(net)
    net.add("SoftmaxWithLoss", "loss", (top, "target"), axis=2)
    net.add("Accuracy", "accuracy", (top, "target"), fields={"include": [{"phase": TEST}]}, axis=2)
    return net.net


def char_lstm() -> Any:
    """The net for one byte after another, each given with its continuation indicator."""
    net = Builder("char_lstm")
    net.add("Input", "data", (), ("data", "cont"), shape=[{"dim": [1, 1]}, {"dim": [1, 1]}])
    net.add("Softmax", "prob", _characters(net), axis=2)
    return _without_training(net.net)


def solver(net: str, prefix: str, comment: str, **fields: Any) -> tuple[str, Any]:
    """Return a solver of the net in file ``net`` below models/, and what to say about it."""
    param = caffe_pb2.SolverParameter(
        net=f"models/{net}",
        snapshot_prefix=f"models/{prefix}",
        solver_mode=caffe_pb2.SolverParameter.CPU,
    )
    for key, value in fields.items():
        assign_proto(param, key, value)
    return comment, param


def _autoencoder_solvers() -> dict[str, tuple[str, Any]]:
    folder = "mnist_autoencoder"
    common = {
        "test_iter": [500, 100],
        "test_state": [{"stage": ["test-on-train"]}, {"stage": ["test-on-test"]}],
        "test_interval": 500, "test_compute_loss": True, "display": 100, "max_iter": 65000,
        "weight_decay": 0.0005, "snapshot": 10000,
    }  # fmt: skip
    step = {"lr_policy": "step", "gamma": 0.1, "stepsize": 10000}
    fixed = {"lr_policy": "fixed"}
    kinds = {
        "": {"base_lr": 0.01, "momentum": 0.9, **step},
        "_adadelta": {"type": "AdaDelta", "base_lr": 1.0, "momentum": 0.95, "delta": 1e-8, **fixed},
        "_adagrad": {"type": "AdaGrad", "base_lr": 0.01, **fixed},
        "_nesterov": {"type": "Nesterov", "base_lr": 0.01, "momentum": 0.95, **step},
    }
    return {
        f"{folder}/{folder}_solver{kind}.prototxt": solver(
            f"{folder}/{folder}.prototxt",
            f"{folder}/{folder}{kind}",
            "Loss on the training and on the test images.",
            **common | fields,
        )
        for kind, fields in kinds.items()
    }


def files() -> dict[str, tuple[str, Any]]:
    """Return every file's path below models/, with a line about it and its message."""
    siamese, folder = "mnist_siamese", "cifar10_full"
    out = {
        "mnist_autoencoder/mnist_autoencoder.prototxt": (
            "An autoencoder for MNIST.",
            mnist_autoencoder(),
        ),
        **_autoencoder_solvers(),
        f"{siamese}/{siamese}_train_test.prototxt": (
            "Pairs of digits, alike or not.",
            mnist_siamese_train_test(),
        ),
        f"{siamese}/{siamese}.prototxt": ("One branch of the pair, for use.", mnist_siamese()),
        f"{siamese}/{siamese}_solver.prototxt": solver(
            f"{siamese}/{siamese}_train_test.prototxt", f"{siamese}/{siamese}", "As Caffe's.",
            test_iter=[100], test_interval=500, base_lr=0.01, momentum=0.9, weight_decay=0.0,
            lr_policy="inv", gamma=0.0001, power=0.75, display=100, max_iter=50000, snapshot=5000,
        ),
    }  # fmt: skip
    for kind in ("", "_bn"):
        net = f"{folder}/cifar10_full_sigmoid_train_test{kind}.prototxt"
        about = "The full CIFAR-10 net with sigmoids" + (", normalized." if kind else ".")
        out[net] = (about, cifar10_full_sigmoid(bool(kind)))
        out[f"{folder}/cifar10_full_sigmoid_solver{kind}.prototxt"] = solver(
            net, f"{folder}/cifar10_full_sigmoid{kind}", "As Caffe's.",
            test_iter=[10], test_interval=1000, base_lr=0.001, momentum=0.9, lr_policy="step",
            gamma=1.0, stepsize=5000, display=100, max_iter=60000, snapshot=10000,
        )  # fmt: skip
    folder = "hdf5_classification"
    for prefix, hidden, about in (("", 0, "Logistic regression"), ("nonlinear_", 40, "Two layers")):
        net = f"{folder}/{prefix}train_val.prototxt"
        out[net] = (f"{about} on HDF5 files.", hdf5_classification(hidden))
        out[f"{folder}/{prefix}solver.prototxt"] = solver(
            net, f"{folder}/{prefix}train", "As Caffe's.",
            test_iter=[250], test_interval=1000, base_lr=0.01, momentum=0.9, weight_decay=0.0005,
            lr_policy="step", gamma=0.1, stepsize=5000, display=1000, max_iter=10000,
            snapshot=10000,
        )  # fmt: skip
    folder = "char_lstm"
    net = f"{folder}/{folder}_train_test.prototxt"
    out[net] = ("Predicts a text's next byte.", char_lstm_train_test())
    out[f"{folder}/{folder}.prototxt"] = ("One byte at a time, for use.", char_lstm())
    out[f"{folder}/{folder}_solver.prototxt"] = solver(
        net, f"{folder}/{folder}", "RMSProp, with gradients clipped.",
        type="RMSProp", rms_decay=0.95, base_lr=0.002, lr_policy="step", gamma=0.5, stepsize=2000,
        clip_gradients=5.0, display=100, max_iter=10000, test_iter=[20], test_interval=500,
        snapshot=5000,
    )  # fmt: skip
    return out
