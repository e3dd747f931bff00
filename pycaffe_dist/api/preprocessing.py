"""Converts images to net inputs and back, like pycaffe's Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pycaffe_dist.api.resizing import resize_image
from pycaffe_dist.errors import ArgumentError


class Transformer:
    """Prepares images (H, W, K) for input blobs; ``inputs`` maps their names to blob shapes.

    For each input, in this order: resize, transpose, channel swap, raw scale, mean, input scale.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]):
        self.inputs = inputs
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def _shape(self, in_: str) -> tuple[int, ...]:
        if in_ not in self.inputs:
            raise ArgumentError(f"{in_} is not one of the net inputs: {dict(self.inputs)}")
        return tuple(self.inputs[in_])

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return an image (H', W', K) in the format of input ``in_``, (K, H, W) float32.

        Does not change ``data``.  Raises ArgumentError.
        """
        dims = self._shape(in_)[2:]
        ready = data.astype(np.float32)
        if ready.shape[:2] != dims:
            ready = resize_image(ready, dims)  # type: ignore[arg-type]
        if in_ in self.transpose:
            ready = ready.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            ready = ready[list(self.channel_swap[in_]), :, :]
        if in_ in self.raw_scale:
            ready *= self.raw_scale[in_]
        if in_ in self.mean:
            ready -= self.mean[in_]
        if in_ in self.input_scale:
            ready *= self.input_scale[in_]
        return ready

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return the image (H, W, K) for an input (1, K, H, W) or (K, H, W).

        Without a transpose, as in pycaffe, a gray image comes as (H, W).
        """
        self._shape(in_)
        image = data.copy()
        image = image.reshape(image.shape[-3:]) if in_ in self.transpose else image.squeeze()
        if in_ in self.input_scale:
            image /= self.input_scale[in_]
        if in_ in self.mean:
            image += self.mean[in_]
        if in_ in self.raw_scale:
            image /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_]), :, :]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of axes: (2, 0, 1) makes (K, H, W) of (H, W, K); raises ArgumentError."""
        axes = len(self._shape(in_)) - 1
        if len(order) != axes:
            raise ArgumentError(
                f"the transpose order of {in_} needs as many dimensions as the input, {axes}; "
                f"found {tuple(order)}"
            )
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of channels, after transposing: (2, 1, 0) makes BGR of RGB.

        Raises ArgumentError.
        """
        channels = self._shape(in_)[1]
        if len(order) != channels:
            raise ArgumentError(
                f"the channel swap of {in_} needs one number for each of {channels} channels, "
                f"found {tuple(order)}"
            )
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set the factor on images before the mean: 255 for nets trained on bytes."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """Set the mean to subtract: one value per channel, or an image (K, H, W) or (H, W).

        An image of another size is resized.  Raises ArgumentError.
        """
        shape = self._shape(in_)[1:]
        if mean.ndim == 1:
            if len(mean) != shape[0]:
                raise ArgumentError(
                    f"the mean of {in_} has {len(mean)} channels, which are incompatible with the "
                    f"input's {shape[0]}"
                )
            self.mean[in_] = mean[:, np.newaxis, np.newaxis]
            return
        if mean.ndim not in (2, 3):
            raise ArgumentError(f"the mean of {in_} has an invalid shape {mean.shape}")
        mean = mean.reshape(-1, *mean.shape[-2:])
        if mean.shape != shape:
            low, high = mean.min(), mean.max()
            # A constant mean has no range for normalization.
            span = high - low or 1
            unit = resize_image(((mean - low) / span).transpose(1, 2, 0), (shape[1], shape[2]))
            mean = unit.transpose(2, 0, 1) * span + low
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set the factor on inputs after everything else."""
        self._shape(in_)
        self.input_scale[in_] = scale


def transformer_for(
    net: Any,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> Transformer:
    """Return a Transformer for a net's first input and images (H, W, K), with given settings."""
    name = net.inputs[0]
    transformer = Transformer({name: net.blobs[name].data.shape})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, channel_swap)
    return transformer
