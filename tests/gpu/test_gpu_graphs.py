"""CUDA graphs: captured work, launched again, gives what the same calls give one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from layer_cases import collect
from passes import give_top_diffs

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.gpu.repeating import Repeating
from pycaffe_dist.kernels.gemm import gemm
from pycaffe_dist.layers import layer_class

ROUNDS = 5  # three, then a graph that is launched twice


def _is_repeated(case) -> bool:
    kind = layer_class(case.type)
    return kind.repeats and not kind.host_only and not kind.reshape_every_forward


# Types that CuPy's einsum or sort, or an array made on the host, keeps from being captured.
EAGER = {"ChannelScale", "DiceCoefLoss", "Normalize", "ROIAlign", "ROIPooling", "ROIWarping"}
EAGER |= {"BoxAnnotatorOHEM", "PSROIPooling"}


def _cases() -> Iterator[Any]:
    """Yield the cases; the first two of each type are for `make test`."""
    seen: Counter[str] = Counter()
    for case in filter(_is_repeated, collect()):
        marks = [pytest.mark.long] * (seen[case.type] > 1)
        seen[case.type] += 1
        yield pytest.param(case, id=case.name, marks=marks)


def _results(case, gpu, as_graph):
    """Return all results of some rounds with changing bottoms, parameters and top diffs."""
    harness = case.build(dtype=np.float32, device=gpu)
    harness.forward()
    layer, base = harness.layer, case.values()
    wanted = [layer.allow_force_backward(index) for index in range(len(harness.bottom))]

    def backward():
        if layer.has_backward:
            layer.backward(harness.top, wanted, harness.bottom)

    works = [lambda: layer.forward(harness.bottom, harness.top), backward]
    repeated = Repeating(gpu, gpu.graph_memory(), "layer", works)
    found = []
    for number in range(ROUNDS):
        harness.fill({name: np.roll(value, number, 0) for name, value in base.items()})
        for blob in layer.blobs:
            blob.data[...] *= 0.99
        repeated.begin()
        for index, work in enumerate(works):
            with device.use(gpu):
                if as_graph:
                    repeated.run(index)
                else:
                    work()
            if index == 0:
                found += [blob.read_data().copy() for blob in harness.top]
                give_top_diffs(harness, seed=number)
        blobs = [blob for blob, is_wanted in zip(harness.bottom, wanted) if is_wanted]
        found += [blob.read_diff().copy() for blob in [*blobs, *layer.blobs]]
    gpu.settle()
    return found, repeated


@pytest.mark.parametrize("case", list(_cases()))
def test_every_layer_gives_the_same_as_a_graph(case, gpu):
    (found, repeated), (expected, _) = (_results(case, gpu, each) for each in (True, False))
    assert repeated.is_captured or case.type in EAGER, repeated.why
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


OUTSIDE: list = []


@pytest.fixture
def emulated(gpu):
    if not isinstance(gpu, EmulatedGPU):
        pytest.skip("is about the emulated GPU")
    with device.use(gpu):
        yield gpu


def test_a_capture_runs_nothing(on_gpu):
    x, y = on_gpu.to_device(np.ones((2, 2), np.float32)), on_gpu.zeros((2, 2), np.float32)
    graph = on_gpu.capture(on_gpu.graph_memory(), lambda: gemm(x, x, y, beta=1.0))
    assert on_gpu.to_host(y).tolist() == [[0, 0]] * 2
    for number in (2, 4):
        graph.launch()
        assert on_gpu.to_host(y).tolist() == [[number] * 2] * 2


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda gpu, x: x * 2, "24 bytes are allocated"),
        (lambda gpu, x: gpu.empty((2, 3), np.float32), "24 bytes are allocated"),
        (lambda gpu, x: gpu.host_zeros(3, np.float32), "pinned memory is allocated"),
        (lambda gpu, x: gpu.copy_to_host(x, np.empty((2, 3), "f")), "not pinned"),
        (lambda gpu, x: gpu.copy_to_device(np.ones((2, 3), np.float32), x), "a host array"),
        (lambda gpu, x: gpu.xp.asarray(np.ones(3)), "a host array is copied"),
        (lambda gpu, x: x.set(np.ones((2, 3), np.float32)), "a host array is copied"),
        (lambda gpu, x: gpu.to_host(x), "not pinned"),
        (lambda gpu, x: float(x[0, 0]), "the host waits"),
        (lambda gpu, x: x.tolist(), "the host waits"),
        (lambda gpu, x: x[OUTSIDE[1]], "the host waits"),
        (lambda gpu, x: np.flatnonzero(x), "the host waits"),
        (lambda gpu, x: gpu.synchronize(), "the host waits"),
        (lambda gpu, x: gpu.synchronize_event(gpu.record()), "the host waits"),
        (lambda gpu, x: gpu.wait(OUTSIDE[0]), "work in a"),
        (lambda gpu, x: gpu.stream("copy"), "the copy stream is used"),
        (lambda gpu, x: np.dot(x, x.T), "calls cuBLAS"),
        (lambda gpu, x: Blob((3,)).data.fill(1), "values come from the host"),
    ],
)
def test_the_emulation_refuses_what_cuda_refuses(work, reason, emulated):
    x = emulated.zeros((2, 3), np.float32)
    OUTSIDE[:] = [emulated.record(), x > 0]
    with pytest.raises(DeviceError, match=f"{reason}.*graph"):
        emulated.capture(emulated.graph_memory(), lambda: work(emulated, x))
    assert (x + 1).tolist() == [[1] * 3] * 2  # it goes on


def test_a_graph_keeps_no_arrays(emulated):
    arrays = [emulated.zeros(3, np.float32), emulated.zeros(3, np.float32)]
    graph = emulated.capture(emulated.graph_memory(), lambda: np.copyto(*arrays))
    graph.launch()
    arrays.pop()
    with pytest.raises(DeviceError, match="memory was freed"):
        graph.launch()


def test_arrays_of_a_capture_share_the_graphs_memory(emulated):
    x, y = emulated.zeros(3, np.float32), emulated.zeros(3, np.float32)
    memory, kept = emulated.graph_memory(), []

    def work(keep):
        first = x + 1
        if keep:
            kept.append(first)
        address = first.data.ptr
        del first
        second = x + 2
        y[...] = second
        return address, second.data.ptr

    with emulated.allocating_from(memory):
        assert len(set(work(keep=False))) == 1  # freed, and used again
        assert len(set(work(keep=True))) == 2
        kept.clear()
    graph = emulated.capture(memory, lambda: work(keep=True))
    x.fill(5)
    graph.launch()
    assert y.tolist() == [7] * 3
    assert kept[0].tolist() == [6] * 3


def test_work_that_cannot_be_captured_runs_without_graphs(emulated):
    x, found = emulated.zeros(1, np.float32), []

    def work():
        emulated.at_every_pass(lambda: found.append("draw"))
        x[...] += 1
        found.append(float(x[0]))

    repeated = Repeating(emulated, emulated.graph_memory(), "a test", [work])
    for _ in range(ROUNDS):
        repeated.begin()
        repeated.run(0)
    assert (
        repeated.why
        == "No CUDA graph of a test: the host waits for a value while a graph is captured"
    )
    assert found == [each for n in range(1, ROUNDS + 1) for each in ("draw", n)]
