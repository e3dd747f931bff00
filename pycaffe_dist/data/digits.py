"""scikit-learn's UCI digits in MNIST's format and file names, if MNIST cannot be downloaded.

usage: python -m pycaffe_dist.data.digits FOLDER
"""

from __future__ import annotations

import os
import sys

import numpy as np

from pycaffe_dist.data.idx import write_idx

SIDE = 28  # of MNIST's images
TRAINING_IMAGES = 1500  # of 1,797


def write_digits(folder: str) -> None:
    """Write the digits to ``folder``, 1,500 of them for training and 297 for testing.

    The 8×8 images of values 0 to 16 are scaled up to 24×24 with values up to 255 and framed as
    MNIST's are.  The split is always the same.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.images[order] * (255 / 16)).astype(np.uint8)
    large = pixels.repeat(3, axis=1).repeat(3, axis=2)
    frame = (SIDE - large.shape[1]) // 2
    images = np.pad(large, ((0, 0), (frame, frame), (frame, frame)))
    labels = digits.target[order].astype(np.uint8)
    parts = {"train": slice(TRAINING_IMAGES), "t10k": slice(TRAINING_IMAGES, None)}
    for name, part in parts.items():
        write_idx(os.path.join(folder, f"{name}-images-idx3-ubyte"), images[part])
        write_idx(os.path.join(folder, f"{name}-labels-idx1-ubyte"), labels[part])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_digits(sys.argv[1])
