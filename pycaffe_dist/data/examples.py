"""HDF5 files for the example nets: characters of a text, points of two classes, drawn shapes.

usage: python -m pycaffe_dist.data.examples characters TEXT FOLDER
       python -m pycaffe_dist.data.examples points FOLDER
       python -m pycaffe_dist.data.examples shapes FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import cv2
import h5py
import numpy as np

from pycaffe_dist.atomic import replacing
from pycaffe_dist.errors import DataError, PcaffeError
from pycaffe_dist.schema.reading import read_bytes

STREAMS = 20  # parts of a text that are read in parallel
_TEST_SHARE = 0.1
_POINTS = {"train": 7500, "test": 2500}
_IMAGES = {"train": 2000, "test": 200}
SIDE = 32  # of an image with shapes


def write_part(folder: str, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write data sets to ``name.h5`` in ``folder``, and ``name.txt`` with the path of this file."""
    path = os.path.join(folder, f"{name}.h5")
    with replacing(path) as new, h5py.File(new, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    with replacing(os.path.join(folder, f"{name}.txt")) as new:
        new.write_text(f"{path}\n")


def write_characters(text: bytes, folder: str) -> None:
    """Write a text's bytes as ``data``, (steps, STREAMS), and each one's successor as ``target``.

    ``cont`` is 0 at each stream's beginning.  The text's last tenth is for testing.  Raises
    `DataError` when it is too short.
    """
    begin_of_test = int(len(text) * (1 - _TEST_SHARE))
    for name, part in (("train", text[:begin_of_test]), ("test", text[begin_of_test:])):
        steps = (len(part) - 1) // STREAMS
        if steps < 1:
            raise DataError(f"a text needs more than {int(STREAMS / _TEST_SHARE)} bytes")
        codes = np.frombuffer(part[: steps * STREAMS + 1], np.uint8).astype(np.float32)
        data, target = (c.reshape(STREAMS, steps).T for c in (codes[:-1], codes[1:]))
        cont = np.ones_like(data)
        cont[0] = 0
        write_part(folder, name, {"data": data, "cont": cont, "target": target})


def write_points(folder: str, seed: int = 0) -> None:
    """Write points in four dimensions, in two classes divided by a curved surface."""
    rng = np.random.default_rng(seed)
    for name, count in _POINTS.items():
        points = rng.normal(size=(count, 4)).astype(np.float32)
        distance = points @ np.array([1.0, -0.5, 0.25, 0.0]) + 0.5 * points[:, 3] ** 2 - 0.4
        labels = (distance + 0.3 * rng.normal(size=count) > 0).astype(np.float32)
        write_part(folder, name, {"data": points, "label": labels})


def write_shapes(folder: str, counts: Mapping[str, int] = _IMAGES, seed: int = 0) -> None:
    """Write images (3, SIDE, SIDE) from -0.5 to 0.5, and the class of each pixel as ``label``.

    Classes are 0 for the background, 1 for discs, 2 for squares and 3 for triangles.
    """
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        images, masks = zip(*(_draw(rng) for _ in range(count)))
        data = np.transpose(np.array(images, np.float32) / 255 - 0.5, (0, 3, 1, 2))
        labels = np.array(masks, np.float32)[:, None]
        write_part(folder, name, {"data": np.ascontiguousarray(data), "label": labels})


def _draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return an image of one or two coloured shapes on grey, and its mask."""
    ramp = np.linspace(rng.uniform(0, 255), rng.uniform(0, 255), SIDE)
    image = np.ascontiguousarray(np.broadcast_to(ramp[:, None], (SIDE, SIDE, 3)))
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(rng.integers(1, 3)):
        kind = int(rng.integers(1, 4))
        corners, first = {1: (40, 0.0), 2: (4, np.pi / 4), 3: (3, -np.pi / 2)}[kind]
        angles = first + rng.uniform(-0.25, 0.25) + np.arange(corners) * 2 * np.pi / corners
        centre, radius = rng.uniform(7, SIDE - 7, 2), rng.uniform(7, 11)
        outline = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        points = np.rint(outline).astype(np.int32)
        low, middle, high = rng.uniform(0, 80), rng.uniform(0, 255), rng.uniform(175, 255)
        colour = rng.permutation([low, middle, high])
        cv2.fillPoly(image, [points], colour.tolist())
        cv2.fillPoly(mask, [points], kind)
    image += rng.normal(0, 8, image.shape)
    return np.clip(image, 0, 255), mask


def main(args: list[str]) -> Any:
    """Run the program; return the argument for `sys.exit`."""
    try:
        if len(args) == 3 and args[0] == "characters":
            path = args[1]
            write_characters(read_bytes(path, lambda m: DataError(f"'{path}' {m}")), args[2])
        elif len(args) == 2 and args[0] == "points":
            write_points(args[1])
        elif len(args) == 2 and args[0] == "shapes":
            write_shapes(args[1])
        else:
            return __doc__
    except PcaffeError as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
