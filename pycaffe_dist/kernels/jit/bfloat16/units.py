"""What multiplies bfloat16 numbers on this machine: tile registers, dot products or float32."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.bfloat16.kernels import TILE, PairKernel, TileKernel, TileSwitch
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target

# AMX; AVX512-BF16; float32 products of the numbers.
KINDS = ("tiles", "dots", "floats")


@dataclass(frozen=True)
class Unit:
    """A vector unit and how it multiplies: ``kind`` is one of `KINDS`."""

    target: Target
    kind: str

    @property
    def is_fast(self) -> bool:
        """Whether it multiplies bfloat16 faster than float32."""
        return self.kind != "floats"

    @property
    def columns(self) -> int:
        """The most columns of a block of sums; half of them are possible, too."""
        return 2 * TILE if self.kind == "tiles" else 2 * self.target.lanes

    def rows_for(self, count: int) -> int:
        """Return the rows of blocks for a matrix of ``count`` rows."""
        if self.kind == "tiles":
            return TILE if count <= TILE else 2 * TILE
        most = 12 if self.target.registers == 32 else 4
        most = self.target.tile_rows(2) if self.kind == "dots" else most
        return -(-count // -(-count // most))

    def kernels(self, rows: int, last_rows: int, last_columns: int) -> np.ndarray:
        """Return the addresses of the kernels for blocks [is the last in its column, row], flat.

        `switch_tiles` takes the same array.
        """
        few = self.columns // 2
        widths = self.columns, few if last_columns <= few else self.columns
        is_tiles = self.kind == "tiles"
        heights = rows, self.rows_for(last_rows) if is_tiles else last_rows
        kernels = [self._kernel(height, width) for height in heights for width in widths]
        addresses = [address_of(kernel, self.target) for kernel in kernels]
        switch = address_of(TileSwitch(), self.target) if is_tiles else 0
        return np.array([*addresses, switch, _tile_setup().ctypes.data], np.int64)

    def _kernel(self, rows: int, columns: int) -> TileKernel | PairKernel:
        if self.kind == "tiles":
            return TileKernel(rows, columns, self.columns)
        return PairKernel(rows, columns, self.columns, self.kind == "dots")


def unit_for(target: Target) -> Unit:
    """Return the fastest unit that this machine has, at the level of ``target``."""
    has = target.features.split(",")
    if {"+amx-tile", "+amx-bf16"} <= {*has} and _may_use_tiles():
        return Unit(target, "tiles")
    # Processors with AMX are slow at dot products: a ninth of the speed of float32 (measured).
    dots = "+avx512bf16" in has and "+amx-bf16" not in has
    return Unit(target, "dots" if dots and target.level == "avx512" else "floats")


@functools.lru_cache(maxsize=1)
def _may_use_tiles() -> bool:
    """Ask Linux for the tile registers, with which threads have 8 KB more to save."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


@functools.lru_cache(maxsize=1)
def _tile_setup() -> np.ndarray:
    """Return the setup of 8 tile registers, all full (Intel's manual, LDTILECFG)."""
    setup = np.zeros(64, np.uint8)
    setup[0] = 1
    setup[16:32:2] = 4 * TILE
    setup[48:56] = TILE
    return setup


@jit
def switch_tiles(kernels: np.ndarray, on: int) -> None:
    """Set up the tile registers for this thread (1) or give them back (0), if there are any."""
    if kernels[4] != 0:
        call(kernels[4], kernels[5], on)
