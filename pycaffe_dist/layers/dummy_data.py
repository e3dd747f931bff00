"""DummyData: tops with values of fillers, for tests and timings."""

from __future__ import annotations

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.filler import fill
from pycaffe_dist.layers.parameters import constant


@register("DummyData")
class DummyData(Layer):
    """Tops of given shapes; constants are set once, random fillers draw at every forward."""

    host_only = True
    bottoms = Arity(0, 0)
    tops = Arity(1, None)
    has_backward = False
    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        fillers = list(self.param.dummy_data_param.data_filler) or [constant(0)]
        self._fillers = self._one_per_top(fillers, "data_filler", top)
        self._random = [self.rng(f"top[{index}]") for index in range(len(top))]
        for shape, filler, blob, random in zip(self._shapes(top), self._fillers, top, self._random):
            blob.reshape(*shape)
            if filler.type == "constant":
                fill(blob, filler, random)

    def _one_per_top(self, values: list, field: str, top: list[Blob]) -> list:
        if len(values) not in (1, len(top)):
            raise self.error(
                f"needs {field} once, or for each of its {len(top)} tops, found {len(values)}"
            )
        return values * len(top) if len(values) == 1 else values

    def _shapes(self, top: list[Blob]) -> list[tuple[int, ...]]:
        param = self.param.dummy_data_param
        old = ("num", "channels", "height", "width")
        if any(len(getattr(param, field)) for field in old):
            if param.shape:
                raise self.error("give shape or num, channels, height and width, not both")
            sizes = [self._one_per_top(list(getattr(param, field)), field, top) for field in old]
            return list(zip(*sizes))
        shapes = self._one_per_top(list(param.shape), "shape", top)
        return [tuple(shape.dim) for shape in shapes]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Keep the shapes of the prototxt."""

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for filler, blob, random in zip(self._fillers, top, self._random):
            if filler.type != "constant":
                fill(blob, filler, random)
