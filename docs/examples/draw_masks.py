"""Draws images, their true masks and the masks that a net finds, one below the other.

usage: python docs/examples/draw_masks.py DEPLOY WEIGHTS IMAGES PICTURE

DEPLOY has a top `class` with the class of each pixel; IMAGES is an HDF5 file with `data` from -0.5
to 0.5 and `label`, as data/shapes/create_shapes.sh makes it.
"""

from __future__ import annotations

import sys

import cv2
import h5py
import numpy as np

import pycaffe_dist as caffe

COLOURS = np.array([[40, 40, 40], [70, 70, 230], [90, 200, 90], [230, 150, 60]], np.uint8)


def picture(images: np.ndarray, *masks: np.ndarray) -> np.ndarray:
    """Return rows of images (N, 3, H, W) and of masks (N, 1, H, W) as one picture."""
    pixels = np.clip((images + 0.5) * 255, 0, 255).astype(np.uint8)
    rows = [pixels.transpose(0, 2, 3, 1)]
    rows += [COLOURS[mask[:, 0].astype(int) % len(COLOURS)] for mask in masks]
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def main(deploy: str, weights: str, source: str, target: str) -> None:
    """Draw the images that fit into the net's batch."""
    net = caffe.Net(deploy, caffe.TEST, weights=weights)
    with h5py.File(source) as file:
        images, truth = (file[name][: net.blobs["data"].shape[0]] for name in ("data", "label"))
    found = net.forward(data=images)["class"]
    cv2.imwrite(target, picture(images, truth, found))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
