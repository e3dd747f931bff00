"""Microkernels: the memory that they access, the chosen level, and the cache of object files."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from pathlib import Path

import pytest
from kernel_reference import STEP
from running import python

from pycaffe_dist.errors import UsageError
from pycaffe_dist.kernels import workers
from pycaffe_dist.kernels.caching import cache_directory
from pycaffe_dist.kernels.jit.channel_rows import AffineRows, GradientRows, SumRows
from pycaffe_dist.kernels.jit.codegen import objects
from pycaffe_dist.kernels.jit.codegen.target import LEVELS, Target, host_levels, host_target, target
from pycaffe_dist.kernels.jit.convolution.planes import (
    CorrelationKernel,
    FilterKernel,
    PlaneMaximumKernel,
    Row,
    SpreadKernel,
    TapsKernel,
)
from pycaffe_dist.kernels.jit.convolution.row_kernel import RowKernel
from pycaffe_dist.kernels.jit.gemm.kernels import (
    FlatKernel,
    OuterKernel,
    PanelKernel,
    PixelKernel,
    TransposeKernel,
)
from pycaffe_dist.kernels.jit.pooling_windows import AverageKernel, MaximumKernel

HERE = Path(__file__).parent


def test_the_environment_lowers_the_level(monkeypatch):
    for level in host_levels():
        monkeypatch.setenv("PCAFFE_SIMD", level)
        assert (target() is None) if level == "none" else (target().level == level)
    monkeypatch.delenv("PCAFFE_SIMD")
    assert target() == host_target()
    monkeypatch.setenv("PCAFFE_SIMD", "avx22")
    with pytest.raises(UsageError, match="did you mean 'avx2'"):
        target()
    for level in set(LEVELS) - set(host_levels()):
        monkeypatch.setenv("PCAFFE_SIMD", level)
        with pytest.raises(UsageError, match="this machine executes"):
            target()


def test_the_cache_directory_is_the_users(monkeypatch):
    monkeypatch.setenv("PCAFFE_CACHE_DIR", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_directory() == Path("/own")
    monkeypatch.delenv("PCAFFE_CACHE_DIR")
    assert cache_directory() == Path("/shared/pcaffe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "pcaffe"


@pytest.fixture
def compilations(monkeypatch):
    """Count the compilations of an empty loader."""
    count = []
    run = workers.shared.run
    monkeypatch.setattr(workers.shared, "run", lambda *task: count.append(1) or run(*task))
    monkeypatch.setattr(objects, "_loader", objects._Loader())
    return count


def restart(monkeypatch):
    monkeypatch.setattr(objects, "_loader", objects._Loader())


def test_objects_are_kept_and_a_damaged_one_is_replaced(tmp_path, monkeypatch, compilations):
    monkeypatch.setenv("PCAFFE_CACHE_DIR", str(tmp_path))
    unit, spec = host_target(), OuterKernel(2, 1)
    address = objects.address_of(spec, unit)
    assert objects.address_of(OuterKernel(2, 1), unit) == address
    restart(monkeypatch)
    assert objects.address_of(spec, unit)
    assert len(compilations) == 1
    (file,) = tmp_path.glob("*.o")
    file.write_bytes(file.read_bytes()[:-50])
    restart(monkeypatch)
    assert objects.address_of(spec, unit)
    assert len(compilations) == 2
    restart(monkeypatch)
    assert objects.address_of(spec, unit)
    assert len(compilations) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_kernels_work_without_a_writable_cache(tmp_path, monkeypatch, compilations):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("PCAFFE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert objects.address_of(TransposeKernel(), host_target())
    assert len(compilations) == 1


def specifications(pixels, rows):
    """Return one microkernel of each kind; ``pixels`` and ``rows`` fit two vectors each."""
    taps = tuple(tuple((i, i) for i in range(pixels)) for _ in range(5))
    specs = [
        RowKernel(pixels, 2, taps),
        OuterKernel(rows, 2),
        FlatKernel(rows, 2, True),
        TransposeKernel(),
        TransposeKernel(3),
        PixelKernel(rows, 2, 4 * 49),
        PanelKernel(3, True),
        AffineRows(49, True),
        GradientRows(49, True),
        SumRows(49),
        SumRows(784, True, True),
        MaximumKernel(3, 2, 1, 3),
        AverageKernel(3, 1, 1),
        PlaneMaximumKernel(Row(3, 2, 1, 1, 56, 28), 3, 2),
        TapsKernel(Row(3, 2, 1, 1, 56, 28), 3, 272),
        FilterKernel(Row(3, 1, 1, 1, 56, 56), ((0, 1, 2), (1, 2, 3))),
        SpreadKernel(Row(3, 2, 1, 1, 56, 28), 2),
        CorrelationKernel(Row(3, 2, 1, 1, 56, 28), 3),
    ]
    return pytest.mark.parametrize("spec", specs, ids=lambda spec: type(spec).__name__)


@specifications(14, 10)
def test_avx512_code_can_be_made_anywhere(spec):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("LLVM for this machine makes no x86 code")
    unit = Target("avx512", 16, 32, True, "skylake-avx512", "")
    assert objects.compile_module(spec.build(unit), unit)  # zmm registers need not exist here


@specifications(8, 6)
def test_aarch64_code_can_be_made_anywhere(spec):
    unit = Target("sse", 4, 32, True, "generic", "+neon", "aarch64-unknown-linux-gnu")
    assert objects.compile_module(spec.build(unit), unit)


def run_python(code, *arguments, **environment):
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    return python(textwrap.dedent(code), *arguments, PYTHONPATH=paths, **environment)


def test_several_processes_fill_one_cache(tmp_path):
    code = """
        from pycaffe_dist.kernels.jit.codegen import objects
        from pycaffe_dist.kernels.jit.gemm.kernels import FlatKernel
        from pycaffe_dist.kernels.jit.codegen.target import host_target
        for rows in range(1, 5):
            objects.address_of(FlatKernel(rows, 1, False), host_target())
        print("done")
    """
    processes = [run_python(code, PCAFFE_CACHE_DIR=str(tmp_path)) for _ in range(3)]
    assert [process.finish().output for process in processes] == ["done\n"] * 3
    assert len(list(tmp_path.glob("*.o"))) == 4


GUARDED = """
    import ctypes, mmap, sys
    import numpy as np
    from pycaffe_dist.threads import set_threads
    from pycaffe_dist.kernels import pooling
    from pycaffe_dist.kernels.convolution import Convolution
    from pycaffe_dist.kernels.inner_product import InnerProduct
    import test_kernels_convolution, test_kernels_pooling
    from pycaffe_dist.kernels.pooling import PoolingGeometry

    libc, keep = ctypes.CDLL(None), []

    def guarded(shape, at_end, dtype=np.float32):
        '''An array that ends, or starts, where no memory may be touched.'''
        size = int(np.prod(shape)) * 4
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        area = mmap.mmap(-1, pages + 2 * mmap.PAGESIZE)
        keep.append(area)
        whole = np.frombuffer(area, np.uint8)
        base = whole.ctypes.data
        for page in (base, base + mmap.PAGESIZE + pages):
            assert libc.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
        start = mmap.PAGESIZE + (pages - size if at_end else 0)
        array = whole[start : start + size].view(dtype).reshape(shape)
        array[...] = 1
        return array

    set_threads(1)
    step = int(sys.argv[1])
    for at_end in (True, False):
        for x_shape, outputs, case in list(test_kernels_convolution.CASES.values())[::step]:
            w_shape = outputs, x_shape[1] // case.group, *case.kernel
            plan = Convolution(x_shape, w_shape, case)
            x, w, b, y = (guarded(s, at_end) for s in (x_shape, w_shape, (outputs,), plan.y_shape))
            plan.forward(x, w, b, y)
            plan.backward_data(y, w, x)
            plan.backward_weights(x, y, w)
        for shape, case in list(test_kernels_pooling.CASES.values())[::step]:
            x = guarded(shape, at_end)
            y = guarded((*shape[:2], *case.output_shape(shape[2:])), at_end)
            mask = guarded(y.shape, at_end, np.int32)
            pooling.max_pool_forward(x, y, mask, case)
            pooling.max_pool_backward(y, mask, x, case)
            pooling.average_pool_forward(x, y, case)
            pooling.average_pool_backward(y, x, case)
        for m, n, k in ((3, 130, 65), (64, 10, 50), (130, 31, 60), (5, 4, 9)):
            for turned in (False, True):
                stored = (k, n) if turned else (n, k)
                x, y, w = (guarded(s, at_end) for s in ((m, k), (m, n), stored))
                plan = InnerProduct(m, n, k, turned)
                plan.forward(x, w, guarded((n,), at_end), y)
                plan.backward_data(y, w, x)
                plan.backward_weights(x, y, w)
    print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages with Linux's mprotect")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), STEP])
@pytest.mark.parametrize("level", host_levels()[1:-1])
def test_nothing_outside_an_array_is_touched_by_narrower_units(level, step):
    process = run_python(GUARDED, step, PCAFFE_SIMD=level)
    assert process.finish().output == "done\n"


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages with Linux's mprotect")
def test_nothing_outside_an_array_is_touched():
    process = run_python(GUARDED, 1, PCAFFE_SIMD=host_levels()[0])
    assert process.finish().output == "done\n"
