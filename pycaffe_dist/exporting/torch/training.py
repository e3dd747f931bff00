"""A solver as an optimizer and a schedule of rates, in an exported PyTorch file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.net.net import Net
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.method import method_class
from pycaffe_dist.solvers.moments import Moments

# The arguments of each method, fields of the solver.
_METHODS = {
    "SGD": ("momentum",),
    "Nesterov": ("momentum",),
    "AdaGrad": ("delta",),
    "RMSProp": ("rms_decay", "delta"),
    "AdaDelta": ("momentum", "delta"),
    "Adam": ("momentum", "momentum2", "delta"),
    "AdamW": ("momentum", "momentum2", "delta"),
    "Lion": ("momentum", "momentum2"),
}


def training_lines(net: Net, source: Source, solver: caffe_pb2.SolverParameter) -> list[str]:
    """Return the functions ``optimizer`` and ``schedule``; raises NetError.

    The parameters with the same multipliers of rate and decay are a group.
    """
    options, part = _options(net, solver), source.part(solver.type)
    return [
        "def optimizer(net):",
        '    """Return the solver\'s method, with its rates and decays of parameters."""',
        "    groups = [",
        *_groups(net, source, solver),
        "    ]",
        f"    return {part}(groups, {arguments(**options)})",
        "",
        "",
        "def schedule(optimizer):",
        '    """Return the solver\'s rates; call its step after each of the optimizer\'s."""',
        "    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)",
        "",
        "",
        "def rate(iteration):",
        '    """Return the rate of an iteration, as a share of the first."""',
        *(f"    {line}" for line in _rate(source, solver)),
    ]


def _options(net: Net, solver: caffe_pb2.SolverParameter) -> dict[str, Any]:
    """Return the arguments of the method beside the parameters; raises NetError."""
    if solver.type not in _METHODS:
        raise _missing("type", solver.type, _METHODS)
    if solver.larc_policy:
        raise _missing("larc_policy", solver.larc_policy)
    options: dict[str, Any] = {name: getattr(solver, name) for name in _METHODS[solver.type]}
    method = method_class(solver.type)
    if issubclass(method, Moments):
        options["momentum"], options["momentum2"] = method.decays_of(solver)
    kinds = {each.regularization or solver.regularization_type for each in net.parameters}
    if len(kinds) > 1:
        raise _missing("regularization_type, of some parameters only,", "L1")
    if kinds == {"L1"}:
        if solver.type == "AdamW":
            raise _missing("regularization_type, with AdamW,", "L1")
        options["decay_l1"] = True
    if solver.iter_size > 1:
        options["iter_size"] = solver.iter_size
    if solver.clip_gradients >= 0:
        options["clip"] = solver.clip_gradients
    return options


def _missing(field: str, value: str, known: Iterable[str] = ()) -> NetError:
    """Return the error for a field of the solver that cannot be expressed."""
    others = ", ".join(known)
    hint = f"; known are {others}" if others else ""
    return NetError(f"the solver's {field} '{value}' cannot be expressed in PyTorch{hint}")


def _groups(net: Net, source: Source, solver: caffe_pb2.SolverParameter) -> list[str]:
    """Return lines with a group for each pair of multipliers."""
    groups: dict[tuple[float, float], list[str]] = {}
    for parameter in net.parameters:
        layer = source.attribute(net.nodes[parameter.layer_index].name)
        key = source.learnt.get((layer, parameter.index))
        if key is not None and parameter.lr_mult:
            groups.setdefault((parameter.lr_mult, parameter.decay_mult), []).append(f"net.{key}")
    lines = []
    for (rate, decay), names in groups.items():
        lr, weight_decay = solver.base_lr * rate, solver.weight_decay * decay
        lines += ["        {", '            "params": [']
        lines += [f"                {name}," for name in names]
        lines += ["            ],", f'            "lr": {arguments(lr)},']
        lines += [f'            "weight_decay": {arguments(weight_decay)},', "        },"]
    return lines


def _cosine(source: Source, solver: caffe_pb2.SolverParameter) -> str:
    """Return the rate of lr_policy cosine."""
    growth = [solver.restart_mult] if solver.restart_iter else []
    length = solver.restart_iter or solver.max_iter - solver.warmup_iter
    done = f"max(0, iteration - {solver.warmup_iter})" if solver.warmup_iter else "iteration"
    last = solver.min_lr / solver.base_lr
    return f"{source.part('cosine')}({done}, {arguments(length, last, *growth)})"


def _onecycle(source: Source, solver: caffe_pb2.SolverParameter) -> str:
    """Return the rate of lr_policy onecycle."""
    first = 1 / solver.onecycle_div
    shares = solver.onecycle_rise, first, first / solver.onecycle_final_div
    return f"{source.part('one_cycle')}(iteration, {arguments(solver.max_iter, *shares)})"


_CYCLES = {"cosine": _cosine, "onecycle": _onecycle}


def _rate(source: Source, solver: caffe_pb2.SolverParameter) -> list[str]:
    """Return the lines of the function ``rate``."""
    gamma, power = arguments(solver.gamma), arguments(solver.power)
    steps = {
        "fixed": "1.0",
        "step": f"{gamma} ** (iteration // {solver.stepsize})",
        "exp": f"{gamma} ** iteration",
        "inv": f"(1 + {gamma} * iteration) ** -{power}",
        "multistep": f"{gamma} ** sum(iteration >= at for at in {list(solver.stepvalue)})",
        "poly": f"max(0, 1 - iteration / {solver.max_iter}) ** {power}",
        "sigmoid": f"1 / (1 + 2.718281828459045 ** (-{gamma} * (iteration - {solver.stepsize})))",
    }
    if solver.lr_policy not in (*steps, *_CYCLES):
        raise _missing("lr_policy", solver.lr_policy, (*steps, *_CYCLES))
    if solver.lr_policy in _CYCLES:
        value = _CYCLES[solver.lr_policy](source, solver)
    else:
        value = steps[solver.lr_policy]
    if solver.min_lr:
        value = f"max({value}, {arguments(solver.min_lr / solver.base_lr)})"
    if not solver.warmup_iter:
        return [f"return {value}"]
    start = arguments(solver.warmup_start_lr / solver.base_lr)
    done = f"(iteration / {solver.warmup_iter})"
    done += " ** 2" if solver.warmup_type == "quadratic" else ""
    return [
        f"value = {value}",
        f"if iteration >= {solver.warmup_iter}:",
        "    return value",
        f"return {start} + (value - {start}) * {done}",
    ]
