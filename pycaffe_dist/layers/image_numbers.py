"""The numbers of images in a data set, for layers behind the one that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pycaffe_dist.data.partition import Place, Shard, continued


class ImageNumbers:
    """Counts the images of a rank's batches as the data layer with the same ``shard`` does.

    The numbers go on after the end of the data set.  ``size`` is the last
    batch's, at first 0.
    """

    def __init__(self, shard: Shard):
        self._shard = shard
        self._batches, self.size = 0, 0

    def next_batch(self, size: int) -> np.ndarray:
        """Return the numbers of the next batch's images."""
        self.size = size
        first = self._shard.first_record(self._batches, size)
        self._batches += 1
        return first + np.arange(size) * self._shard.step

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as a layer's state."""
        return {"place": asdict(Place.of(self._shard, self._batches, self.size))}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue after the images that the ranks of an earlier run have had."""
        places = [Place(**state["place"]) for state in states]
        self.size = places[0].batch_size
        self._shard, self._batches = continued(self._shard, self.size, places)
