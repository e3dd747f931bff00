"""The order in which records are read, epoch after epoch."""

from __future__ import annotations

import numpy as np


class Order:
    """Maps stream indices to the numbers of ``count`` records.

    Without ``shuffle`` the records repeat in their order.  With it every epoch has its own order,
    which depends on ``key`` and the epoch only: ranks with the same key have the same order, and so
    read disjoint parts of it.
    """

    def __init__(self, count: int, shuffle: bool = False, key: int = 0):
        self.count = count
        self.shuffle = shuffle
        self._key = key
        # Batches at the end of an epoch reach into the next one.
        self._permutations: dict[int, np.ndarray] = {}

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Return the record numbers at stream ``indices``."""
        epochs, places = np.divmod(indices, self.count)
        if not self.shuffle:
            return places
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            numbers[here] = self._permutation(int(epoch))[places[here]]
        return numbers

    def number(self, index: int) -> int:
        """Return the record number at stream index ``index``."""
        return int(self.numbers(np.array([index]))[0])

    def _permutation(self, epoch: int) -> np.ndarray:
        permutation = self._permutations.get(epoch)
        if permutation is None:
            permutation = np.random.default_rng([self._key, epoch]).permutation(self.count)
            # Replaced, not changed: other threads may be reading it.
            kept = {e: p for e, p in self._permutations.items() if abs(e - epoch) == 1}
            self._permutations = {**kept, epoch: permutation}
        return permutation
