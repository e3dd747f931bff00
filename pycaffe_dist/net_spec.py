"""Nets written in Python: layers as functions of their bottoms, as in pycaffe.

::

    from pycaffe_dist import NetSpec, layers as L, params as P

    n = NetSpec()
    n.data, n.label = L.Data(source="train_lmdb", backend=P.Data.LMDB, batch_size=64, ntop=2)
    n.pool = L.Pooling(n.data, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    print(n.to_proto())
"""

from __future__ import annotations

import importlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from pycaffe_dist import net_graph
from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.table import as_html

if TYPE_CHECKING:
    from google.protobuf.message import Message

# Layers whose parameters have another layer's name.
_BORROWED = {"Deconvolution": "convolution", "Im2col": "convolution"}


def param_name_dict() -> dict[str, str]:
    """Return the stem of the parameter field by layer type: ``{"Convolution": "convolution"}``."""
    names = {}
    for field in caffe_pb2.LayerParameter.DESCRIPTOR.fields:
        if field.name.endswith("_param") and field.message_type is not None:
            type_name = field.message_type.name.removesuffix("Parameter")
            names[type_name] = field.name.removesuffix("_param")
    return names


def to_proto(*tops: Top | Function) -> caffe_pb2.NetParameter:
    """Return a NetParameter with all layers that ``tops`` need, under automatic names."""
    return _net(tops, {})


def _net(tops: Any, names: dict[Any, str]) -> caffe_pb2.NetParameter:
    layers: OrderedDict[Function, caffe_pb2.LayerParameter] = OrderedDict()
    automatic: Counter[str] = Counter()
    for top in tops:
        top._to_proto(layers, names, automatic)
    net = caffe_pb2.NetParameter()
    net.layer.extend(layers.values())
    return net


def assign_proto(proto: Message, name: str, val: Any) -> None:
    """Set a field of a message to a Python value, including nested values.

    A dict fills a message, a list or tuple a repeated field; a single value for a repeated field
    counts as a list of one.  Raises AttributeError for an unknown field, as pycaffe does.
    """
    field = getattr(proto, name)
    repeated = hasattr(field, "extend")
    if isinstance(val, tuple):
        val = list(val)
    if repeated and not isinstance(val, list):
        val = [val]
    if repeated:
        for item in val:
            if isinstance(item, dict):
                _fill(field.add(), item)
            else:
                field.append(item)
    elif isinstance(val, dict):
        # Also an empty dict makes the message present.
        field.SetInParent()
        _fill(field, val)
    else:
        setattr(proto, name, val)


def _fill(proto: Message, values: dict[str, Any]) -> None:
    for name, value in values.items():
        assign_proto(proto, name, value)


class Top:
    """One output of a layer: the ``n``-th top of the function ``fn``."""

    def __init__(self, fn: Function, n: int):
        self.fn = fn
        self.n = n

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return a NetParameter with all layers that this top needs."""
        return to_proto(self)

    def _to_proto(self, layers: Any, names: Any, automatic: Any) -> None:
        self.fn._to_proto(layers, names, automatic)


class Function:
    """A layer: its type, the tops that are its inputs, and its parameters.

    ``ntop`` (1) and ``in_place`` (False) among the parameters say how many tops it has, and whether
    they take the inputs' names.  Raises TypeError when an input is not a Top.
    """

    def __init__(self, type_name: str, inputs: tuple[Top, ...], params: dict[str, Any]):
        for index, given in enumerate(inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(given)})")
        self.type_name = type_name
        self.inputs = inputs
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return a NetParameter with this layer and all layers that it needs."""
        return to_proto(self)

    def _name_of(self, thing: Top | Function, names: dict[Any, str], automatic: Counter) -> str:
        if thing not in names:
            automatic[self.type_name] += 1
            names[thing] = f"{self.type_name}{automatic[self.type_name]}"
        return names[thing]

    def _to_proto(self, layers: Any, names: dict[Any, str], automatic: Counter) -> None:
        if self in layers:
            return
        layer = caffe_pb2.LayerParameter(type=self.type_name)
        for top in self.inputs:
            top._to_proto(layers, names, automatic)
            layer.bottom.append(layers[top.fn].top[top.n])
        if self.in_place:
            layer.top.extend(layer.bottom)
        else:
            layer.top.extend(self._name_of(top, names, automatic) for top in self.tops)
        # A layer is named after its first top.
        if self not in names and self.tops:
            names[self] = self._name_of(self.tops[0], names, automatic)
        layer.name = self._name_of(self, names, automatic)
        for name, value in self.params.items():
            self._assign(layer, name, value)
        layers[self] = layer

    def _assign(self, layer: caffe_pb2.LayerParameter, name: str, value: Any) -> None:
        """Set a field of the type's own parameters, or else of the layer."""
        stem = _param_names.get(self.type_name) or _BORROWED.get(self.type_name)
        own = f"{stem}_param"
        place = layer
        if stem and not name.endswith("param"):
            known = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name[own].message_type
            if name in known.fields_by_name:
                place = getattr(layer, own)
        fields = place.DESCRIPTOR.fields_by_name
        if name not in fields:
            known_names = list(fields)
            if stem:
                known_names += getattr(layer, own).DESCRIPTOR.fields_by_name
            raise _UnknownField(
                f"layer '{layer.name}' ({self.type_name}) has no parameter '{name}'"
                f"{did_you_mean(name, known_names)}"
            )
        try:
            assign_proto(place, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise _BadValue(
                f"layer '{layer.name}' ({self.type_name}): cannot set {name} to {value!r}: {error}"
            ) from error


class _UnknownField(UsageError, AttributeError):
    """As in pycaffe, it is an AttributeError, too."""


class _BadValue(UsageError, AttributeError, TypeError, ValueError):
    """A value that does not fit its field."""


class NetSpec:
    """A net whose tops are attributes: their names are the blobs' and layers' names."""

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tops[name]
        except KeyError:
            hint = did_you_mean(name, self.tops)
            raise _UnknownTop(f"the net specification has no top '{name}'{hint}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return a NetParameter with all layers that the tops need, under the attributes' names."""
        return _net(self.tops.values(), {top: name for name, top in self.tops.items()})

    def __repr__(self) -> str:
        return f"<NetSpec: {', '.join(self.tops) or 'no tops'}>"

    def _repr_html_(self) -> str:
        net = self.to_proto()
        rows = [("layer", "type", "bottoms", "tops", "fields"), *map(_cells, net.layer)]
        return f"{as_html(rows, range(5))}\n{net_graph.to_html(net.layer)}"


def _cells(layer: caffe_pb2.LayerParameter) -> tuple[str, ...]:
    """Return a layer's row."""
    own = [value for field, value in layer.ListFields() if field.name.endswith("_param")]
    fields = " ".join(text_format.MessageToString(value, as_one_line=True) for value in own)
    return layer.name, layer.type, " ".join(layer.bottom), " ".join(layer.top), fields


class _UnknownTop(UsageError, AttributeError, KeyError):
    """A KeyError, as in pycaffe, and an AttributeError, so that hasattr works."""

    def __str__(self) -> str:
        return str(self.args[0])


class _UnknownType(UsageError, AttributeError):
    """An AttributeError, too, so that hasattr works."""


def _layer_types() -> list[str]:
    # Imported when it is needed: it makes layers, and a specification does not.
    return importlib.import_module("pycaffe_dist.layers").layer_types()


class Layers:
    """``L.TYPE(bottom, ..., parameter=value)`` makes a layer of that type.

    It returns the layer's top, a tuple of tops for ``ntop`` above 1, the `Function` for ``ntop`` 0.
    A type may be another program's; one that looks like a mistyped one raises UsageError.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        known = _layer_types()
        if name not in known and (hint := did_you_mean(name, known)):
            raise _UnknownType(f"unknown layer type '{name}'{hint}")

        def layer(*args: Top, **kwargs: Any) -> Any:
            fn = Function(name, args, kwargs)
            if fn.ntop == 0:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        layer.__name__ = layer.__qualname__ = name
        return layer


class Parameters:
    """``P.Pooling.MAX`` is the value of an enum in PoolingParameter."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        message = getattr(caffe_pb2, f"{name}Parameter", None)
        if message is None:
            known = [
                m.removesuffix("Parameter") for m in caffe_pb2.DESCRIPTOR.message_types_by_name
            ]
            raise AttributeError(f"there are no parameters '{name}'{did_you_mean(name, known)}")
        return message


_param_names = param_name_dict()
layers = Layers()
params = Parameters()
