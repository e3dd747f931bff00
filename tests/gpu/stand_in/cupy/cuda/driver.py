"""The part of CUDA's driver that pcaffe calls."""

from __future__ import annotations

from operator import index

from cupy._machine import CUDARuntimeError, check_stream, functions


def launchKernel(
    f: int,
    grid_dim_x: int,
    grid_dim_y: int,
    grid_dim_z: int,
    block_dim_x: int,
    block_dim_y: int,
    block_dim_z: int,
    shared_mem_bytes: int,
    stream: int,
    kernel_params: int,
    extra: int,
) -> None:
    check_stream(stream)
    grid = tuple(map(index, (grid_dim_x, grid_dim_y, grid_dim_z)))
    block = tuple(map(index, (block_dim_x, block_dim_y, block_dim_z)))
    threads = block[0] * block[1] * block[2]
    if extra or min(grid) < 1 or max(grid[1:]) > 65535 or not 1 <= threads <= 1024:
        raise CUDARuntimeError(f"CUDA_ERROR_INVALID_VALUE: grid {grid}, block {block}")
    functions[f]._run(grid, block, index(shared_mem_bytes), kernel_params)
