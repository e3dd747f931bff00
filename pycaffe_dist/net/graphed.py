"""The passes of a solver's net on a GPU, as CUDA graphs where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from time import perf_counter
from typing import Any

from pycaffe_dist import device as devices
from pycaffe_dist.gpu.repeating import Repeating
from pycaffe_dist.log import DETAIL, logger
from pycaffe_dist.net.net import Hook, Net
from pycaffe_dist.net.parameter import Parameter
from pycaffe_dist.net.pending import PendingLoss
from pycaffe_dist.profiling import Kind


class Passes:
    """Runs a net forward and backward, with the results of `Net`'s own methods.

    With ``memory``, a `GPU.graph_memory`, the passes are repeated as CUDA graphs.  Layers that only
    read data run on the host first.  While hooks or debug_info see single layers, or if the net
    cannot be captured, the net's own methods run.  A graph is one span of time.
    """

    def __init__(self, net: Net, memory: Any):
        self._net = net
        self._hosts = [i for i, node in enumerate(net.nodes) if node.layer.host_only]
        self._blobs = [*net.blobs.values(), *(p.blob for p in net.parameters)]
        self._loss = PendingLoss()
        # One for gradients that replace old values, one for gradients that are added.
        self._repeated: list[Repeating] = []
        self._current: Repeating | None = None
        self._accumulate = False
        if memory is not None:
            self._make_repeated(net.device, memory)

    def _make_repeated(self, gpu: Any, memory: Any) -> None:
        reason = refusal(self._net)
        if reason:
            logger.log(DETAIL, "No CUDA graph of the net: %s", reason)
            return
        whole = "forward and backward"
        for name, accumulate in ((whole, False), (f"{whole} of later batches", True)):
            backward = partial(self._net.backward, accumulate=accumulate)
            self._repeated.append(Repeating(gpu, memory, name, [self._forward, backward]))

    def start_forward(self, accumulate: bool, before_layer: Hook | None = None) -> PendingLoss:
        """Run all layers forward; the loss counts until the next forward.

        ``accumulate`` tells whether the next `backward` adds to the parameters' diffs.
        """
        net, self._accumulate, self._current = self._net, accumulate, None
        if not self._repeated or before_layer or net.is_observed:
            return net.start_forward(before_layer=before_layer)
        self._current = self._repeated[accumulate]
        with devices.use(net.device):
            for index in self._hosts:
                net.run_forward(PendingLoss(), index, index)
            layouts = [blob.layout for blob in self._blobs]
            self._current.begin((net.loss_scale, net.reshapes, layouts))
            self._run(self._current, 0, Kind.FORWARD)
            self._loss.start_reading()
        return self._loss

    def _run(self, repeated: Repeating, part: int, kind: str) -> None:
        started, record = perf_counter(), self._net.record
        self._net.record = None  # rounds that run call by call are one span, too
        try:
            repeated.run(part)
        finally:
            self._net.record = record
        if record is not None:
            record((kind, "all", started, perf_counter(), 0))

    def _forward(self) -> None:
        self._loss.start_again()
        self._net.run_forward(self._loss, but=self._hosts)

    def backward(
        self,
        on_gradient_ready: Callable[[Parameter], None] | None = None,
        factored: Collection[str] = (),
    ) -> None:
        """Run all layers backward, after `start_forward`; see `Net.backward`."""
        if self._current is None:
            self._net.backward(
                on_gradient_ready=on_gradient_ready, factored=factored, accumulate=self._accumulate
            )
            return
        with devices.use(self._net.device):
            self._run(self._current, 1, Kind.BACKWARD)
        if on_gradient_ready is not None:
            for parameter in reversed(self._net.parameters):
                if parameter.receives_gradient:
                    on_gradient_ready(parameter)


def refusal(net: Net) -> str:
    """Return why the passes of a net cannot be captured; empty if they may."""
    tops = [(node.layer.host_only, name) for node in net.nodes for name in node.top_names]
    read = {name for host, name in tops if host} - {name for host, name in tops if not host}
    for node in net.nodes:
        layer, what = node.layer, f"layer '{node.name}' ({node.layer.type})"
        if layer.host_only and (node.need_backward or not set(node.bottom_names) <= read):
            return f"{what} runs on the host, between others"
        if layer.reshape_every_forward:
            return f"{what} is reshaped in every pass"
        if not layer.repeats:
            return f"{what} does not do the same in every pass"
    return ""
