"""CIFAR-10 as two tasks: seven classes with all images, and the other three with few.

usage: python -m pycaffe_dist.data.cifar_parts FOLDER

The folder has the files of CIFAR-10's binary version, and gets the databases.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from pycaffe_dist.data.convert import (
    CIFAR_TEST_FILES,
    CIFAR_TRAIN_FILES,
    read_cifar,
    write_datums,
)
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import PcaffeError

# Airplane, automobile, cat, deer, dog, frog, truck; bird, horse, ship.
TASKS = {"seven": (0, 1, 3, 4, 5, 6, 9), "three": (2, 7, 8)}
# Training images of each class of the second task.
FEW = 300


def write_parts(folder: str) -> None:
    """Write cifar10_TASK_train_lmdb and cifar10_TASK_test_lmdb; raises `DataError`.

    A class's label is its place in `TASKS`.  The images keep their order.
    """
    for part, files in (("train", CIFAR_TRAIN_FILES), ("test", CIFAR_TEST_FILES)):
        images, labels = read_cifar(folder, files)
        for task, classes in TASKS.items():
            most = FEW if (task, part) == ("three", "train") else None
            chosen = np.sort(np.concatenate([np.flatnonzero(labels == c)[:most] for c in classes]))
            path = os.path.join(folder, f"cifar10_{task}_{part}_lmdb")
            with create_database(path, "lmdb") as writer:
                own = np.searchsorted(classes, labels[chosen])
                write_datums(writer, images[chosen], own, key_digits=5)


def main(args: list[str]) -> Any:
    """Run the program; return the argument for `sys.exit`."""
    if len(args) != 2:
        return __doc__
    try:
        write_parts(args[1])
    except PcaffeError as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
