"""Checks that no in-place layer overwrites values that another layer still needs."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import LayerError
from pycaffe_dist.layers import Need
from pycaffe_dist.net.build import Node


def check_in_place(nodes: list[Node]) -> None:
    """Raise LayerError for an in-place layer that would corrupt a gradient or a result.

    Caffe runs such nets and gets wrong numbers.  An in-place layer overwrites a blob that earlier
    layers may need in their backward (as a top or as a bottom).  After a Split or Flatten, whose
    blobs share memory, it also overwrites values that a later layer reads as another blob.  A layer
    that needs only the signs (ReLU) allows a layer that keeps them (Dropout).  A layer that needs
    products with the diff (LRN) allows a ReLU, where the diff of each overwritten element is 0.
    """
    made_by: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for top in node.top:
            made_by.setdefault(id(top), index)
    for index, writer in enumerate(nodes):
        for written in _written_in_place(writer):
            for earlier in nodes[:index]:
                _check_backward(earlier, writer, written)
            for later in nodes[index + 1 :]:
                for name, bottom in zip(later.bottom_names, later.bottom):
                    # A blob made after the write is expected to have the new values.
                    stale = bottom is not written and made_by[id(bottom)] < index
                    if stale and bottom.shares_data_with(written):
                        raise _refusal(writer, f"layer '{later.name}' reads them as '{name}'")


def _written_in_place(node: Node) -> list[Blob]:
    return [top for bottom, top in zip(node.bottom, node.top) if bottom is top]


def _check_backward(earlier: Node, writer: Node, written: Blob) -> None:
    if not earlier.need_backward:
        return
    need = Need.NONE
    for index, top in enumerate(earlier.top):
        if top.shares_data_with(written):
            need = max(need, earlier.layer.need_of_top(index))
    reads = any(bottom.shares_data_with(written) for bottom in earlier.bottom)
    if reads and not _written_in_place(earlier):
        need = max(need, earlier.layer.backward_needs_bottom)
    if need == Need.NONE or (need == Need.SIGN and writer.layer.keeps_sign):
        return
    if need == Need.PRODUCT and writer.layer.rectifier_slope == 0:
        return
    raise _refusal(writer, f"layer '{earlier.name}' needs the old values for its gradient")


def _refusal(writer: Node, why: str) -> LayerError:
    name = writer.top_names[0]
    return writer.layer.error(
        f"cannot overwrite '{name}' in place: {why}; give its top a name of its own"
    )
