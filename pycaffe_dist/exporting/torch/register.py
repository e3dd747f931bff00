"""The converters to PyTorch: functions of a step and a source, which get lines of code."""

from __future__ import annotations

from pycaffe_dist.exporting.converters import Converters

CONVERTERS = Converters("PyTorch", "pycaffe_dist.exporting.torch")
converts = CONVERTERS.converts
