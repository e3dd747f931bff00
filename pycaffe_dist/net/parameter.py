"""Learnable parameters: their owners, the layers that share them, and their multipliers."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels.elementwise import clear
from pycaffe_dist.layers import Layer
from pycaffe_dist.schema import caffe_pb2


class Parameter:
    """One learnable blob of a net: the owner's, with the layers that share it.

    ``ready_after`` is the index of the layer whose backward adds the last contribution to the
    gradient, or None when no layer contributes (frozen weights, running statistics); ``begun_by``
    is the index of the layer with the first contribution.
    """

    def __init__(self, layer: Layer, layer_index: int, index: int, spec: caffe_pb2.ParamSpec):
        self.layer = layer
        self.layer_index = layer_index
        self.index = index
        self.name: str = spec.name
        self.lr_mult: float = spec.lr_mult
        self.decay_mult: float = spec.decay_mult
        self.regularization: str = spec.regularization_type
        if self.regularization not in ("", "L1", "L2"):
            raise NetError(
                f"param {index} has regularization_type '{self.regularization}', which is none of "
                "L1, L2"
            )
        self._has_lr = spec.HasField("lr_mult")
        self._has_decay = spec.HasField("decay_mult")
        self.sharers: list[tuple[int, int]] = [(layer_index, index)]
        self.ready_after: int | None = None
        self.begun_by: int | None = None

    @property
    def blob(self) -> Blob:
        """The parameter's data and diff."""
        return self.layer.blobs[self.index]

    @property
    def changes_in_forward(self) -> bool:
        """Whether a layer's forward changes its values, other than running statistics."""
        return self.index == 0 and self.layer.changes_weights

    @property
    def weights(self) -> np.ndarray:
        """The blob's data."""
        return self.blob.data

    @property
    def gradient(self) -> np.ndarray:
        """The blob's diff."""
        return self.blob.diff

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of data and diff."""
        return self.blob.shape

    @property
    def layer_name(self) -> str:
        """The owner's name."""
        return self.layer.name

    @property
    def display_name(self) -> str:
        """The parameter's own name, or its index in the owner."""
        return self.name or str(self.index)

    @property
    def key(self) -> str:
        """A name that is unique in the net: ``conv1[0]``."""
        return f"{self.layer.name}[{self.index}]"

    @property
    def receives_gradient(self) -> bool:
        """Tell whether any layer's backward adds to the diff."""
        return self.ready_after is not None

    def clear_diff(self) -> None:
        """Set the diff to zero."""
        clear(self.blob.diff)

    @property
    def factor_rows(self) -> int:
        """The number of samples in the gradient's two factors; 0 if the layer has no factors."""
        return self.layer.factor_rows(self.index)

    def factors(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (u, v), valid until the next forward: the last backward's gradient is uᵀ·v."""
        return self.layer.gradient_factors(self.index)

    def share_with(
        self, layer: Layer, layer_index: int, index: int, spec: caffe_pb2.ParamSpec
    ) -> None:
        """Let another layer's blob use this parameter's storage; raises NetError on a mismatch."""
        theirs, ours = layer.blobs[index], self.blob
        permissive = spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE
        fits = theirs.count == ours.count if permissive else theirs.shape == ours.shape
        if not fits:
            what = "count" if permissive else "shape"
            raise NetError(
                f"cannot share param '{self.name}' owned by layer '{self.layer_name}' with layer "
                f"'{layer.name}': {what} mismatch, the owner has {ours.shape_string()} and the "
                f"sharer needs {theirs.shape_string()}"
            )
        theirs.share_data(ours)
        theirs.share_diff(ours)
        self.sharers.append((layer_index, index))
        self._merge_multipliers(spec, layer.name)

    def _merge_multipliers(self, spec: caffe_pb2.ParamSpec, sharer: str) -> None:
        """Take multipliers that the owner does not set; different values raise NetError."""
        for field, has, ours in (
            ("lr_mult", self._has_lr, self.lr_mult),
            ("decay_mult", self._has_decay, self.decay_mult),
        ):
            if not spec.HasField(field):
                continue
            theirs = getattr(spec, field)
            if has and theirs != ours:
                raise NetError(
                    f"shared param '{self.name}' has mismatched {field}: {ours:g} in layer "
                    f"'{self.layer_name}', {theirs:g} in layer '{sharer}'"
                )
            setattr(self, field, theirs)
        self._has_lr = self._has_lr or spec.HasField("lr_mult")
        self._has_decay = self._has_decay or spec.HasField("decay_mult")
        theirs = spec.regularization_type
        if theirs and theirs != (self.regularization or theirs):
            raise NetError(
                f"shared param '{self.name}' has mismatched regularization_type: "
                f"{self.regularization} in layer '{self.layer_name}', {theirs} in layer '{sharer}'"
            )
        self.regularization = self.regularization or theirs

    def __repr__(self) -> str:
        return f"Parameter({self.key}, shape={self.shape}, lr_mult={self.lr_mult:g})"


def by_layer(parameters: list[Parameter], which: str) -> dict[int, list[Parameter]]:
    """Return the parameters by their attribute ``which``, the index of a layer."""
    found: dict[int, list[Parameter]] = {}
    for parameter in reversed(parameters):
        index = getattr(parameter, which)
        if index is not None:
            found.setdefault(index, []).append(parameter)
    return found
