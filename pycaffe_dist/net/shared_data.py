"""The data of a net's blobs in forward alone: shared memory, and blobs inside of others.

Blobs whose lifetimes do not overlap use the same memory in turns.  The bottoms of a Concat whose
top has them one behind the other are parts of the top, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.net.slots import Tenant, assign
from pycaffe_dist.storage import Storage

Span = tuple[int, int]


class _Lent(Storage):
    """A part of a slot, or all of it, which has values only while the net runs."""

    __slots__ = ("_begin", "_message", "_open", "_slot")

    def __init__(self, slot: Storage | None, begin: int, message: str, dtype: np.dtype):
        super().__init__(dtype)
        self._slot, self._begin, self._message = slot, begin, message
        self._open = False
        self.generation = -1

    def set_open(self, is_open: bool) -> None:
        """Allow or forbid the use of the values."""
        self._open = is_open
        self.generation = self._slot.generation if is_open and self._slot is not None else -1

    def flat(self, count: int) -> np.ndarray:
        """Return the memory; raises NetError while the net does not run."""
        if not self._open or self._slot is None:
            raise NetError(self._message)
        values = self._slot.flat(self._begin + count)[self._begin :]
        self.generation = self._slot.generation
        return values


@dataclass
class Group:
    """Blobs that share their data, and the first and the last step that use it, if any does."""

    blobs: list[Blob]
    span: Span | None

    @property
    def count(self) -> int:
        """The largest number of elements."""
        return max(blob.count for blob in self.blobs)

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return self.blobs[0].dtype


class SharedData:
    """The memory of groups of blobs; reading a blob's data raises NetError with ``message``."""

    def __init__(self, groups: Sequence[Group], message: str):
        self._groups = groups
        self._message = message
        self._lent: list[_Lent] = []

    def place(self, inside: Mapping[int, Sequence[int]]) -> None:
        """Give all blobs new memory.

        ``inside`` has, by the number of a group, the numbers of the groups that are its parts, in
        order.
        """
        parts = {part for others in inside.values() for part in others}
        whole = [n for n, group in enumerate(self._groups) if group.span and n not in parts]
        self._lent = []
        for dtype in {self._groups[number].dtype for number in whole}:
            same = [number for number in whole if self._groups[number].dtype == dtype]
            tenants = [self._tenant([number, *inside.get(number, ())]) for number in same]
            numbers = assign(tenants)
            slots = [Storage(dtype) for _ in range(max(numbers) + 1)]
            for slot in range(len(slots)):
                # At once as large as its largest tenant: growing would lose a smaller one's values.
                slots[slot].flat(max(t.size for t, n in zip(tenants, numbers) if n == slot))
            for number, slot in zip(same, numbers):
                self._lend(number, slots[slot], 0)
                begin = 0
                for part in inside.get(number, ()):
                    self._lend(part, slots[slot], begin)
                    begin += self._groups[part].count
        for number, group in enumerate(self._groups):
            if not group.span:
                self._lend(number, None, 0)

    def _tenant(self, numbers: Sequence[int]) -> Tenant:
        groups = [self._groups[number] for number in numbers]
        spans = [group.span for group in groups if group.span]
        ends = min(first for first, _ in spans), max(last for _, last in spans)
        return Tenant(groups[0].count, (ends,))

    def _lend(self, number: int, slot: Storage | None, begin: int) -> None:
        group = self._groups[number]
        lent = _Lent(slot, begin, self._message, group.dtype)
        self._lent.append(lent)
        for blob in group.blobs:
            blob.data_storage = lent

    @contextmanager
    def open(self) -> Iterator[None]:
        """Return a context in which the data may be used."""
        for lent in self._lent:
            lent.set_open(True)
        try:
            yield
        finally:
            for lent in self._lent:
                lent.set_open(False)

    def end(self) -> None:
        """Give each blob memory of its own; the net must be reshaped then."""
        for group in self._groups:
            for blob in group.blobs:
                blob.data_storage = blob.new_storage()
