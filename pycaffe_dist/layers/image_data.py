"""ImageData layer: batches of images and labels from image files that a text file lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pycaffe_dist.layers.base import register
from pycaffe_dist.layers.prefetching import PrefetchingLayer
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.prefetch import Loader


@register("ImageData")
class ImageData(PrefetchingLayer):
    """Tops: images (batch_size, C, h, w) and, if there is a second one, labels (batch_size,).

    The first image sets the images' shape, after resizing to ``new_height`` and ``new_width``, if
    given, and ``transform_param``; a batch with another shape reshapes the tops, as in Caffe.
    ``new_dim`` resizes the shorter side instead, bilinearly or ``bicubic`` (yihui-he/caffe-pro).
    With ``shuffle`` every epoch has a new order; rank r of P takes its images r, r+P, ….
    ``rand_skip`` skips a random number of images below it at the start.
    """

    @property
    def batch_size(self) -> int:
        return self.param.image_data_param.batch_size

    def prepare(self) -> None:
        from pycaffe_dist.data.image_list import read_list

        param = self.param.image_data_param
        if param.batch_size < 1:
            raise self.error("image_data_param needs a batch_size of at least 1")
        if bool(param.new_height) != bool(param.new_width):
            raise self.error("image_data_param needs both new_height and new_width, or neither")
        if param.new_dim and param.new_height:
            raise self.error(
                "image_data_param takes new_dim, or new_height and new_width, not both"
            )
        logger.info("Opening file %s", param.source)
        self._images = read_list(param.source)
        if param.shuffle:
            logger.info("Shuffling data")
        logger.info("A total of %d images.", len(self._images))
        self.records = len(self._images)

    def rand_skip(self) -> int:
        return self.param.image_data_param.rand_skip

    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        from pycaffe_dist.data.images import ImageLoader, ImageReader
        from pycaffe_dist.data.order import Order

        param, transformer = self.param.image_data_param, self.transformer()
        reader = ImageReader(
            self._images,
            Order(len(self._images), param.shuffle, self.key),
            param.root_folder,
            param.is_color,
            (param.new_height, param.new_width),
            decoders,
            transformer.changes or None,
            (param.new_dim, param.bicubic),
        )
        wanted = self.batch_size, self.shard, self.skip, self.labels
        packer = self.packer(transformer)
        return [ImageLoader(reader, transformer, *wanted, packer) for _ in range(readers)]
