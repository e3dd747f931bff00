"""The vector instructions that microkernels are made for."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace

from pycaffe_dist.errors import UsageError, did_you_mean

# Widest first.  "sse" stands for any 128-bit unit, "none" for the plain Numba kernels.
LEVELS = ("avx512", "avx2", "sse", "none")
VARIABLE = "PCAFFE_SIMD"


@dataclass(frozen=True)
class Target:
    """A vector unit: float32 lanes, registers, whether it fuses multiply-adds, and LLVM's names.

    ``triple`` is LLVM's name of a machine, if it is not this one; ``optimize`` is LLVM's level of
    optimization, 0 to 3.
    """

    level: str
    lanes: int
    registers: int
    fused: bool
    cpu: str
    features: str
    triple: str = ""
    optimize: int = 3

    def plainer(self) -> list[Target]:
        """Return other targets whose code this unit can run, the fastest first.

        With them a specification with tiles for this unit takes other paths through LLVM.
        """
        narrower = [replace(self, cpu="haswell", features="")] if self.level == "avx512" else []
        return [*narrower, replace(self, optimize=0)]

    def tile_rows(self, vectors: int) -> int:
        """Return how many rows of ``vectors`` sums fit beside one operand row and a broadcast."""
        sums = 28 if self.registers == 32 else 12
        return min(sums, self.registers - 1 - vectors) // vectors


def step_cycles(rows: float, vectors: int) -> float:
    """Return the cycles of one step of a tile of ``rows`` times ``vectors`` multiply-adds.

    The bounds are two multiply-adds a cycle, 1.6 operand loads a cycle (measured), and, with few
    sums, the latency of an addition.  The loop itself adds about half a cycle.
    """
    return max(rows * vectors / 2, (rows + vectors) / 1.6, 4.3) + 0.5


@functools.lru_cache(maxsize=1)
def _host() -> tuple[str, dict[str, bool], str]:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return llvm.get_host_cpu_name(), dict(features), features.flatten()


@functools.lru_cache(maxsize=1)
def host_levels() -> tuple[str, ...]:
    """Return the levels that this machine can execute, widest first."""
    _, has, _ = _host()
    wide = has.get("avx512f") and has.get("avx512vl") and has.get("avx512dq")
    middle = has.get("avx2") and has.get("fma")
    return (*(["avx512"] if wide else []), *(["avx2"] if middle else []), "sse", "none")


@functools.lru_cache(maxsize=8)
def _target(level: str) -> Target | None:
    cpu, has, features = _host()
    if level == "none":
        return None
    if level == host_levels()[0]:
        is_arm = bool(has.get("neon"))
        fused = level != "sse" or is_arm or bool(has.get("fma"))
        lanes = {"avx512": 16, "avx2": 8, "sse": 4}[level]
        return Target(level, lanes, 32 if lanes == 16 or is_arm else 16, fused, cpu, features)
    # A narrower level than the host's best is compiled for the oldest CPU that has it.
    if level == "avx2":
        return Target(level, 8, 16, True, "haswell", "")
    return Target(level, 4, 16, False, "x86-64", "")


def host_target() -> Target:
    """Return the machine's own best vector unit, whatever the environment says."""
    best = _target(host_levels()[0])
    assert best is not None  # "sse" is always among a host's levels
    return best


def target() -> Target | None:
    """Return the vector unit to compile for, or None for the plain Numba kernels.

    The environment variable PCAFFE_SIMD lowers the level; raises `UsageError` for an unknown level
    or one that this machine lacks.
    """
    level = os.environ.get(VARIABLE, "") or host_levels()[0]
    if level not in LEVELS:
        raise UsageError(
            f"{VARIABLE}={level} is none of {', '.join(LEVELS)}{did_you_mean(level, LEVELS)}"
        )
    if level not in host_levels():
        raise UsageError(
            f"{VARIABLE}={level}: this machine executes {', '.join(host_levels())} only"
        )
    return _target(level)
