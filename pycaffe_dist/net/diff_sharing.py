"""Lets the diffs of a net share a few pieces of memory, by their lifetimes in backward.

Backward runs from the last layer to the first.  The layer that reads a blob writes its diff; after
the backward of the layer that made the blob, the diff is no longer needed.  Before and after, other
blobs use the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.net.build import Node
from pycaffe_dist.net.slots import Tenant, assign
from pycaffe_dist.storage import Storage


class _Slot:
    """One piece of memory, and the diffs in it: one, or two in the same place."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.holders: tuple[Turn, ...] = ()


class Turn:
    """The storage of one diff in shared memory; it has values only during its turn."""

    def __init__(self, slot: _Slot, name: str):
        self.dtype = slot.storage.dtype
        self.slot = slot
        self._name = name

    @property
    def generation(self) -> float:
        """The version of the memory, as in any storage; -1 when another diff has it."""
        return self.slot.storage.generation if self in self.slot.holders else -1

    def array(self, shape: tuple[int, ...], count: int, write: bool = True) -> Any:
        """Return the diff as an array of ``shape``; raises NetError when another diff has it."""
        if self not in self.slot.holders:
            raise NetError(
                f"the diff of blob '{self._name}' is not kept: in a solver's training net diffs "
                "share memory; a solver made with keep_diffs=True keeps all of them"
            )
        return self.slot.storage.array(shape, count, write)


class Turns:
    """The turns of diffs, by layer; without `share_diffs` there are none and all diffs are kept."""

    def __init__(self) -> None:
        self._before: dict[int, list[tuple[Turn, ...]]] = {}
        self._after: dict[int, Turn] = {}

    def add(self, index: int, turn: Turn, over: Turn | None) -> None:
        """Start ``turn`` with the backward of a layer, in the place of ``over`` if given."""
        self._before.setdefault(index, []).append((turn, over) if over else (turn,))
        if over:
            self._after[index] = turn

    def begin(self, index: int) -> None:
        """Give memory to the diffs that the backward of a layer will write."""
        for holders in self._before.get(index, ()):
            holders[0].slot.holders = holders

    def end(self, index: int) -> None:
        """Take the memory from a diff that the backward of a layer has overwritten."""
        if index in self._after:
            turn = self._after[index]
            turn.slot.holders = (turn,)


@dataclass
class _Diff:
    """The blobs of one diff, and the first and the last layer that use it in backward.

    ``over`` is a diff that this one overwrites and thereby ends.
    """

    name: str
    first: int
    last: int
    written: bool
    blobs: list[Blob] = field(default_factory=list)
    private: bool = False
    over: _Diff | None = None

    @property
    def shared(self) -> bool:
        return self.written and not self.private

    @property
    def count(self) -> int:
        return max(blob.count for blob in self.blobs)


def share_diffs(nodes: Sequence[Node]) -> Turns:
    """Give the diffs of a net's blobs new storages, and return their turns.

    A diff has its own memory if no layer writes it, if the loss writes it, or if a layer may read
    it outside its backward (`Layer.shares_diffs`, `Layer.factor_rows`).
    """
    diffs = _find_diffs(nodes)
    _find_successors(nodes, diffs)
    slots = _assign(list(diffs.values()))
    turns = Turns()
    made: dict[int, Turn] = {}
    for diff in diffs.values():  # in the order of backward: what is overwritten comes first
        if diff.shared:
            made[id(diff)] = turn = Turn(slots[id(diff)], diff.name)
            for blob in diff.blobs:
                blob.diff_storage = turn
            turns.add(diff.first, turn, made[id(diff.over)] if diff.over else None)
    return turns


def _assign(diffs: Sequence[_Diff]) -> dict[int, _Slot]:
    """Return the slot of every shared diff, by identity; lifetimes in a slot do not overlap."""
    heirs = {id(diff.over): diff for diff in diffs if diff.over is not None}
    heads = [diff for diff in diffs if diff.shared and diff.over is None]
    lines = [[head] for head in heads]
    for line in lines:
        while id(line[-1]) in heirs:
            line.append(heirs[id(line[-1])])
    # Backward counts down.
    spans = [tuple((diff.last, diff.first) for diff in line) for line in lines]
    numbers = assign([Tenant(head.count, span) for head, span in zip(heads, spans)])
    slots: dict[int, _Slot] = {}
    for head, number in zip(heads, numbers):
        if number not in slots:
            slots[number] = _Slot(head.blobs[0].new_storage())
    return {id(diff): slots[n] for line, n in zip(lines, numbers) for diff in line}


def _find_diffs(nodes: Sequence[Node]) -> dict[int, _Diff]:
    """Return the diffs that backward uses, by the identity of their present storage."""
    diffs: dict[int, _Diff] = {}
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if not node.need_backward:
            continue
        layer = node.layer
        offers_factors = any(map(layer.factor_rows, range(len(layer.blobs))))
        for name, blob, wanted in zip(node.bottom_names, node.bottom, node.propagate_down):
            if wanted:
                _touch(diffs, index, name, blob, True).private |= not layer.shares_diffs
        for name, blob, weight in zip(node.top_names, node.top, layer.loss_weights):
            diff = _touch(diffs, index, name, blob, False)
            diff.private |= not layer.shares_diffs or offers_factors or weight != 0
    return diffs


def _touch(diffs: dict[int, _Diff], index: int, name: str, blob: Blob, writes: bool) -> _Diff:
    key = id(blob.diff_storage)
    diff = diffs.setdefault(key, _Diff(name, index, index, writes))
    diff.last = index
    if not any(blob is known for known in diff.blobs):
        diff.blobs.append(blob)
    return diff


def _find_successors(nodes: Sequence[Node], diffs: dict[int, _Diff]) -> None:
    """Let layers that support it write their first bottom's diff over the first top's."""
    for node in nodes:
        if node.need_backward and node.layer.backward_in_place and node.propagate_down[0]:
            target = diffs[id(node.bottom[0].diff_storage)]
            source = diffs[id(node.top[0].diff_storage)]
            if target is not source and target.shared and source.shared:
                target.over = source
