"""A figure of matplotlib that notebooks show and that needs no display."""

from __future__ import annotations

import io
from typing import Any

from pycaffe_dist.errors import UsageError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise UsageError("plots need matplotlib: pip install 'pycaffe-dist[plot]'") from None


class Picture(Figure):
    """A figure that fits its charts; ``savefig(path)`` writes a file."""

    def __init__(self, **options: Any):
        super().__init__(layout="constrained", **options)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        """Return the picture for a notebook, also for one that did not import pyplot."""
        image = io.BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()
