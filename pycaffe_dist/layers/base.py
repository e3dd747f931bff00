"""The base of layers: setup, reshape, forward, backward, and declarations about them."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import LayerError
from pycaffe_dist.precision import wide
from pycaffe_dist.registry import Registry
from pycaffe_dist.schema import caffe_pb2

if TYPE_CHECKING:
    from pycaffe_dist.layers.joined import Joined

LayerParameter = caffe_pb2.LayerParameter


class Arity(NamedTuple):
    """The number of bottoms or tops of a layer; ``most`` None means any number."""

    least: int
    most: int | None

    def allows(self, count: int) -> bool:
        """Tell whether ``count`` blobs are allowed."""
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        if self.least == self.most:
            return f"{self.least}"
        return f"{self.least} to {self.most}"


class Need(enum.IntEnum):
    """The data of a blob that backward reads: nothing, which elements are positive, or all.

    PRODUCT: all, but each only times its diff, so that those whose diff is 0 do not matter.
    """

    NONE = 0
    SIGN = 1
    PRODUCT = 2
    VALUE = 3


class RankMean:
    """The mean of a number over the ranks whose batches make one large batch.

    A number is its own mean unless all ranks run the same pass, as in a solver's iterations.
    """

    def __init__(self) -> None:
        self._mean: Callable[[float], float] | None = None

    @contextmanager
    def over(self, mean: Callable[[float], float] | None) -> Iterator[None]:
        """Let ``mean`` give the means in a block that all ranks run; None for one rank."""
        self._mean = mean
        try:
            yield
        finally:
            self._mean = None

    @property
    def several(self) -> bool:
        """Whether the mean is over several ranks."""
        return self._mean is not None

    def __call__(self, value: float) -> float:
        return value if self._mean is None else self._mean(value)


@dataclass(frozen=True)
class LayerContext:
    """Properties of the run that a layer belongs to.

    ``dtype`` is the type of data; ``shard`` selects the records of this rank; ``where`` is the
    layer's place in its prototxt (``file:line``); ``seed`` None means a new seed for every run.
    ``rank_mean`` is for what a loss is divided by; all ranks must ask for it equally often.
    ``forward_only``: backward never runs, so layers need not keep values for it.
    ``precision`` is "bfloat16" if products may round their factors, or "float32".
    """

    phase: int = 0
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))
    seed: int | None = None
    shard: Shard = field(default_factory=Shard)
    where: str = ""
    rank_mean: RankMean = field(default_factory=RankMean)
    forward_only: bool = False
    precision: str = "float32"

    @property
    def parameter_dtype(self) -> np.dtype:
        """The type of parameters, losses and labels: float32 if data has 16 bits."""
        return wide(self.dtype)

    def rng(self, layer_name: str, purpose: str = "") -> np.random.Generator:
        """Return the generator for a layer and purpose, different on every rank."""
        if self.seed is None:
            return np.random.default_rng()
        words = f"{layer_name}/{purpose}/{self.phase}".encode()
        tag = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")
        return np.random.default_rng([self.seed, self.shard.rank, tag])


class Layer:
    """The base of all layers.

    A subclass declares its properties below, and defines ``reshape``, ``forward`` and (unless
    ``has_backward`` is False) ``backward``.  Bottoms and tops are lists of blobs.  Backward
    overwrites the diff of every bottom that ``propagate_down`` asks for and adds to the diffs of
    the parameters that ``param_propagate_down`` asks for, unless they are ``overwritten``.
    """

    type: ClassVar[str]
    bottoms: ClassVar[Arity] = Arity(1, 1)
    tops: ClassVar[Arity] = Arity(1, 1)
    equal_bottoms_and_tops: ClassVar[bool] = False
    # May a top be its own bottom?  Does this keep the signs of elements (see net.in_place)?
    in_place: ClassVar[bool] = False
    keeps_sign: ClassVar[bool] = False
    backward_needs_bottom: ClassVar[Need] = Need.VALUE
    backward_needs_top: ClassVar[Need] = Need.NONE
    # Do all tops need more than 16 bits?
    exact: ClassVar[bool] = False
    # A loss layer's first top is part of the loss, and its tops may have no names.
    is_loss: ClassVar[bool] = False
    # The weight of a loss layer's first top without loss_weight.
    default_loss_weight: float = 1.0
    has_backward: ClassVar[bool] = True
    # Are its tops means over the samples of the first bottom, and 0 without samples?
    averages_samples: ClassVar[bool] = False
    # Does its forward ask the context for a mean over ranks, once?
    uses_rank_mean: bool = False
    # May the net skip it when its tops are empty?
    idle_when_empty: ClassVar[bool] = True
    # The net reshapes a layer when its bottoms' shapes change; some need it before every forward.
    reshape_every_forward: ClassVar[bool] = False
    # The seconds that forward has waited for data, in total.
    seconds_waited: float = 0.0
    # The records of its data set, on all ranks together; 0 if that is not known.
    records: int = 0
    # Can it not run on a GPU?  Then the net runs it on the host and copies its blobs.
    host_only: ClassVar[bool] = False
    # Does a GPU do the same in every pass, apart from random keys?
    repeats: ClassVar[bool] = True
    # Is all that forward and backward do on the host, in float32, to run kernels on the arrays of
    # blobs and plans, by `parallel_for` and `in_every_pass`?  Subclasses do not inherit this.
    only_kernels: bool = False
    # Are diffs used in backward only, so that other diffs may share their memory?
    shares_diffs: ClassVar[bool] = True
    # Does forward compute anything?  If not, its tops share the bottoms' data.
    computes: bool = True
    # Are data used in forward only, so that other data may share their memory in inference?
    shares_data: ClassVar[bool] = True
    # Does forward change its weights, parameter 0?
    changes_weights: bool = False
    # Does backward know ``overwritten``?  For other layers the net sets such diffs to zero first.
    overwrites_gradients: ClassVar[bool] = False
    # May backward write the first bottom's diff over the first top's?
    backward_in_place: ClassVar[bool] = False

    def __init__(self, param: LayerParameter, context: LayerContext):
        self.param = param
        self.name: str = param.name
        self.context = context
        self.phase: int = context.phase
        self.blobs: list[Blob] = []
        self.param_propagate_down: list[bool] = []
        self.loss_weights: list[float] = []
        # Parameters whose diffs backward does not change, because an exchange uses their factors.
        self.factors_only: set[int] = set()
        # Parameters whose diffs backward sets: theirs is the first contribution.
        self.overwritten: set[int] = set()
        # The random generators by their purposes; snapshots keep their states.
        self.generators: dict[str, np.random.Generator] = {}

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Read the layer's parameters and create its blobs, unless it has them already."""

    def require_files(self) -> None:
        """Raise DataError for a file that setup will read and that is missing.

        Runs call this before anything is built, so on a layer that is not set up.
        """

    def open_files(self) -> None:
        """Read the files that forward needs, once; runs do so before they begin.

        Not for files that the tops' shapes depend on: a net can be built without the others.
        """

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Set the tops' shapes, and prepare everything that depends on the bottoms' shapes."""
        raise NotImplementedError(f"{type(self).__name__}.reshape")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Compute the tops' data."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def joined(self, following: Sequence[Layer]) -> Joined | None:
        """Return an object that runs this layer and some of ``following`` as one, or None.

        ``following`` has the next layers, at least one, all in place on this layer's only top.
        """
        return None

    @property
    def repeats_calls(self) -> bool:
        """Whether the calls of one pass may be made again instead of the layer's methods."""
        declared = "only_kernels" in vars(type(self)) and self.only_kernels
        return declared and self.context.dtype == np.float32 and not any(self.loss_weights)

    @property
    def rectifier_slope(self) -> float | None:
        """The slope, if forward only multiplies non-positive values by it."""
        return None

    def channel_affine(self, bottom: Blob) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (a, b) in float64 if forward is a·x + b with a and b of each channel, axis 1."""
        return None

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        """Compute the bottoms' diffs and add to the parameters' diffs.

        This one is for layers without a gradient.
        """
        if any(propagate_down):
            raise self.error("has no gradient; set propagate_down: false")

    def first_loss_weights(self, tops: int) -> list[float]:
        """Return the loss weights of the tops: the prototxt's, or this type's."""
        if self.param.loss_weight:
            return list(self.param.loss_weight)
        first = self.default_loss_weight if self.is_loss else 0.0
        return [first if index == 0 else 0.0 for index in range(tops)]

    def need_of_top(self, top_index: int) -> Need:
        """Return what backward reads of a top's data, if it is not the same for all tops."""
        return self.backward_needs_top

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Tell whether ``force_backward`` may ask for this bottom's diff (a label's: no)."""
        return not (self.is_loss and bottom_index == 1)

    def statistics_blobs(self) -> list[Blob]:
        """Return the blobs that hold running statistics: no gradient, averaged over ranks."""
        return []

    def gradient_factors(self, index: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (u, v) with the last backward's gradient of parameter ``index`` = uᵀ·v, or None.

        Shapes: u is (K, M) and v is (K, N) for an M×N parameter and K samples.  A layer with
        factors does not add to the diff of a parameter whose index is in ``factors_only``.
        """
        return None

    def factor_rows(self, index: int) -> int:
        """Return K, the rows of the factors of parameter ``index``; 0 without factors."""
        return 0

    def state(self) -> dict[str, Any]:
        """Return the state of the next forward except parameters: cursors, random states.

        Plain numbers, strings, lists and dicts only: snapshots write it as JSON.  The base class
        includes the generators of :meth:`rng`.
        """
        if not self.generators:
            return {}
        return {"random": {name: rng.bit_generator.state for name, rng in self.generators.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`, independently of the seed of this run."""
        for name, random in state.get("random", {}).items():
            if name in self.generators:
                self.generators[name].bit_generator.state = random

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from this layer's states on all ranks of an earlier run, in the order of ranks.

        The number of ranks may differ; a new rank starts with a new state.
        """
        if self.context.shard.rank < len(states):
            self.set_state(states[self.context.shard.rank])

    def close(self) -> None:
        """Release threads and files; called when the net is closed."""

    def new_blob(self, *shape: int) -> Blob:
        """Return a blob of the net's dtype."""
        return Blob(shape, self.context.dtype)

    def is_exact(self, top_index: int) -> bool:
        """Tell whether a top needs more than 16 bits: a loss, or a data layer's labels."""
        if self.exact:
            return True
        return top_index == 0 if self.is_loss else top_index > 0 and not self.param.bottom

    def rng(self, purpose: str = "") -> np.random.Generator:
        """Return this layer's random generator for ``purpose``; snapshots keep its state."""
        self.generators[purpose] = generator = self.context.rng(self.name, purpose)
        return generator

    def error(self, message: str) -> LayerError:
        """Return an error that names this layer and its place in the prototxt."""
        return LayerError(self.name, self.type, message, self.context.where)


class Constant(Layer):
    """The base of layers whose tops are constants for backward: chosen samples, boxes, targets.

    Bottoms get a gradient of 0, because nets for Caffe's forks do not always say
    ``propagate_down: false``.
    """

    backward_needs_bottom = Need.NONE

    def allow_force_backward(self, bottom_index: int) -> bool:
        """No bottom has a gradient."""
        return False

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for blob, wanted in zip(bottom, propagate_down):
            if wanted:
                blob.diff.fill(0)


_layers: Registry[Layer] = Registry("layer type", "pycaffe_dist.layers")
register = _layers.register


def layer_class(name: str) -> type[Layer]:
    """Return the layer class of a type name; raises UsageError with the nearest known one."""
    return _layers.get(name)


def layer_types() -> list[str]:
    """Return the names of all layer types, sorted."""
    return _layers.names()


def is_test(phase: int) -> bool:
    """Tell whether ``phase`` is TEST."""
    return phase == caffe_pb2.TEST
