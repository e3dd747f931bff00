"""Classifies images with a deploy net."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from pycaffe_dist import io
from pycaffe_dist.api.net import Net
from pycaffe_dist.api.preprocessing import transformer_for
from pycaffe_dist.schema import caffe_pb2


class Classifier(Net):
    """A net in TEST phase for images, which are scaled to ``image_dims`` and cropped.

    ``image_dims`` (height, width) is by default the size of the net's input; ``precision`` is as in
    `Net`, the other arguments as in `io.Transformer`, for images (H, W, K) in RGB and [0, 1].
    """

    def __init__(
        self,
        model_file: str | os.PathLike[str],
        pretrained_file: str | os.PathLike[str],
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        precision: str = "float32",
    ):
        super().__init__(
            model_file,
            caffe_pb2.TEST,
            weights=pretrained_file,
            keep_blobs=False,
            precision=precision,
        )
        self.transformer = transformer_for(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].data.shape[2:])
        self.image_dims = self.crop_dims if image_dims is None else np.array(image_dims)

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Return the class probabilities (N, classes) of N images (H, W, K).

        ``oversample`` takes the mean over ten crops: corners, centre, and all mirrored; without it,
        only the centre crop is used.
        """
        images = np.stack([io.resize_image(image, tuple(self.image_dims)) for image in inputs])
        if oversample:
            crops = io.oversample(images, self.crop_dims)
        else:
            top, left = ((self.image_dims - self.crop_dims) / 2.0).astype(int)
            height, width = self.crop_dims
            crops = images[:, top : top + height, left : left + width]
        name = self.inputs[0]
        ready = np.stack([self.transformer.preprocess(name, crop) for crop in crops])
        predictions = self.forward_all(**{name: ready})[self.outputs[0]]
        if oversample:
            predictions = predictions.reshape(len(inputs), 10, -1).mean(axis=1)
        return predictions
