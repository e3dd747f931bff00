"""Writes a net as the source of a PyTorch module."""

from __future__ import annotations

import json
import textwrap

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.steps import Steps
from pycaffe_dist.exporting.torch.register import CONVERTERS
from pycaffe_dist.exporting.torch.source import Source
from pycaffe_dist.exporting.torch.training import training_lines
from pycaffe_dist.net.net import Net
from pycaffe_dist.schema import caffe_pb2


def source_of(
    net: Net, steps: Steps, solver: caffe_pb2.SolverParameter | None = None
) -> tuple[str, Source]:
    """Return the text of a Python file with the module, and what it is made of.

    Raises NetError with all layers that PyTorch cannot express.
    """
    if not steps.outputs:
        raise NetError(f"net '{net.name}' has no outputs to export")
    source = Source(steps)
    CONVERTERS.run(steps.steps, source)
    _share(net, source)
    training = [] if solver is None else ["", "", *training_lines(net, source, solver)]
    name, parts = source.title, source.part_sources()
    lines = [
        f'"""{net.name or "A net"}, exported from Caffe\'s format by pcaffe."""',
        "",
        *(["import math"] if any("math." in part for part in parts) else []),
        "from pathlib import Path",
        "",
        "import torch",
        "from torch import nn",
        "from torch.nn import functional as F",
        *(f"\n\n{text}" for text in parts),
        "",
        "",
        *_class(name, net, steps, source),
        *training,
        "",
        "",
        "def load(path=None):",
        '    """Return the module with its trained weights."""',
        "    from safetensors.torch import load_file",
        "",
        f"    net = {name}()",
        '    net.load_state_dict(load_file(path or Path(__file__).with_suffix(".safetensors")))',
        f"    return net.{'eval' if net.phase == caffe_pb2.TEST else 'train'}()",
        "",
    ]
    return "\n".join(lines), source


def _class(name: str, net: Net, steps: Steps, source: Source) -> list[str]:
    """Return the lines of the module's class."""
    weighted = [
        top
        for step in steps.steps
        for top, weight in zip(step.tops, step.layer.loss_weights)
        if weight
    ]
    returned = dict.fromkeys([*steps.outputs, *weighted])
    outputs = (f'"{steps.blobs.get(v, v)}": {source.variable(v)}' for v in returned)
    shapes = (
        f"{variable} {shape}" for variable, shape in zip(source.inputs, steps.inputs.values())
    )
    weights = {
        steps.blobs.get(top, top): weight
        for step in steps.steps
        for top, weight in zip(step.tops, step.layer.loss_weights)
        if weight
    }
    about = f"Inputs: {'; '.join(shapes)}.  Returns the outputs by name."
    lines = [
        f"class {name}(nn.Module):",
        '    """The net.',
        "",
        *textwrap.wrap(about, 96, initial_indent="    ", subsequent_indent="    "),
        '    """',
        "",
        *([f"    loss_weights = {json.dumps(weights)}", ""] if weights else []),
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {line}" for line in source.made),
        "",
        f"    def forward({', '.join(['self', *source.inputs])}):",
        *(f"        {line}" for line in source.lines),
        f"        return {{{', '.join(outputs)}}}",
    ]
    if weights:
        lines += [
            "",
            "    def total_loss(self, outputs):",
            '        """Return the sum of the losses, each times its weight."""',
            "        return sum(w * outputs[name].sum() for name, w in self.loss_weights.items())",
        ]
    return lines


def _share(net: Net, source: Source) -> None:
    """Let parameters that layers share be one."""
    for parameter in net.parameters:
        owner = source.attribute(net.nodes[parameter.layer_index].name)
        first = source.learnt.get((owner, parameter.index))
        for layer, index in parameter.sharers:
            other = source.learnt.get((source.attribute(net.nodes[layer].name), index))
            if first and other and other != first:
                source.made.append(f"self.{other} = self.{first}")
