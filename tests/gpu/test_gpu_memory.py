"""Arrays of the emulated GPU, and blobs on a GPU and on the host."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.kernels.cuda.source import Kernel, parse

HOST = device.HOST


def test_a_blob_moves_to_the_device_that_needs_it(on_gpu):
    blob = Blob((2, 3))
    with device.use(HOST):
        blob.data[...] = 1
    blob.data[...] += 1
    with device.use(HOST):
        assert isinstance(blob.data, np.ndarray)
        assert blob.data.tolist() == [[2, 2, 2]] * 2
        blob.data[0] = 7
    assert on_gpu.to_host(blob.data).tolist() == [[7, 7, 7], [2, 2, 2]]


def test_reading_leaves_the_other_side_valid(on_gpu):
    copies = []
    blob = Blob((4,))
    blob.data.fill(3)
    original = type(on_gpu).copy_to_device

    class Counting(type(on_gpu)):
        def copy_to_device(self, source, target):
            copies.append(source.size)
            original(self, source, target)

    on_gpu.__class__ = Counting
    try:
        with device.use(HOST):
            assert blob.read_data().tolist() == [3] * 4
        blob.data.fill(4)
        assert not copies
        with device.use(HOST):
            assert blob.data.tolist() == [4] * 4
        blob.read_data()
        assert copies == [4]
    finally:
        on_gpu.__class__ = Counting.__bases__[0]


def test_staging_copies_the_last_written_values(on_gpu):
    blob = Blob((4,))
    blob.diff.fill(1)
    blob.stage_diff()
    until = time.monotonic() + 60
    while not blob.diff_is_staged():
        assert time.monotonic() < until
    blob.diff.fill(2)
    with device.use(HOST):
        assert blob.diff.tolist() == [2] * 4
        blob.diff.fill(3)
    blob.stage_diff()
    assert on_gpu.to_host(blob.diff).tolist() == [3] * 4


def test_the_gpu_waits_for_a_staged_copy_before_it_writes(on_gpu):
    if not isinstance(on_gpu, EmulatedGPU):
        pytest.skip("a real GPU's waits cannot be seen")
    waits = []

    class Recording(type(on_gpu)):
        def record(self):
            return object()

        def wait(self, event):
            waits.append(event)

    blob = Blob((4,))
    blob.diff.fill(1)
    on_gpu.__class__ = Recording
    try:
        blob.stage_diff()
        (written,) = waits
        blob.read_diff()
        assert waits == [written]
        blob.diff.fill(2)
        assert len(waits) == 2
        assert waits[1] is not written
        blob.diff.fill(3)
        assert len(waits) == 2
    finally:
        on_gpu.__class__ = Recording.__bases__[0]


def test_sharing_growing_and_adopting(on_gpu):
    blob, other = Blob((2,)), Blob((2,))
    other.share_data(blob)
    blob.data.fill(5)
    with device.use(HOST):
        assert other.data.tolist() == [5, 5]
    blob.reshape(1)
    with device.use(HOST):
        assert blob.data.tolist() == [5]
    blob.reshape(3)
    assert on_gpu.to_host(blob.data).tolist() == [0, 0, 0]
    with device.use(HOST):
        values = on_gpu.host_zeros(3, np.float32)
        values[:] = 1, 2, 3
        blob.adopt(values)
    assert on_gpu.to_host(other.data).tolist() == [1, 2]
    for number in range(4):
        with device.use(HOST):
            values = on_gpu.host_zeros(3, np.float32)
            values[:] = number
            blob.adopt(values)
        assert on_gpu.to_host(blob.data).tolist() == [number] * 3


def test_batches_adopted_one_after_the_other(on_gpu):
    blob, before = Blob((4,)), None
    for number, size in enumerate((4, 4, 4, 6, 6, 4)):
        with device.use(HOST):
            values = on_gpu.host_zeros(size, np.float32)
            values[:] = number
            blob.adopt(values)
            assert blob.read_data().tolist() == [number] * size
        assert on_gpu.to_host(blob.data).tolist() == [number] * size
        # Graphs of CUDA know addresses.
        stays = before is not None and before.size == size
        assert before is None or (blob.data.data.ptr == before.data.ptr) == stays
        before = blob.data


def test_threads_begin_on_the_host(on_gpu):
    import threading

    seen = []
    thread = threading.Thread(target=lambda: seen.append(device.current()))
    thread.start()
    thread.join()
    assert seen == [HOST]
    assert device.current() is on_gpu


@pytest.fixture
def emulated(gpu):
    if not isinstance(gpu, EmulatedGPU):
        pytest.skip("is about the emulated GPU")
    with device.use(gpu):
        yield gpu


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: x + host,
        lambda x, host: np.add(x, x, out=host),
        lambda x, host: np.copyto(x, host),
        lambda x, host: x.__setitem__(..., host),
        lambda x, host: np.asarray(x),
        lambda x, host: np.copyto(host, x),
        lambda x, host: x.max(initial=0),
        lambda x, host: np.take(x, [0], mode="clip"),
        lambda x, host: np.block([x, x]),
    ],
)
def test_the_emulation_refuses_what_cupy_refuses(mix, emulated):
    x, host = emulated.zeros(3, np.float32), np.zeros(3, np.float32)
    with pytest.raises(TypeError):
        mix(x, host)


@pytest.mark.parametrize(
    "look",
    [float, bool, lambda x: x + 1, lambda x: x.sum(), lambda x: x.fill(0), np.copy, np.negative],
)
def test_values_are_not_used_outside_of_their_device(look, emulated):
    x = emulated.zeros((), np.float32)
    with device.use(HOST), pytest.raises(DeviceError, match="outside of"):
        look(x)


def test_sums_and_elements_are_arrays_of_the_device(emulated):
    x = emulated.zeros((2, 3), np.float32)
    for value in (x.sum(), x[0, 0], np.dot(x[0], x[0]), x[1]):
        assert hasattr(value, "__cuda_array_interface__")
    x[0, 0] = 2
    assert float(x.sum()) == 2


KERNELS = """
template <typename T> __global__ void too_far(T* x, int n) {
  for EACH(i, n) store(x, i + 1, Wide<T>(0));
}
template <typename T> __global__ void diverging(T* x, int n) {
  if (threadIdx.x < 3) __syncthreads();
  store(x, 0, Wide<T>(n));
}
template <typename T, typename P> __global__ void mixed(const T* x, P* y, Wide<T> a, int n) {
  for EACH(i, n) y[i] = a * load(x, i);
}
"""


@pytest.fixture
def bad(emulated, tmp_path):
    path = tmp_path / "bad.cu"
    path.write_text(KERNELS)
    source = parse(path)
    return {name: Kernel(source, signature) for name, signature in source.signatures.items()}


def test_errors_of_kernels_are_found(bad, emulated):
    x = emulated.zeros(64, np.float32)
    with pytest.raises(DeviceError, match="too_far: wrote beside one of its arrays"):
        bad["too_far"](64, x, 64)
    with pytest.raises(DeviceError, match="diverging: only some threads"):
        bad["diverging"](64, emulated.zeros(64, np.float32), 64)


def test_arguments_are_checked(bad, emulated):
    x, half = emulated.zeros(4, np.float32), emulated.zeros(4, np.float16)
    with pytest.raises(DeviceError, match="takes 4 arguments, found 3"):
        bad["mixed"](4, x, x, 4)
    with pytest.raises(DeviceError, match="x must be an array of the device"):
        bad["mixed"](4, np.zeros(4, np.float32), x, 1, 4)
    with pytest.raises(DeviceError, match="x is not contiguous"):
        bad["mixed"](2, x[::2], x, 1, 2)
    with pytest.raises(DeviceError, match="mixed: required argument is not an integer"):
        bad["mixed"](4, x, x, 1, 4.0)
    half.fill(3)
    bad["mixed"](4, half, x, 2, 4)
    assert emulated.to_host(x).tolist() == [6] * 4
    with device.use(HOST), pytest.raises(DeviceError, match="outside of"):
        bad["mixed"](4, half, x, 2, 4)
