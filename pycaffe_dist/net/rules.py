"""Selects the layers of a net, by include and exclude rules on phase, level and stages."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.errors import NetError
from pycaffe_dist.log import DETAIL, logger
from pycaffe_dist.schema import caffe_pb2


def with_state(
    net_param: caffe_pb2.NetParameter,
    phase: int | None = None,
    level: int | None = None,
    stages: tuple[str, ...] = (),
) -> caffe_pb2.NetParameter:
    """Return a copy of a NetParameter whose state has the given phase, level and stages."""
    copy: Any = caffe_pb2.NetParameter()
    copy.CopyFrom(net_param)
    if phase is not None:
        copy.state.phase = phase
    if level is not None:
        copy.state.level = level
    copy.state.stage.extend(stages)
    return copy


def kept_layers(net_param: caffe_pb2.NetParameter, *, log: bool = True) -> list[int]:
    """Return the indices of the layers that belong to a NetParameter in its state.

    A layer with include rules belongs if one of them is met, a layer with exclude rules unless one
    is met; both kinds on one layer raise NetError.  With ``log``, rules that are not met are
    logged.
    """
    return [i for i, layer in enumerate(net_param.layer) if _stays(layer, net_param.state, log)]


def _stays(layer: caffe_pb2.LayerParameter, state: caffe_pb2.NetState, log: bool) -> bool:
    if layer.include and layer.exclude:
        raise NetError(
            f"layer '{layer.name}' has include and exclude rules; only one kind is allowed"
        )
    if layer.include:
        return any(_meets(state, rule, layer.name, log) for rule in layer.include)
    return not any(_meets(state, rule, layer.name, log) for rule in layer.exclude)


def filter_layers(net_param: caffe_pb2.NetParameter, kept: list[int]) -> caffe_pb2.NetParameter:
    """Return a copy of a NetParameter with only the layers of these indices."""
    filtered = caffe_pb2.NetParameter()
    filtered.CopyFrom(net_param)
    del filtered.layer[:]
    filtered.layer.extend(net_param.layer[i] for i in kept)
    return filtered


def _meets(
    state: caffe_pb2.NetState, rule: caffe_pb2.NetStateRule, layer_name: str, log: bool
) -> bool:
    reason = _broken_by(state, rule)
    if reason and log:
        logger.log(DETAIL, "%s specified by a rule in layer %s", reason, layer_name)
    return not reason


def _broken_by(state: caffe_pb2.NetState, rule: caffe_pb2.NetStateRule) -> str:
    """Return, in Caffe's words, why ``state`` does not meet ``rule``; empty if it does."""
    if rule.HasField("phase") and rule.phase != state.phase:
        return f"The NetState phase ({state.phase}) differed from the phase ({rule.phase})"
    if rule.HasField("min_level") and state.level < rule.min_level:
        return f"The NetState level ({state.level}) is above the min_level ({rule.min_level})"
    if rule.HasField("max_level") and state.level > rule.max_level:
        return f"The NetState level ({state.level}) is above the max_level ({rule.max_level})"
    for stage in rule.stage:
        if stage not in state.stage:
            return f"The NetState did not contain stage '{stage}'"
    for stage in rule.not_stage:
        if stage in state.stage:
            return f"The NetState contained a not_stage '{stage}'"
    return ""
