"""What the notebooks share: a small net for handwritten digits, its images and its training."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import pycaffe_dist as caffe
from pycaffe_dist import layers as L
from pycaffe_dist import params as P

SIDE = 16
BATCH = 50
TRAINING_IMAGES = 1500  # of 1,797
# For prototxts and weights; removed when Python ends.
_folder = tempfile.TemporaryDirectory()
FOLDER = Path(_folder.name)


def digits():
    """Return scikit-learn's digits: training images and labels, test images and labels.

    Images are (n, 1, SIDE, SIDE) in [0, 1], labels (n,), all float32, in random order.
    """
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images[order].repeat(2, axis=1).repeat(2, axis=2)[:, np.newaxis] / 16
    labels = data.target[order]
    cut = TRAINING_IMAGES
    return tuple(
        part.astype(np.float32) for part in (images[:cut], labels[:cut], images[cut:], labels[cut:])
    )


def hidden(n, frozen=False):
    """Add the layers from `data` to `relu3` to a specification; `frozen` ones do not learn."""
    learnt = {"weight_filler": {"type": "xavier"}}
    if frozen:
        learnt["param"] = [{"lr_mult": 0}, {"lr_mult": 0}]
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=16, **learnt)
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=3, num_output=32, **learnt)
    n.relu2 = L.ReLU(n.conv2, in_place=True)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=64, **learnt)
    n.relu3 = L.ReLU(n.ip1, in_place=True)


def deploy_net(name="digits", score="score", classes=10):
    """Write the net for use, whose classifier is called `score`; return its path."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [BATCH, 1, SIDE, SIDE]})
    hidden(n)
    n[score] = L.InnerProduct(n.ip1, num_output=classes)
    n.prob = L.Softmax(n[score])
    return written(f"{name}_deploy.prototxt", f"name: '{name}' {n.to_proto()}")


def solver_of(name="digits", score="score", classes=10, frozen=False, rate=0.05):
    """Return a solver for the net; `set_input_arrays` of its net takes the images."""
    n = caffe.NetSpec()
    n.data, n.label = L.MemoryData(batch_size=BATCH, channels=1, height=SIDE, width=SIDE, ntop=2)
    hidden(n, frozen)
    n[score] = L.InnerProduct(n.ip1, num_output=classes, weight_filler={"type": "xavier"})
    n.loss = L.SoftmaxWithLoss(n[score], n.label)
    net = written(f"{name}_train.prototxt", f"name: '{name}' {n.to_proto()}")
    solver = f'train_net: "{net}" base_lr: {rate} lr_policy: "fixed" momentum: 0.9'
    return caffe.get_solver(written(f"{name}_solver.prototxt", f"{solver} random_seed: 1"))


def trained(images, labels, name="digits", classes=10, iterations=300):
    """Train a net; return the paths of the net for use and of its weights."""
    solver = solver_of(name, classes=classes)
    solver.net.set_input_arrays(images, labels)
    solver.step(iterations)
    weights = str(FOLDER / f"{name}.caffemodel")
    solver.net.save(weights)
    return deploy_net(name, classes=classes), weights


def written(name, text):
    """Write a text to the folder; return the file's path."""
    path = FOLDER / name
    path.write_text(text)
    return str(path)
