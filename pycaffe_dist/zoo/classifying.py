"""Classifies image files with a model's deploy net."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_dist import log
from pycaffe_dist.api.net import Net
from pycaffe_dist.data.image_list import read_paths
from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.zoo.models import Model
from pycaffe_dist.zoo.preparation import prepare

# At most so many crops go through a net at once.
_BATCH = 20


@dataclass(frozen=True)
class Score:
    """A class: its number, its name (empty if unknown) and its score, mostly a probability."""

    index: int
    label: str
    score: float


@dataclass(frozen=True)
class Classified:
    """The best classes of an image file."""

    image: str
    classes: list[Score]


@dataclass(frozen=True)
class AllClassified:
    """The best classes of image files."""

    images: list[Classified]

    def table(self) -> str:
        """Return a line for each image, and one for each of its classes: score, number, name."""
        lines = []
        for one in self.images:
            lines.append(one.image)
            lines += [f"  {s.score:.4f}  {s.index:>4}  {s.label}".rstrip() for s in one.classes]
        return "\n".join(lines)


class ClassFinder:
    """Classifies images with a model; see `prepare` for ``mean`` and ``scale``.

    ``ten`` takes the mean over ten crops; None does so if the model was trained on crops.
    ``precision`` is as in `Net`.  Raises UsageError and DataError.
    """

    def __init__(
        self,
        model: Model,
        weights: str,
        labels: Path | None = None,
        mean: str = "",
        scale: float | None = None,
        ten: bool | None = None,
        precision: str = "float32",
    ):
        self._preparation = prepare(model, mean, scale)
        crops = self._preparation.size != self._preparation.crop
        self._ten = crops if ten is None else ten
        with log.silent():
            path = str(model.required_deploy_net())
            self._net = Net(
                path, caffe_pb2.TEST, weights=weights, keep_blobs=False, precision=precision
            )
        self._names = read_paths(str(labels)) if labels is not None else []
        self._input, self._output = self._net.inputs[0], self._net.outputs[0]
        classes = self._classes(self._net.blobs[self._output].data)
        if self._names and len(self._names) != classes:
            raise UsageError(f"{labels} has {len(self._names)} names, the net {classes} classes")

    def classify(self, paths: Sequence[str], top: int) -> Iterator[list[Score]]:
        """Yield the ``top`` best classes of each image file; raises DataError."""
        step = max(1, _BATCH // (10 if self._ten else 1))
        for first in range(0, len(paths), step):
            some = paths[first : first + step]
            crops = np.concatenate([self._preparation.crops(path, self._ten) for path in some])
            self._net.blobs[self._input].reshape(*crops.shape)
            with log.silent():
                inputs: dict[str, Any] = {self._input: crops}
                found = self._net.forward(**inputs)[self._output]
            for scores in found.reshape(len(some), -1, self._classes(found)).mean(axis=1):
                best = np.argsort(-scores, kind="stable")[:top]
                yield [Score(int(i), self._name(i), float(scores[i])) for i in best]

    def _classes(self, found: np.ndarray) -> int:
        return int(np.prod(found.shape[1:]))

    def _name(self, index: int) -> str:
        return self._names[index] if self._names else ""
