"""Layers that make batches of images and masks, a label for each pixel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.prefetching import PrefetchingLayer
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.prefetch import Loader
    from pycaffe_dist.data.segmentation import MaskOptions
    from pycaffe_dist.data.transformer import Transformer

_LARGEST_LABEL = 255


class _MaskData(PrefetchingLayer):
    """Reads the pairs of ``own_param``'s list; a subclass says how they are read."""

    # Do lines end with windows?
    windows = False

    @property
    def label_type(self) -> int:
        """What the second word of a line is."""
        return caffe_pb2.ImageDataParameter.PIXEL

    @property
    @abstractmethod
    def own_param(self) -> Any:
        """The parameter of this type of layer."""

    @abstractmethod
    def mask_options(self, transformer: Transformer) -> MaskOptions:
        """Return how images and masks are read."""

    @property
    def batch_size(self) -> int:
        return self.own_param.batch_size

    def rand_skip(self) -> int:
        return self.own_param.rand_skip

    def prepare(self) -> None:
        from pycaffe_dist.data.segmentation import read_pairs

        param = self.own_param
        if param.batch_size < 1:
            raise self.error("needs a batch_size of at least 1")
        if bool(param.new_height) != bool(param.new_width):
            raise self.error("needs both new_height and new_width, or neither")
        if self.param.image_data_param.new_dim:
            raise self.error("takes no new_dim; new_height and new_width resize images and masks")
        logger.info("Opening file %s", param.source)
        self._lines = read_pairs(param.source, self.label_type, self.windows)
        if param.shuffle:
            logger.info("Shuffling data")
        logger.info("A total of %d images.", len(self._lines))

    def crop_transformer(self, param: caffe_pb2.TransformationParameter, phase: int) -> Transformer:
        """Return a transformer that makes the same crops as any other of this layer."""
        from pycaffe_dist.data.transformer import Transformer

        return Transformer(param, phase, self.context.dtype, self.rank_key())

    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        from pycaffe_dist.data.order import Order
        from pycaffe_dist.data.segmentation import (
            MaskLoader,
            MaskReader,
            WindowMaskReader,
        )

        param, phase = self.image_transformation()
        transformer = self.crop_transformer(param, phase)
        if transformer.changes:
            raise self.error(
                "does not change whole images: remove resize_param, noise_param, distort_param and "
                "expand_param from transform_param"
            )
        sides = {name: getattr(param, name) for name in ("crop_size", "crop_h", "crop_w")}
        sides |= {name: getattr(param, name) for name in ("crop_height", "crop_width")}
        crops = caffe_pb2.TransformationParameter(mirror=param.mirror, **sides)
        masks = self.crop_transformer(crops, phase)
        order = Order(len(self._lines), self.own_param.shuffle, self.key)
        options = self.mask_options(transformer)
        reader = (WindowMaskReader if self.windows else MaskReader)(
            self._lines, order, options, transformer.key, decoders
        )
        wanted = reader, transformer, self.batch_size, self.shard, self.skip, self.labels
        sizes, divisor = len(self.param.top) > 2, options.divisor
        return [
            MaskLoader(*wanted, masks=masks, sizes=sizes, divisor=divisor) for _ in range(readers)
        ]

    def image_transformation(self) -> tuple[caffe_pb2.TransformationParameter, int]:
        """Return the ``transform_param`` of images, and the phase that it applies."""
        return self.param.transform_param, self.phase


@register("ImageSegData")
class ImageSegData(_MaskData):
    """Batches of images and masks from files that a text file lists, by hszhao/PSPNet.

    Tops: images (batch_size, C, h, w), masks (batch_size, 1, h, w) and image sizes (batch_size, 1,
    1, 2): height and width, at most the top's.  A line of ``image_data_param.source`` has an image
    and, by ``label_type``, its mask (PIXEL), its label (IMAGE) or nothing (NONE: ``ignore_label``
    fills the mask).  ``new_height`` and ``new_width`` resize both bilinearly, as in the fork, which
    mixes labels at their borders.  One of ``transform_param.scale_factors`` is drawn for each
    image. Images smaller than the crop are padded at the bottom and the right, with the mean
    values.
    """

    tops = Arity(2, 3)

    @property
    def own_param(self) -> Any:
        return self.param.image_data_param

    @property
    def label_type(self) -> int:
        return self.own_param.label_type

    def prepare(self) -> None:
        super().prepare()
        if self.param.transform_param.mean_file:
            raise self.error("needs mean_value instead of mean_file, since images may be padded")
        if any(not scale > 0 for scale in self.param.transform_param.scale_factors):
            raise self.error("scale_factors must be above 0")
        if not 0 <= self.own_param.ignore_label <= _LARGEST_LABEL:
            found = self.own_param.ignore_label
            raise self.error(f"ignore_label must be from 0 to {_LARGEST_LABEL}, found {found}")

    def mask_options(self, transformer: Transformer) -> MaskOptions:
        from pycaffe_dist.data.segmentation import MaskOptions

        param = self.own_param
        return MaskOptions(
            param.root_folder,
            param.is_color,
            (param.new_height, param.new_width),
            param.label_type,
            param.ignore_label,
            scales=list(self.param.transform_param.scale_factors),
            window=self.windows,
            padded=transformer.crop or (0, 0),
            mean=list(self.param.transform_param.mean_value),
        )


@register("WindowSegData")
class WindowSegData(ImageSegData):
    """Batches of windows of images and of masks that a text file lists, by HyeonwooNoh/caffe.

    Like ImageSegData, but a line ends with a window, x1 y1 x2 y2 in pixels, both corners included:
    it is cut out, resized to ``new_height`` and ``new_width`` (masks to the nearest pixel), and
    cropped.  Outside of the image a window is 0, and its mask ``ignore_label``.  The V1 type is
    WINDOW_SEG_DATA.
    """

    windows = True

    def prepare(self) -> None:
        super().prepare()
        if self.param.transform_param.scale_factors:
            raise self.error("takes no scale_factors")


@register("ImageLabelmapData")
class ImageLabelmapData(_MaskData):
    """Batches of images and maps of edges that a text file lists, by s9xie/hed.

    Tops: images (batch_size, C, h, w) and maps (batch_size, 1, h, w), 1 where the second image of
    a line is at least 128, else 0.  ``new_height`` and ``new_width`` resize both bilinearly.
    """

    tops = Arity(2, 2)

    @property
    def own_param(self) -> Any:
        return self.param.image_data_param

    def mask_options(self, transformer: Transformer) -> MaskOptions:
        from pycaffe_dist.data.segmentation import MaskOptions

        param = self.own_param
        size = param.new_height, param.new_width
        return MaskOptions(param.root_folder, param.is_color, size, binary=True)


@register("DenseImageData")
class DenseImageData(_MaskData):
    """Batches of images and masks from files that a text file lists, by alexgkendall/caffe-segnet.

    Tops: images (batch_size, C, h, w) and masks (batch_size, 1, h, w).  A line of
    ``dense_image_data_param.source`` has an image and its mask.  ``new_height`` and ``new_width``
    resize images bilinearly, masks to the nearest pixel.  ``crop_height`` and ``crop_width`` crop
    at random and ``mirror`` mirrors at random, in both phases, as in the fork.  Mean and scale of
    ``transform_param`` apply to images only.  With ``label_divide_factor`` (TimoSaemann/caffe-enet)
    masks are smaller than images by this factor.
    """

    tops = Arity(2, 2)

    @property
    def own_param(self) -> Any:
        return self.param.dense_image_data_param

    def prepare(self) -> None:
        super().prepare()
        param = self.param.transform_param
        if param.mirror or any(
            (param.crop_size, param.crop_h, param.crop_w, param.crop_height, param.crop_width)
        ):
            raise self.error(
                "needs mirror, crop_height and crop_width in dense_image_data_param, not in "
                "transform_param"
            )
        own = self.own_param
        if own.label_divide_factor < 1:
            raise self.error("label_divide_factor must be at least 1, found 0")
        if own.label_divide_factor > 1 and (own.crop_height or not own.new_height):
            raise self.error("label_divide_factor needs new_height and new_width, and no crop")

    def image_transformation(self) -> tuple[caffe_pb2.TransformationParameter, int]:
        param, own = caffe_pb2.TransformationParameter(), self.own_param
        param.CopyFrom(self.param.transform_param)
        param.mirror, param.crop_h, param.crop_w = own.mirror, own.crop_height, own.crop_width
        return param, caffe_pb2.TRAIN

    def mask_options(self, transformer: Transformer) -> MaskOptions:
        from pycaffe_dist.data.segmentation import MaskOptions

        param = self.own_param
        size, divisor = (param.new_height, param.new_width), param.label_divide_factor
        return MaskOptions(param.root_folder, param.is_color, size, nearest=True, divisor=divisor)
