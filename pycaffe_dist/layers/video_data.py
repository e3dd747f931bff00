"""VideoData layer: batches of segments of frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.prefetching import PrefetchingLayer
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.data.decoders import Decoders
    from pycaffe_dist.data.prefetch import Loader
    from pycaffe_dist.data.transformer import Transformer

_PATTERNS = {False: "image_%04d.jpg", True: "flow_%c_%04d.jpg"}
# Fields of the other layer of this name, which reads a camera or a film.
_STREAM = ("video_type", "device_id", "video_file", "skip_frames")


@register("VideoData")
class VideoData(PrefetchingLayer):
    """Batches of segments of frames, which are image files, by yjxiong/caffe.

    Tops: frames (batch_size, C, h, w), where C is num_segments x new_length x the channels of a
    frame (3, 1 with ``grayscale``, or 2 for FLOW), and labels (batch_size, 1, 1, 1).  A line of
    ``source`` has a folder, its number of frames and a label.  Each of ``num_segments`` equal parts
    of a video gives ``new_length`` frames, from a random one on in training, else from the middle.
    ``name_pattern`` is C's format of a file name, by default image_%04d.jpg or flow_%c_%04d.jpg,
    with x and y for %c.  mean_value repeats for all frames.
    """

    tops = Arity(2, 2)

    @property
    def batch_size(self) -> int:
        return self.param.video_data_param.batch_size

    def rand_skip(self) -> int:
        return self.param.video_data_param.rand_skip

    def prepare(self) -> None:
        from pycaffe_dist.data.video import read_videos

        param = self.param.video_data_param
        if any(param.HasField(name) for name in _STREAM):
            raise self.error(
                "reads folders of frames, no camera and no film (video_type, device_id, video_file "
                "of weiliu89/caffe): extract the frames"
            )
        if min(param.batch_size, param.num_segments, param.new_length) < 1:
            raise self.error("needs a batch_size, num_segments and new_length of at least 1")
        if bool(param.new_height) != bool(param.new_width):
            raise self.error("needs both new_height and new_width, or neither")
        logger.info("Opening file: %s", param.source)
        self._videos = read_videos(param.source)
        logger.info("A total of %d videos.", len(self._videos))

    def transformer(self) -> Transformer:
        from pycaffe_dist.data.transformer import Transformer

        param = caffe_pb2.TransformationParameter()
        param.CopyFrom(self.param.transform_param)
        channels, means = self._channels(), list(param.mean_value)
        if means and channels % len(means) == 0:
            param.mean_value[:] = means * (channels // len(means))
        return Transformer(param, self.phase, self.context.dtype, self.rank_key())

    def make_loaders(self, readers: int, decoders: Decoders) -> Sequence[Loader]:
        from pycaffe_dist.data.order import Order
        from pycaffe_dist.data.video import FrameFiles, Segments, VideoLoader, VideoReader

        param, transformer = self.param.video_data_param, self.transformer()
        flow = param.modality == param.FLOW
        size = param.new_height, param.new_width
        reader = VideoReader(
            self._videos,
            Order(len(self._videos), param.shuffle, self.key),
            Segments(param.num_segments, param.new_length, self.phase == caffe_pb2.TRAIN),
            FrameFiles(param.name_pattern or _PATTERNS[flow], flow, not param.grayscale, size),
            transformer.key,
            decoders,
            transformer.changes or None,
        )
        wanted = self.batch_size, self.shard, self.skip, self.labels
        packer = self.packer(transformer)
        return [VideoLoader(reader, transformer, *wanted, packer) for _ in range(readers)]

    def _channels(self) -> int:
        param = self.param.video_data_param
        one = 2 if param.modality == param.FLOW else 1 if param.grayscale else 3
        return param.num_segments * param.new_length * one
