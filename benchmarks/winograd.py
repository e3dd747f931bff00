"""Times the ways to compute a convolution, to see whether the fastest is chosen on this processor.

Prints for each shape and pass the microseconds per image of the direct kernels (0) and of Winograd
with tiles of 4 and 2 outputs, the choice of `best_tile`, and its time relative to the fastest.  One
thread; processor time; medians of interleaved runs.

    python benchmarks/winograd.py
    PCAFFE_SIMD=avx2 python benchmarks/winograd.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from pycaffe_dist.kernels.convolution import ConvolutionGeometry
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.jit.convolution.rows import RowConvolution
from pycaffe_dist.kernels.jit.convolution.weights import WeightGradient
from pycaffe_dist.kernels.jit.winograd.convolution import WinogradConvolution
from pycaffe_dist.kernels.jit.winograd.costs import TILES, best_tile
from pycaffe_dist.kernels.jit.winograd.gradient import WinogradGradient
from pycaffe_dist.threads import set_threads

ROUNDS, RUNS = 9, 3
# batch, channels, size, outputs, kernel, pad
SHAPES = (
    (1, 512, 3, 512, 3, 1),
    (16, 512, 3, 512, 3, 1),
    (16, 3, 32, 32, 3, 1),
    (16, 16, 32, 16, 3, 1),
    (16, 32, 32, 32, 3, 1),
    (16, 64, 28, 64, 3, 1),
    (16, 128, 28, 128, 3, 1),
    (16, 96, 14, 208, 3, 1),
    (16, 256, 14, 256, 3, 1),
    (16, 512, 7, 512, 3, 1),
    (16, 32, 16, 32, 5, 2),
    (16, 20, 12, 50, 5, 0),
    (16, 16, 28, 32, 5, 2),
)


def ways(x_shape, w_shape, geometry, direction) -> dict[int, Callable[[], None]]:
    """Return functions that compute one pass, by the size of the tiles; 0 is the direct kernel."""
    shapes = target(), x_shape, w_shape, geometry
    y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
    x, w, y = (np.ones(shape, np.float32) for shape in (x_shape, w_shape, y_shape))
    if direction == "weights":
        plans = {0: WeightGradient(*shapes)}
        plans |= {tile: WinogradGradient(*shapes, tile) for tile in TILES}
        return {tile: lambda plan=plan: plan.run(x, y, w) for tile, plan in plans.items()}
    backward = direction == "data"
    source, out = (y, x) if backward else (x, y)
    plans = {0: RowConvolution(*shapes, backward=backward)}
    plans |= {tile: WinogradConvolution(*shapes, backward=backward, tile=tile) for tile in TILES}
    return {tile: lambda plan=plan: plan.run(source, w, None, out) for tile, plan in plans.items()}


def measure(runs: dict[int, Callable[[], None]]) -> dict[int, float]:
    """Return the median seconds of each."""
    seconds: dict[int, list[float]] = {tile: [] for tile in runs}
    for number in range(1 + ROUNDS):
        for tile, run in runs.items():
            start = time.thread_time()
            for _ in range(RUNS):
                run()
            if number:  # the first round compiles
                seconds[tile].append((time.thread_time() - start) / RUNS)
    return {tile: median(times) for tile, times in seconds.items()}


def main() -> None:
    """Print the table."""
    set_threads(1)
    unit = target()
    assert unit is not None, "PCAFFE_SIMD=none has one way only"
    print(f"{unit.level} ({unit.cpu})")
    for batch, channels, size, outputs, kernel, pad in SHAPES:
        geometry = ConvolutionGeometry((kernel,) * 2, (1, 1), (pad,) * 2, (1, 1))
        shapes = (batch, channels, size, size), (outputs, channels, kernel, kernel), geometry
        name = f"{batch}x{channels}x{size}x{size} > {outputs}, {kernel}x{kernel}"
        for direction in ("forward", "data", "weights"):
            times = measure(ways(*shapes, direction))
            chosen = best_tile(unit, *shapes, direction)
            columns = "  ".join(f"{t}: {s * 1e6 / batch:7.1f}" for t, s in times.items())
            loss = times[chosen] / min(times.values())
            print(f"{name:28} {direction:8} {columns}  chosen {chosen}, {loss:.2f} of the fastest")


if __name__ == "__main__":
    main()
