"""Nets that grow layer by layer, and prototxts that people like to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format

from pycaffe_dist.net_spec import assign_proto, param_name_dict
from pycaffe_dist.schema import caffe_pb2

WIDTH = 96
# Learning rates and decays of weights and biases, as most published nets have them.
USUAL = ((1, 1), (2, 0))

_FIELDS = param_name_dict() | {"LSTM": "recurrent", "SoftmaxWithLoss": "softmax"}


class Builder:
    """A net that grows layer by layer; methods return the name of the new layer's top."""

    def __init__(self, name: str):
        self.net = caffe_pb2.NetParameter(name=name)

    def add(
        self,
        type: str,
        name: str,
        bottom: str | Sequence[str],
        top: str | Sequence[str] | None = None,
        fields: dict[str, Any] | None = None,
        **param: Any,
    ) -> str:
        """Add a layer with ``param`` in its own parameters and ``fields`` beside them."""
        bottoms = [bottom] if isinstance(bottom, str) else list(bottom)
        tops = [name] if top is None else [top] if isinstance(top, str) else list(top)
        layer = self.net.layer.add(name=name, type=type, bottom=bottoms, top=tops)
        for key, value in (fields or {}).items():
            assign_proto(layer, key, value)
        for key, value in param.items():
            assign_proto(getattr(layer, f"{_FIELDS[type]}_param"), key, value)
        return tops[0]

    def weighted(
        self,
        type: str,
        name: str,
        bottom: str,
        filler: dict[str, Any],
        bias: float | None = 0.0,
        rates: Sequence[tuple[float, float]] = USUAL,
        names: Sequence[str] = (),
        **param: Any,
    ) -> str:
        """Add a layer with weights and, unless ``bias`` is None, biases that begin with it."""
        count = 1 if bias is None else 2
        specs = [{"lr_mult": lr, "decay_mult": decay} for lr, decay in rates[:count]]
        for spec, shared in zip(specs, names):
            spec["name"] = shared
        if bias is None:
            param["bias_term"] = False
        else:
            param["bias_filler"] = {"type": "constant", "value": bias}
        return self.add(type, name, bottom, fields={"param": specs}, weight_filler=filler, **param)

    def conv(self, name: str, bottom: str, outputs: int, size: int, **param: Any) -> str:
        """Add a convolution; its filler is xavier's unless it is given."""
        param.setdefault("filler", {"type": "xavier"})
        return self.weighted(
            "Convolution", name, bottom, num_output=outputs, kernel_size=[size], **_listed(param)
        )

    def fc(self, name: str, bottom: str, outputs: int, **param: Any) -> str:
        """Add an inner product; its filler is xavier's unless it is given."""
        param.setdefault("filler", {"type": "xavier"})
        return self.weighted("InnerProduct", name, bottom, num_output=outputs, **param)

    def relu(self, name: str, bottom: str) -> str:
        """Add a ReLU in place."""
        return self.add("ReLU", name, bottom, bottom)

    def pool(self, name: str, bottom: str, size: int, stride: int, kind: str = "MAX", **p) -> str:
        """Add a pooling."""
        kind_number = caffe_pb2.PoolingParameter.PoolMethod.Value(kind)
        return self.add("Pooling", name, bottom, pool=kind_number, kernel_size=size,
                        stride=stride, **p)  # fmt: skip

    def dropout(self, name: str, bottom: str, ratio: float = 0.5) -> str:
        """Add a dropout in place."""
        return self.add("Dropout", name, bottom, bottom, dropout_ratio=ratio)

    def norm(self, name: str, bottom: str, size: int = 5) -> str:
        """Add AlexNet's normalization across channels."""
        return self.add("LRN", name, bottom, local_size=size, alpha=1e-4, beta=0.75)

    def accuracy(self, name: str, bottom: str, top_k: int = 1) -> str:
        """Add an accuracy to the TEST phase."""
        param = {"top_k": top_k} if top_k > 1 else {}
        return self.add("Accuracy", name, (bottom, "label"),
                        fields={"include": [{"phase": caffe_pb2.TEST}]}, **param)  # fmt: skip


def _listed(param: dict[str, Any]) -> dict[str, Any]:
    """Wrap a convolution's sizes in lists, as their fields are repeated."""
    repeated = ("pad", "stride")
    return {key: [value] if key in repeated else value for key, value in param.items()}


def as_text(message: Any, depth: int = 0) -> str:
    """Return a message as a prototxt whose short parts are on one line."""
    lines = []
    indent = "  " * depth
    for field, value in message.ListFields():
        for item in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
            single = type(message)()
            target = getattr(single, field.name)
            if hasattr(target, "add"):
                target.add().CopyFrom(item)
            elif hasattr(target, "append"):
                target.append(item)
            elif hasattr(target, "CopyFrom"):
                target.CopyFrom(item)
            else:
                setattr(single, field.name, item)
            line = text_format.MessageToString(single, as_one_line=True)
            nested = field.message_type is not None
            if nested and (field.name == "layer" or len(indent + line) > WIDTH):
                body = as_text(item, depth + 1)
                lines.append(f"{indent}{field.name} {{\n{body}{indent}}}")
            else:
                lines.append(indent + line)
    return "\n".join(lines) + "\n" if lines else ""
