"""WindowData layer: batches of windows cut from images, for detection (R-CNN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.prefetching import PrefetchingLayer
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.prefetch import Loader

CROP_MODES = ("warp", "square")


@register("WindowData")
class WindowData(PrefetchingLayer):
    """Tops: windows (batch_size, C, crop_size, crop_size) and labels (batch_size,), 0: background.

    Windows are random in both phases; the share ``fg_fraction`` of a batch overlaps an object.
    Ranks draw different windows.
    """

    tops = Arity(2, 2)

    @property
    def batch_size(self) -> int:
        return self.param.window_data_param.batch_size

    def prepare(self) -> None:
        from pycaffe_dist.data.image_windows import read_windows

        param = self.param.window_data_param
        size = self.param.transform_param.crop_size
        if param.batch_size < 1:
            raise self.error("window_data_param needs a batch_size of at least 1")
        if size <= 2 * param.context_pad:
            raise self.error(
                f"transform_param needs a crop_size above twice the context_pad of "
                f"{param.context_pad}, found {size}"
            )
        if param.crop_mode not in CROP_MODES:
            raise self.error(f"crop_mode must be one of {CROP_MODES}, found '{param.crop_mode}'")
        self._windows = read_windows(
            param.source, param.fg_threshold, param.bg_threshold, param.root_folder
        )
        logger.info("Number of images: %d", len(self._windows.paths))
        labels = np.concatenate([self._windows.background[:, 1], self._windows.foreground[:, 1]])
        for label, count in zip(*np.unique(labels, return_counts=True)):
            logger.info("class %d has %d samples", label, count)
        logger.info("Amount of context padding: %d", param.context_pad)
        logger.info("Crop mode: %s", param.crop_mode)
        self._cache: dict[str, bytes] | None = {} if param.cache_images else None

    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        from pycaffe_dist.data.image_windows import Crop, WindowLoader

        param, transform = self.param.window_data_param, self.param.transform_param
        transformer = self.transformer()
        if transformer.changes:
            raise self.error(
                "does not change whole images: remove resize_param, noise_param, distort_param and "
                "expand_param from transform_param"
            )
        crop = Crop(
            transform.crop_size,
            param.context_pad,
            param.crop_mode == "square",
            transformer.mean_crop(self._windows.channels),
            transform.scale * param.scale,
        )
        return [
            WindowLoader(
                self._windows,
                crop,
                self.batch_size,
                param.fg_fraction,
                transform.mirror,
                self.key,
                self.shard,
                self._cache,
                decoders,
            )
            for _ in range(readers)
        ]
