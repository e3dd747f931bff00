"""Exports a net to an ONNX file, which is checked before it is kept."""

from __future__ import annotations

from collections.abc import Collection

from pycaffe_dist import atomic
from pycaffe_dist.errors import NetError, UsageError
from pycaffe_dist.exporting import checking
from pycaffe_dist.exporting.onnx.models import (
    BATCH,
    IMAGE,
    Session,
    model_of,
    reshaped,
    varying_axes,
)
from pycaffe_dist.exporting.options import HALF_TOLERANCE, TOLERANCE, Options, Report
from pycaffe_dist.exporting.preprocessing import preprocessing_of
from pycaffe_dist.exporting.statistics import fold
from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.net.net import Net
from pycaffe_dist.reports.compare import Difference


def export(net: Net, path: str, options: Options) -> Report:
    """Write ``net`` to ``path``, with as many axes of the inputs that vary as the net allows.

    Raises NetError when layers cannot be expressed, or when the results differ by more than the
    tolerance; nothing is written then.
    """
    if not path.endswith(".onnx"):
        raise UsageError(f"an ONNX model needs a file like net.onnx, not '{path}'")
    tolerance = options.tolerance or (HALF_TOLERANCE if options.float16 else TOLERANCE)
    made, fixed = _Making(net, options, tolerance), ""
    for vary in (IMAGE, BATCH, frozenset()):
        model, found = made.attempt(vary)
        if model:
            break
        fixed = fixed or made.reason
    checking.require(found, tolerance)
    with atomic.replacing(path) as new:
        new.write_bytes(model)
    return Report(
        files=[path],
        differences=found,
        varies=varying_axes(made.steps, vary),
        left_out=made.steps.left_out,
        folded=made.folded,
        fixed=fixed,
    )


class _Making:
    """Attempts to export a net."""

    def __init__(self, net: Net, options: Options, tolerance: float):
        self._net, self._options, self._tolerance = net, options, tolerance
        self.steps = steps_of(net)
        self.folded = fold(self.steps) if options.fold else 0
        source = options.preprocess
        self._preprocessing = None if source is None else preprocessing_of(source, self.steps)
        #: Why the last attempt failed, if its results were beyond the tolerance.
        self.reason = ""

    def attempt(self, vary: Collection[int]) -> tuple[bytes, list[Difference]]:
        """Return the model, with the differences; empty if these axes cannot vary."""
        shapes = self.steps.inputs
        others = {name: reshaped(shape, vary) for name, shape in shapes.items()}
        if vary and (others == shapes or not checking.takes(self._net, others)):
            return b"", []
        model = model_of(self.steps, vary, self._options.float16, self._preprocessing)
        content = model.SerializeToString()
        try:
            session = Session(content)
            found = self._differences(session, shapes)
            if vary:
                found += self._differences(session, others)
        except NetError:
            if vary:
                return b"", []
            raise
        if vary and checking.largest(found) > self._tolerance:
            worst = checking.worst(found)
            sizes = ", ".join(varying_axes(self.steps, vary))
            self.reason = (
                f"{sizes}: with other sizes '{worst.name}' differs by "
                f"{worst.note or format(worst.relative, '.3g')}, more than {self._tolerance:g}"
            )
            return b"", []
        return content, found

    def _differences(self, session: Session, shapes: dict) -> list[Difference]:
        """Compare the outputs for random inputs of these shapes."""
        inputs = checking.random_inputs(self.steps, shapes)
        given = dict(inputs)
        if self._preprocessing is not None:
            name = self._preprocessing.input
            inputs[name] = self._preprocessing.apply(given[name])
        blobs = {name: self.steps.blobs[name] for name in self.steps.outputs}
        ours = checking.forward(self._net, inputs, blobs)
        return checking.differences(ours, session.run(given))
