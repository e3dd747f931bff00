"""AnnotatedData layer: batches of images and boxes from a database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pycaffe_dist.layers.base import register
from pycaffe_dist.layers.data import Data

if TYPE_CHECKING:
    from pycaffe_dist.data.prefetch import Loader
    from pycaffe_dist.data.transformer import Transformer


@register("AnnotatedData")
class AnnotatedData(Data):
    """Batches of images and their boxes, by weiliu89/caffe (SSD).

    Tops: images (batch_size, C, h, w) and, if there is a second one, boxes (1, 1, boxes, 8): number
    of the image in this rank's batch, label, instance, x1, y1, x2, y2 as fractions of the image,
    difficult.  A batch without boxes has one row of -1.  Records without a type give labels
    (batch_size, 1, 1, 1), unless ``anno_type`` is set.  Records are AnnotatedDatums, read as by
    Data; random choices depend on a record's place in the stream, not on ranks or threads.

    As in the fork: encoded images go through a JPEG file after each change of colors, expansion and
    random crop; a batch_sampler with several kinds of constraints tests the first kind that it has;
    padding by FIT_LARGE_SIZE_AND_PAD shifts boxes by the exact, images by the whole pixels.  Unlike
    the fork, it changes images that are not encoded, too.  ``label_map_file`` is not read: the
    records have labels.
    """

    def prepare(self) -> None:
        super().prepare()
        param = self.param.transform_param.resize_param
        if param.resize_mode == param.FIT_SMALL_SIZE and self.batch_size != 1:
            raise self.error(f"FIT_SMALL_SIZE needs a batch_size of 1, found {self.batch_size}")
        if param.height_scale or param.width_scale:
            raise self.error(
                "resize_param.height_scale and width_scale, which give boxes in units of another "
                "size, are not supported; remove them to get fractions of the image"
            )

    def loader_maker(self, transformer: Transformer) -> Callable[..., Loader]:
        from pycaffe_dist.data.annotated import (
            AnnotatedLoader,
            Augmentation,
            Emission,
            sampler_table,
        )

        param = self.param.annotated_data_param
        if transformer.changes.crops is not None or transformer.changes.areas is not None:
            raise self.error(
                "fix_crop, multi_scale, is_flow and random sizes are not for images with boxes"
            )
        emission = Emission.of(self.param.transform_param)
        samplers = sampler_table(param.batch_sampler)
        augmentation = Augmentation(transformer.changes, emission, samplers)
        typed = param.HasField("anno_type")
        return partial(AnnotatedLoader, augmentation=augmentation, typed=typed)
