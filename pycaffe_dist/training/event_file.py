"""TensorBoard's event files: numbers, histograms, pictures, curves and nets."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.training.pictures import to_png

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import NetParameter
    from pycaffe_dist.training.score_counts import Curve

_BINS = 50
# Histograms of larger arrays count this many of their values, at even distances.
_MOST_VALUES = 100_000
_numbers = itertools.count()
_FLUSH_SECONDS = 5


class EventFile:
    """A new event file in a folder; TensorBoard then forgets the run's steps from ``first`` on.

    Raises UsageError without tensorboardX, and for a folder that cannot be written to.
    """

    def __init__(self, folder: str, first: int):
        try:
            from tensorboardX import summary
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            raise UsageError(
                "--tensorboard needs tensorboardX: pip install 'pycaffe-dist[tensorboard]'"
            ) from None
        self._make, self._proto, self._event = summary, summary_pb2, event_pb2.Event
        self._failed, self._next_flush = False, 0.0
        # TensorBoard reads files by their names; two of one second must differ.
        name = f"events.out.tfevents.{int(time.time()):010}.{os.getpid()}.{next(_numbers)}"
        try:
            os.makedirs(folder, exist_ok=True)
            self._writer = RecordWriter(os.path.join(folder, name))
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
        self._add(0, file_version="brain.Event:2")
        again = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(first, session_log=again)

    def _add(self, step: int, moment: float | None = None, **content: Any) -> None:
        event = self._event(wall_time=moment or time.time(), step=step, **content)
        with self._warning():
            self._writer.write(event.SerializeToString())

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Warn once, instead of ending the run, when the disk fails."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                logger.warning("The files for TensorBoard lose events: %s", error.strerror)
            self._failed = True

    def numbers(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        """Add numbers by their tags."""
        together = self._proto.Summary()
        for tag, value in values.items():
            together.value.add(tag=tag, simple_value=value)
        self._add(step, moment, summary=together)

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Add the histogram of an array's finite values."""
        flat = values.reshape(-1)
        flat = flat[:: -(-flat.size // _MOST_VALUES) or 1]
        flat = flat[np.isfinite(flat)].astype(np.float64)
        if not flat.size:
            return
        counts, edges = np.histogram(flat, _BINS)
        ends = flat.min(), flat.max(), flat.size, flat.sum(), np.dot(flat, flat)
        made = self._make.histogram_raw(tag, *ends, edges[1:].tolist(), counts.tolist())
        self._add(step, summary=made)

    def picture(self, step: int, tag: str, picture: np.ndarray) -> None:
        """Add a picture (h, w, 1 or 3), uint8, RGB."""
        height, width, colors = picture.shape
        image = self._proto.Summary.Image(
            height=height, width=width, colorspace=colors, encoded_image_string=to_png(picture)
        )
        value = self._proto.Summary.Value(tag=tag, image=image)
        self._add(step, summary=self._proto.Summary(value=[value]))

    def curve(self, step: int, tag: str, curve: Curve) -> None:
        """Add precision and recall over thresholds."""
        made = self._make.pr_curve_raw(tag, *curve, curve.precision, curve.recall, len(curve[0]))
        self._add(step, summary=made)

    def settings(self, values: Mapping[str, Any], results: Sequence[str]) -> None:
        """Add the settings of a run, and the tags by which runs are compared."""
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
        }
        for made in self._make.hparams(plain, dict.fromkeys(results, 0.0)):
            self._add(0, summary=made)

    def net(self, definition: NetParameter) -> None:
        """Add a net as a graph: layers are nodes, their bottoms are edges."""
        from tensorboardX.proto import graph_pb2, versions_pb2

        graph = graph_pb2.GraphDef(versions=versions_pb2.VersionDef(producer=22))
        maker: dict[str, str] = {}
        for layer in definition.layer:
            read = [maker[name] for name in layer.bottom if name in maker]
            node = graph.node.add(name=layer.name, op=layer.type)
            node.input.extend(dict.fromkeys(read))
            own = [str(value).strip() for field, value in layer.ListFields() if field.message_type]
            node.attr["settings"].s = "\n".join(own).encode()
            maker.update(dict.fromkeys(layer.top, layer.name))
        self._add(0, graph_def=graph.SerializeToString())

    def flush(self, at_once: bool = False) -> None:
        """Bring events into the file: now, or else every few seconds.

        The library waits for the disk each time.
        """
        if at_once or time.monotonic() >= self._next_flush:
            with self._warning():
                self._writer.flush()
            self._next_flush = time.monotonic() + _FLUSH_SECONDS
