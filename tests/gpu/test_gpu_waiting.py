"""No layer makes the host wait for a GPU: the results of forward and backward stay on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from layer_cases import collect
from passes import give_top_diffs

from pycaffe_dist import device
from pycaffe_dist.errors import LayerError
from pycaffe_dist.gpu.arrays import ArrayModule, DeviceArray
from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.layers import layer_class

CASES = [case for case in collect() if not layer_class(case.type).host_only]
# Methods of arrays in which CuPy waits, and functions whose result's size depends on values.
METHODS = "__bool__", "__float__", "__int__", "__index__", "item", "tolist", "get", "nonzero"
FUNCTIONS = "nonzero", "flatnonzero", "argwhere", "unique", "bincount", "repeat", "array_equal"


@pytest.fixture
def gpu_without_waits(gpu, monkeypatch):
    """Return the GPU, and a function that makes every later access from the host fail."""
    if not isinstance(gpu, EmulatedGPU) or gpu.reverse:
        pytest.skip("one emulated GPU is enough to see it")

    def refuse(*args, **options):
        raise AssertionError("the host waits for a value of the GPU")

    def forbid():
        for name in METHODS:
            monkeypatch.setattr(DeviceArray, name, refuse, raising=False)
        for name in FUNCTIONS:
            monkeypatch.setattr(ArrayModule, name, staticmethod(refuse), raising=False)
        plain = DeviceArray.__array_function__

        def array_function(self, function, types, args, options):
            if function.__name__ in FUNCTIONS:
                refuse()
            return plain(self, function, types, args, options)

        monkeypatch.setattr(DeviceArray, "__array_function__", array_function)
        for name in ("__getitem__", "__setitem__"):
            monkeypatch.setattr(DeviceArray, name, _unmasked(getattr(DeviceArray, name)))
        monkeypatch.setattr(EmulatedGPU, "to_host", refuse)

    return gpu, forbid


def _unmasked(access):
    def call(self, key, *value):
        keys = key if isinstance(key, tuple) else (key,)
        assert not any(isinstance(each, DeviceArray) and each.dtype == bool for each in keys)
        return access(self, key, *value)

    return call


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_host_waits_for_nothing(case, gpu_without_waits, monkeypatch):
    gpu, forbid = gpu_without_waits
    harness = case.build(dtype=np.float32, device=gpu)
    harness.forward()
    give_top_diffs(harness, seed=3)
    layer, blobs = harness.layer, (harness.top, harness.bottom)
    wanted = [layer.allow_force_backward(index) for index in range(len(harness.bottom))]
    with device.use(gpu):
        forbid()
        layer.forward(harness.bottom, harness.top)
        if layer.has_backward:
            layer.backward(harness.top, wanted, harness.bottom)
        monkeypatch.undo()
    gpu.settle()
    assert all(np.isfinite(blob.data).all() for group in blobs for blob in group)


def test_a_wait_is_noticed(gpu_without_waits):
    gpu, forbid = gpu_without_waits
    array = gpu.zeros(3, np.float32)
    forbid()
    for wait in (
        lambda: float(array[0]),
        lambda: bool(array.sum() > 0),
        lambda: array[array > 0],
        lambda: np.flatnonzero(array),
        lambda: gpu.xp.nonzero(array),
        lambda: gpu.to_host(array),
    ):
        with device.use(gpu), pytest.raises(AssertionError):
            wait()


def test_wrong_labels_are_reported_when_the_host_waits(on_gpu):
    from layer_harness import LayerHarness

    scores, labels = np.zeros((3, 4)), np.array([1.0, 7.0, 9.0])
    for type_, rest in (("SoftmaxWithLoss", ""), ("HingeLoss", ""), ("Accuracy", "")):
        text = f'type: "{type_}" bottom: "x" bottom: "t" top: "y" {rest}'
        with pytest.raises(LayerError, match=r"label 7 of sample 1 in bottom 't' \(3,\)"):
            LayerHarness(text, {"x": scores, "t": labels}, device=on_gpu).forward()
    text = 'type: "Embed" bottom: "x" top: "y" embed_param { input_dim: 5 num_output: 2 }'
    with pytest.raises(LayerError, match=r"found 2.5 as element 1 of bottom 'x'"):
        LayerHarness(text, {"x": np.array([4, 2.5, 5])}, device=on_gpu).forward()
