"""Exports a net to a PyTorch file and its weights, which are checked before they are kept."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_dist import atomic
from pycaffe_dist.errors import UsageError
from pycaffe_dist.exporting import checking, safetensors
from pycaffe_dist.exporting.options import TOLERANCE, Options, Report
from pycaffe_dist.exporting.statistics import fold
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.exporting.torch.module import source_of
from pycaffe_dist.layers.base import is_test
from pycaffe_dist.net.net import Net


def export(net: Net, path: str, options: Options) -> Report:
    """Write ``net`` to ``path``, which ends in .py, and its weights to .safetensors beside it.

    Without PyTorch, and where a net drops values at random, the results are not compared.  Raises
    NetError when layers cannot be expressed or results differ; nothing is written then.
    """
    file = Path(path)
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UsageError(f"a PyTorch module needs a file like net.py, not '{path}'")
    training = not is_test(net.phase)
    steps = steps_of(net, training)
    folded = fold(steps) if options.fold else 0
    text, source = source_of(net, steps, options.solver)
    weights = file.with_suffix(".safetensors")
    report = Report([path, str(weights)], left_out=steps.left_out, folded=folded)
    if importlib.util.find_spec("torch") is None:
        report = report.without_check("PyTorch is not installed")
    elif training and any(step.type == "Dropout" for step in steps.steps):
        report = report.without_check("the net drops values at random")
    else:
        inputs = checking.random_inputs(steps, steps.inputs)
        theirs = Module(text, source.title, source.state, training).run(inputs)
        blobs = {steps.blobs.get(name, name): name for name in steps.outputs}
        named = {name: blob for name, blob in zip(blobs, blobs) if name in net.blobs}
        ours = checking.forward(net, inputs, named)
        found = checking.differences(ours, theirs)
        checking.require(found, options.tolerance or TOLERANCE)
        report = report.with_differences(found)
    safetensors.write(weights, source.state)
    with atomic.replacing(file) as new:
        new.write_text(text, encoding="utf-8")
    return report


class Module:
    """An exported module that PyTorch runs, from the text of its file and its state."""

    def __init__(self, text: str, name: str, state: Mapping[str, np.ndarray], training: bool):
        import torch

        self._torch = torch
        self.namespace: dict[str, Any] = {"__name__": "exported"}
        exec(compile(text, "exported", "exec"), self.namespace)
        self.net = self.namespace[name]()
        self.net.load_state_dict({key: torch.tensor(value) for key, value in state.items()})
        self.net.train(training)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        tensors = [self._torch.tensor(value) for value in inputs.values()]
        with self._torch.no_grad():
            return {name: value.numpy() for name, value in self.net(*tensors).items()}
