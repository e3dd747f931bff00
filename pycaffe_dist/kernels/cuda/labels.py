"""Labels and their losses on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.cuda.rows import block_size
from pycaffe_dist.kernels.labels import NOTHING_WRONG

_cu = kernels("labels")


def class_numbers(
    values: Any, limit: int, ignore: int, whole: bool, numbers: Any, counted: Any, wrong: Any
) -> None:
    """See `pycaffe_dist.kernels.labels.class_numbers`."""
    wrong.fill(NOTHING_WRONG)
    results = numbers, counted, wrong, values.size
    _cu.class_numbers(values.size, values, limit, ignore, whole, *results)


def total_loss(
    losses: Any, valid: Any, wrong_at: Any, labels: Any, divisor: float, total: Any, wrong: Any
) -> None:
    """See `pycaffe_dist.kernels.labels.total_loss`."""
    outer, inner = labels.shape
    arrays = losses, valid, wrong_at, labels
    threads = block_size(outer)
    _cu.total_loss.blocks(1, *arrays, divisor, total, wrong, outer, inner, threads=threads)


def label_hits(scores: Any, numbers: Any, counted: Any, top_k: int, hits: Any) -> None:
    """See `pycaffe_dist.kernels.labels.label_hits`."""
    outer, classes, inner = scores.shape
    args = scores, numbers, counted, top_k, hits
    if inner == 1:
        threads = block_size(classes)
        _cu.label_hits_in_rows.blocks(outer, *args, classes, outer, threads=threads)
    else:
        layout = *division(max(1, inner)), classes, inner, hits.size
        _cu.label_hits(hits.size, *args, *layout)


def class_counts(numbers: Any, chosen: Any, counts: Any) -> None:
    """See `pycaffe_dist.kernels.labels.class_counts`."""
    sizes = counts.size, numbers.size
    threads = block_size(numbers.size)
    _cu.class_counts.blocks(counts.size, numbers, chosen, counts, *sizes, threads=threads)
