"""Draws the boxes that a detector finds into images, side by side.

usage: python docs/examples/draw_boxes.py DEPLOY WEIGHTS LABEL_MAP PICTURE IMAGE...

DEPLOY has the input `data`, with the mean 60 taken off and scaled by 0.01, and a DetectionOutput
`detection_out`; LABEL_MAP names the classes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
from google.protobuf import text_format

import pycaffe_dist as caffe
from pycaffe_dist.proto import caffe_pb2

ENLARGED = 2
LEAST_CONFIDENCE = 0.5
COLOUR = (80, 230, 80)


def detect(net: caffe.Net, images: list[np.ndarray]) -> np.ndarray:
    """Return rows of image, class, confidence, x1, y1, x2, y2 for images as `load_image` has them.

    Corners are fractions of the image.
    """
    net.blobs["data"].reshape(len(images), *net.blobs["data"].shape[1:])
    transformer = caffe.io.Transformer({"data": net.blobs["data"].shape})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))  # to BGR, as in the databases
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.full(3, 60.0))
    transformer.set_input_scale("data", 0.01)
    net.blobs["data"].data[...] = [transformer.preprocess("data", image) for image in images]
    rows = net.forward()["detection_out"][0, 0]
    return rows[rows[:, 2] >= LEAST_CONFIDENCE]


def picture(images: list[np.ndarray], rows: np.ndarray, names: dict[int, str]) -> np.ndarray:
    """Return the images, enlarged and side by side, with their boxes, in BGR."""
    large = [
        cv2.resize(image, None, fx=ENLARGED, fy=ENLARGED, interpolation=cv2.INTER_NEAREST)
        for image in images
    ]
    canvases = [np.rint(image[:, :, ::-1] * 255).astype(np.uint8) for image in large]
    for row in rows:
        canvas = canvases[int(row[0])]
        height, width = canvas.shape[:2]
        x1, y1, x2, y2 = (round(float(c)) for c in row[3:] * [width, height, width, height])
        cv2.rectangle(canvas, (x1, y1), (x2, y2), COLOUR)
        text = f"{names[int(row[1])]} {row[2]:.2f}"
        place = (x1, y1 - 3 if y1 > 12 else y2 + 11)
        cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, COLOUR, 1, cv2.LINE_AA)
    return np.concatenate(canvases, axis=1)


def main(deploy: str, weights: str, label_map: str, target: str, *paths: str) -> None:
    """Draw the boxes that the net finds in images of one size."""
    net = caffe.Net(deploy, caffe.TEST, weights=weights)
    images = [caffe.io.load_image(path) for path in paths]
    labels = text_format.Parse(Path(label_map).read_text(), caffe_pb2.LabelMap())
    names = {item.label: item.display_name for item in labels.item}
    found = picture(images, detect(net, images), names)
    cv2.imwrite(target, found, [cv2.IMWRITE_PNG_COMPRESSION, 9])


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
