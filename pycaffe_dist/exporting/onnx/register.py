"""The converters to ONNX: functions of a step and a graph, which get nodes for its tops."""

from __future__ import annotations

from pycaffe_dist.exporting.converters import Converters

CONVERTERS = Converters("ONNX", "pycaffe_dist.exporting.onnx")
converts = CONVERTERS.converts
