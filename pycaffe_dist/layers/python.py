"""Python: layers that users write as Python classes."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pycaffe_dist import caffe_modules
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import PcaffeError, UsageError, did_you_mean
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2


class Phase(enum.IntEnum):
    """TRAIN or TEST: a number, as in BVLC pycaffe, whose text is its name, as in older ones."""

    TRAIN = caffe_pb2.TRAIN
    TEST = caffe_pb2.TEST

    def __str__(self) -> str:
        return self.name


class ParameterBlobs(list):
    """A layer's parameters, to which a Python layer adds with ``add_blob``."""

    def __init__(self, blobs: list[Blob], new_blob: Callable[..., Blob]):
        super().__init__(blobs)
        self._new_blob = new_blob

    def add_blob(self, *shape: int) -> Blob:
        """Append a parameter of zeros with the given shape, and return it."""
        self.append(self._new_blob(*shape))
        return self[-1]


class PythonLayerBase:
    """The base class of users' layers, as ``caffe.Layer`` is in pycaffe.

    ``param_str``, ``phase`` and ``blobs`` are set before ``setup``.  Methods get lists of blobs
    with ``data``, ``diff``, ``shape`` and ``reshape``; the top is to be reshaped in ``reshape``.
    """

    # Declarations for the net, see `Layer`; a subclass may override them.
    in_place = True
    backward_needs_bottom = Need.VALUE
    backward_needs_top = Need.NONE

    type = "Python"
    param_str: str = ""
    phase: int = 0
    blobs: ParameterBlobs

    def __init__(self, layer_param: Any = None):
        """Make a layer; a subclass with its own constructor also gets the LayerParameter."""

    @property
    def param_str_(self) -> str:
        """``param_str``, as it was called before 2015; py-faster-rcnn's layers read it."""
        return self.param_str

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Read ``param_str``, check the bottoms, add parameters to ``self.blobs``."""

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Give the tops their shapes; called before every forward."""

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Set the data of the tops."""
        raise NotImplementedError("forward is not defined")

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        """Set the diffs of bottoms with ``propagate_down``, add to the diffs of parameters."""
        raise NotImplementedError("backward is not defined")


@functools.cache
def _tell_import(layer: str, module: str, file: str) -> None:
    """Log once which file is imported: every command that builds a net runs its code."""
    logger.info("Layer '%s' runs module '%s' of %s", layer, module, file)


@register("Python")
class Python(Layer):
    """A class ``layer`` of ``module``, which is found in the working directory or PYTHONPATH.

    With share_in_parallel a layer without bottoms (a data source) is shared by all ranks: rank r of
    P gets the result of its r-th forward, then of every P-th.
    """

    host_only = True
    bottoms = Arity(0, None)
    tops = Arity(0, None)
    reshape_every_forward = True
    shares_diffs = False
    shares_data = False
    idle_when_empty = False

    def __init__(self, param: Any, context: Any):
        super().__init__(param, context)
        self._user = self._instantiate()
        self._skip = 0
        if param.python_param.share_in_parallel and not param.bottom:
            self._skip = context.shard.rank

    def _instantiate(self) -> PythonLayerBase:
        param = self.param.python_param
        if not param.module or not param.layer:
            raise self.error("needs python_param { module: … layer: … }")
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)
        with contextlib.suppress(UsageError):  # an installed Caffe provides it itself
            caffe_modules.install()
        try:
            module = importlib.import_module(param.module)
        except ModuleNotFoundError as error:
            if error.name != param.module.partition(".")[0] and error.name != param.module:
                raise self._failure("import", error) from error
            raise self.error(
                f"found no module '{param.module}' in the working directory {here} or in "
                f"PYTHONPATH ({os.environ.get('PYTHONPATH') or 'not set'})"
            ) from None
        except Exception as error:
            raise self._failure("import", error) from error
        chosen = getattr(module, param.layer, None)
        if not isinstance(chosen, type):
            known = [name for name, value in vars(module).items() if isinstance(value, type)]
            hint = did_you_mean(param.layer, known) or f"; it has {', '.join(sorted(known))}"
            raise self.error(f"module '{param.module}' has no class '{param.layer}'{hint}")
        _tell_import(self.name, param.module, str(getattr(module, "__file__", "Python itself")))
        try:
            return chosen(self.param)
        except Exception as error:
            raise self._failure("__init__", error) from error

    def _failure(self, where: str, error: Exception) -> Exception:
        if isinstance(error, PcaffeError):
            return error
        param = self.param.python_param
        frames = traceback.extract_tb(error.__traceback__)
        own = getattr(sys.modules.get(param.module), "__file__", None)
        frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
        return self.error(
            f"{param.module}.{param.layer}: {where} raised {type(error).__name__}: {error} "
            f"({frame.filename}:{frame.lineno})"
        )

    def _call(self, method: str, *args: Any) -> None:
        # The net may have replaced the parameters.
        self._user.blobs = self.blobs  # type: ignore[assignment]
        try:
            getattr(self._user, method)(*args)
        except Exception as error:
            raise self._failure(method, error) from error

    @property
    def user_layer(self) -> PythonLayerBase:
        """The instance of the user's class."""
        return self._user

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        """What the user's class says."""
        return getattr(self._user, "in_place", True)

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """What the user's class says."""
        return getattr(self._user, "backward_needs_bottom", Need.VALUE)

    @property
    def backward_needs_top(self) -> Need:  # type: ignore[override]
        """What the user's class says."""
        return getattr(self._user, "backward_needs_top", Need.NONE)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        given = list(self.blobs)
        self.blobs = ParameterBlobs([], self.new_blob)
        self._user.param_str = self.param.python_param.param_str
        self._user.phase = Phase(self.phase)
        self._call("setup", bottom, top)
        if given:
            found, wanted = ([blob.shape for blob in blobs] for blobs in (given, self.blobs))
            if found != wanted:
                raise self.error(f"needs parameters of shapes {wanted}, found {found}")
            self.blobs[:] = given

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._call("reshape", bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for _ in range(self._skip):
            self._call("forward", bottom, top)
            self._call("reshape", bottom, top)
        self._call("forward", bottom, top)
        if self.param.python_param.share_in_parallel and not bottom:
            self._skip = self.context.shard.size - 1

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self._call("backward", top, propagate_down, bottom)
