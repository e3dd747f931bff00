"""Classifies windows of images, as R-CNN does (Girshick et al., 2014, arXiv:1311.2524)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pycaffe_dist import io
from pycaffe_dist.api.net import Net
from pycaffe_dist.api.preprocessing import transformer_for
from pycaffe_dist.errors import ArgumentError, UsageError
from pycaffe_dist.schema import caffe_pb2

Windows = Sequence[Sequence[float]]


class Detector(Net):
    """A net in TEST phase for windows of images, which are warped to its input.

    ``context_pad`` pixels on each side of the net's input show the surroundings of the window.
    ``precision`` is as in `Net`, the other arguments as in `io.Transformer`.
    """

    def __init__(
        self,
        model_file: str | os.PathLike[str],
        pretrained_file: str | os.PathLike[str],
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
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
        self.configure_crop(context_pad)

    def detect_windows(self, images_windows: Iterable[tuple[str, Windows]]) -> list[dict[str, Any]]:
        """Return a dict with ``filename``, ``window`` and ``prediction`` for every window.

        ``images_windows`` pairs images' file names with windows (ymin, xmin, ymax, xmax).
        """
        pairs = [(filename, window) for filename, windows in images_windows for window in windows]
        name = self.inputs[0]
        ready, loaded, image = [], None, np.empty(0)
        for filename, window in pairs:
            if filename != loaded:
                loaded, image = filename, io.load_image(filename)
            ready.append(self.transformer.preprocess(name, self.crop(image, window)))
        if not ready:
            return []
        predictions = self.forward_all(**{name: np.stack(ready)})[self.outputs[0]]
        return [
            {"window": window, "prediction": prediction, "filename": filename}
            for (filename, window), prediction in zip(pairs, predictions)
        ]

    def detect_selective_search(self, image_fnames: Iterable[str]) -> list[dict[str, Any]]:
        """Return the result of detect_windows for the windows proposed by selective search.

        It needs the package selective_search_ijcv_with_python, and MATLAB; raises UsageError
        without them.
        """
        try:
            search = importlib.import_module("selective_search_ijcv_with_python")
        except ImportError:
            raise UsageError(
                "selective search needs the package selective_search_ijcv_with_python (and "
                "MATLAB); make the windows otherwise and give them to detect_windows"
            ) from None
        names = [os.path.abspath(name) for name in image_fnames]
        windows = search.get_windows(names, cmd="selective_search_rcnn")
        return self.detect_windows(zip(names, windows))

    def crop(self, im: np.ndarray, window: Sequence[float]) -> np.ndarray:
        """Return the part (h, w, K) of an image (H, W, K) in ``window`` = ymin, xmin, ymax, xmax.

        With ``context_pad`` it has the net's input size, with the window's surroundings, and the
        mean outside of the image.  Raises ArgumentError for a window outside of the image.
        """
        if self.context_pad:
            return self._crop_with_context(im, np.asarray(window, float))
        top, left, bottom, right = (int(edge) for edge in window)
        crop = im[top:bottom, left:right]
        if not crop.size:
            raise ArgumentError(f"window {tuple(window)} is empty in an image of {im.shape[:2]}")
        return crop

    def _crop_with_context(self, im: np.ndarray, window: np.ndarray) -> np.ndarray:
        size = self.crop_dims[:2]
        pad = self.context_pad or 0
        # The window fills the input except the padding; edges belong to it.
        half = (window[2:] - window[:2] + 1) / 2
        reach = half * size / (size - 2.0 * pad)
        centre = window[:2] + half
        begin, end = np.round(centre - reach), np.round(centre + reach)
        scale = size / (end - begin + 1)
        missing = np.round(np.maximum(0, -begin) * scale).astype(int)
        begin, end = (np.clip(edge, 0, im.shape[:2]) for edge in (begin, end))
        if (end <= begin).any():
            raise ArgumentError(f"window {window.tolist()} lies outside an image {im.shape[:2]}")
        shown = np.round((end - begin + 1) * scale).astype(int)
        shown = np.maximum(1, np.minimum(shown, size - missing))
        (top, left), (bottom, right) = begin.astype(int), end.astype(int)
        crop = np.ones(self.crop_dims, np.float32) * self.crop_mean
        (y, x), (height, width) = missing, shown
        crop[y : y + height, x : x + width] = io.resize_image(
            im[top:bottom, left:right], (height, width)
        )
        return crop.astype(np.float32)

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the pixels of context around windows, and the mean, the fill outside of images."""
        name, transformer = self.inputs[0], self.transformer
        order = np.argsort(transformer.transpose[name])
        self.crop_dims = np.array(self.blobs[name].data.shape[1:])[order]
        self.context_pad = context_pad
        mean = transformer.mean.get(name)
        if mean is None:
            self.crop_mean = np.zeros(self.crop_dims, np.float32)
            return
        # The mean, converted to the space of input images.
        self.crop_mean = mean.transpose(order).astype(np.float32)
        if name in transformer.channel_swap:
            self.crop_mean = self.crop_mean[:, :, np.argsort(transformer.channel_swap[name])]
        if name in transformer.raw_scale:
            self.crop_mean = self.crop_mean / transformer.raw_scale[name]
