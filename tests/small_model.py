"""Folders of images that a net tells apart, a small model that does, and its weights."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from pycaffe_dist import log
from pycaffe_dist.net import Net
from pycaffe_dist.schema import text

CLASSES = ("bars", "dots", "stripes")
SIDE = 20
_BODY = """
layer {{ name: 'conv1' type: 'Convolution' bottom: 'data' top: 'conv1'
  convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: 'xavier' }} }} }}
layer {{ name: 'relu1' type: 'ReLU' bottom: 'conv1' top: 'conv1' }}
layer {{ name: 'pool1' type: 'Pooling' bottom: 'conv1' top: 'pool1'
  pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: 'fc' type: 'InnerProduct' bottom: 'pool1' top: 'fc'
  inner_product_param {{ num_output: {classes} weight_filler {{ type: 'xavier' }} }} }}
"""
_TRAIN = """name: 'small'
layer {{ name: 'data' type: 'Data' top: 'data' top: 'label' include {{ phase: TRAIN }}
  transform_param {{ {transform} mirror: true }}
  data_param {{ source: 'none' batch_size: 16 backend: LMDB }} }}
layer {{ name: 'data' type: 'Data' top: 'data' top: 'label' include {{ phase: TEST }}
  transform_param {{ {transform} }}
  data_param {{ source: 'none' batch_size: 5 backend: LMDB }} }}
"""
_LOSS = """
layer { name: 'acc' type: 'Accuracy' bottom: 'fc' bottom: 'label' top: 'acc' }
layer { name: 'acc5' type: 'Accuracy' bottom: 'fc' bottom: 'label' top: 'acc5'
  accuracy_param { top_k: 5 } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'fc' bottom: 'label' top: 'loss' }
"""
_DEPLOY = """name: 'small'
layer {{ name: 'data' type: 'Input' top: 'data'
  input_param {{ shape {{ dim: 1 dim: {channels} dim: 14 dim: 14 }} }} }}
"""
_PROB = "layer { name: 'prob' type: 'Softmax' bottom: 'fc' top: 'prob' }\n"
TRANSFORM = "crop_size: 14 scale: 0.02 mean_value: 90 mean_value: 100 mean_value: 110"


def write_images(folder: Path, count: int) -> None:
    """Write ``count`` images of each class."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = rng.integers(0, 60, (SIDE, SIDE, 3), np.uint8)
            first = int(rng.integers(0, 3))
            where = (
                (slice(first, None, 4), slice(None))
                if label == 0
                else (
                    (slice(first, None, 3), slice(first, None, 3))
                    if label == 1
                    else (slice(None), slice(first, None, 4))
                )
            )
            image[where] = 230
            cv2.imwrite(str(folder / name / f"image {number}.png"), image)


def write_model(
    folder: Path, classes: int = 10, channels: int = 3, transform: str = TRANSFORM
) -> Path:
    """Write a model with random weights; return the weights."""
    folder.mkdir(parents=True)
    body = _BODY.format(classes=classes)
    (folder / "train_val.prototxt").write_text(_TRAIN.format(transform=transform) + body + _LOSS)
    (folder / "deploy.prototxt").write_text(_DEPLOY.format(channels=channels) + body + _PROB)
    weights = folder / "small.caffemodel"
    with log.silent():
        net = Net(text.read_net(folder / "deploy.prototxt"), seed=1)
    net.save_weights(str(weights))
    net.close()
    return weights
