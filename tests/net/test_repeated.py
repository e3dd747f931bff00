"""Work that is repeated without the layers: the same results, and only if nothing else changed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from nets import build, input_layer, ip

from pycaffe_dist import threads
from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.chains import Chain
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.layers import layer_types
from pycaffe_dist.layers.base import layer_class
from pycaffe_dist.net.repeated import MOST_ATTEMPTS, Repeated
from pycaffe_dist.threads import in_every_pass, instead_of_running, parallel_for

PASSES = 6


def add(begin, end, x, y, number):
    y[begin:end] = x[begin:end] + number


def add_to_itself(begin, end, x, y, number):
    np.copyto(y, x)
    parallel_for(add, 8, y, y, number)


class Work:
    """Sets y to x + 1 in some way, and counts how often its Python runs."""

    def __init__(self, way="kernel"):
        self.x, self.y = Blob((8,)), Blob((8,))
        self.way, self.runs, self.number = way, 0, 1.0
        self.repeated = Repeated(self.run, [self.x, self.y])

    def run(self):
        self.runs += 1
        x, y = self.x.data, self.y.data
        if self.way == "kernel":
            parallel_for(add, 8, x, y, self.number)
        elif self.way == "by a copy":
            parallel_for(add, 8, x.copy(), y, self.number)
        elif self.way == "number":
            parallel_for(add, 8, x, y, x[0] - x[0] + 1 + 0 * self.runs)
            parallel_for(add, 8, y, y, 1e-30 * self.runs)
        elif self.way == "action":
            in_every_pass(np.copyto, y, x)
            parallel_for(add, 8, y, y, self.number)
        elif self.way == "scratch":
            with workspace.shared.lend(8) as memory:
                parallel_for(add, 8, x, memory, self.number)
                in_every_pass(np.copyto, y, memory)
        elif self.way == "nested":
            parallel_for(add_to_itself, 1, x, y, self.number)

    def check(self, value):
        self.x.data[...] = value + np.arange(8)
        self.y.data[...] = np.nan
        self.repeated.run()
        np.testing.assert_array_equal(self.y.data, value + 1 + np.arange(8))


@pytest.fixture(params=[1, 2], autouse=True)
def some_threads(request):
    before = threads.thread_count()
    threads.set_threads(request.param)
    yield
    threads.set_threads(before)


@pytest.mark.parametrize("way", ["kernel", "action", "scratch", "nested"])
def test_calls_that_were_the_same_twice_are_made_again(way):
    work = Work(way)
    for value in range(PASSES):
        work.check(value)
    # Memory is allocated in the first pass.
    assert work.runs == 2


@pytest.mark.parametrize("way", ["by a copy", "number"])
def test_work_with_new_arrays_or_numbers_is_done_each_time(way):
    work = Work(way)
    passes = MOST_ATTEMPTS + PASSES
    for value in range(passes):
        work.check(value)
    assert work.runs == passes


def other_memory(work):
    work.x.adopt(np.zeros(8, np.float32))


def other_shape(work):
    for blob in (work.x, work.y):
        blob.reshape(2, 4)
        blob.reshape(40)
        assert blob.data.size == 40
        blob.reshape(8)


def other_storage(work):
    work.y.share_data(Blob((8,)))


@pytest.mark.parametrize("change", [other_memory, other_shape, other_storage])
def test_blobs_in_other_memory_are_followed(change):
    work = Work()
    for value in range(PASSES):
        work.check(value)
    change(work)
    for value in range(PASSES):
        work.check(value)
    assert work.runs == 4


def test_scratch_memory_in_use_elsewhere_is_left_alone(monkeypatch):
    monkeypatch.setattr(workspace, "shared", workspace.Workspace())
    work = Work("scratch")
    for value in range(PASSES):
        work.check(value)
    with workspace.shared.lend(8) as memory:
        memory[:] = 7
        work.check(3)
        assert (memory == 7).all()
    assert work.runs == 3
    for value in range(PASSES):
        work.check(value)
    assert work.runs <= 5


def test_another_thread_does_the_work():
    work = Work()
    for value in range(PASSES):
        work.check(value)
    thread = threading.Thread(target=work.check, args=(5,))
    thread.start()
    thread.join()
    assert work.runs == 3


def test_a_dry_run_is_no_pass():
    work, noted = Work(), []
    with instead_of_running(lambda kernel, args: noted.append(kernel)):
        for _ in range(3):
            work.repeated.run()
    assert noted == [add] * 3
    for value in range(PASSES):
        work.check(value)
    assert work.runs == 5


def test_an_error_is_no_pass():
    work = Work()

    def fail():
        work.run()
        raise ValueError("no")

    repeated = Repeated(fail, [work.x, work.y])
    for _ in range(PASSES):
        with pytest.raises(ValueError, match="no"):
            repeated.run()
    assert threads.can_note_calls()


def layer(kind, bottoms="x", options="", name="", tops=""):
    bottom = " ".join(f"bottom: '{name}'" for name in bottoms.split())
    top = " ".join(f"top: '{name}'" for name in (tops or name or "y").split())
    return f"layer {{ name: '{name or kind}' type: '{kind}' {bottom} {top} {options} }}"


def convolution(options, outputs=8):
    filler = "weight_filler { type: 'gaussian' std: 0.3 } bias_filler { type: 'gaussian' }"
    options = f"convolution_param {{ num_output: {outputs} {options} {filler} }}"
    return layer("Convolution", options=options)


X = input_layer("x", 3, 8, 10, 9)
PAIR = X + input_layer("x2", 3, 8, 10, 9)
RELU = layer("ReLU", "y", name="r", tops="y")
# By type: nets whose first layer behind the inputs is of this type.
NORM = layer("BatchNorm", "y", name="n", tops="y")
SCALE = layer("Scale", "y", "scale_param { bias_term: true }", name="s", tops="y")
CASES = {
    "BN": [
        X + layer("BN"),
        X + layer("BN", options="bn_param { frozen: true }"),
        X + layer("BN") + RELU,
        X + layer("BN", options="bn_param { bn_mode: LEARN }"),
    ],
    "BatchNorm": [
        X + layer("BatchNorm"),
        X + layer("BatchNorm", options="batch_norm_param { use_global_stats: true }"),
        X + layer("BatchNorm", options="batch_norm_param { stats_batch_size: 1 }"),
        X + layer("BatchNorm") + SCALE + RELU,
        input_layer("x", 9, 30) + layer("BatchNorm") + SCALE,
        X + convolution("kernel_size: 3 bias_term: false") + NORM + SCALE + RELU,
        X + convolution("kernel_size: 3 stride: 2 pad: 1 group: 8") + NORM + SCALE,
    ],
    "Concat": [
        PAIR + layer("Concat", "x x2"),
        PAIR + layer("Concat", "x x2", "concat_param { axis: 0 }"),
    ],
    "Convolution": [
        X + convolution("kernel_size: 3 pad: 1"),
        X + convolution("kernel_size: 3 bias_term: false") + RELU,
        X + convolution("kernel_size: 3 stride: 2 pad: 1", 40) + RELU,
        X + convolution("kernel_size: 5 pad: 2 group: 4"),
        X + convolution("kernel_size: 3 dilation: 2"),
        X + convolution("kernel_size: 1", 70) + RELU,
        X + convolution("kernel_size: 1 stride: 2"),
        X + convolution("kernel_size: 3 pad: 1 group: 8 bias_term: false") + RELU,
        X + convolution("kernel_size: 3 pad: 1 stride: 2 group: 8"),
        X + convolution("kernel_h: 10 kernel_w: 9"),
        input_layer("x", 2, 3, 4, 40) + convolution("kernel_h: 3 kernel_w: 20"),
        input_layer("x", 9, 20, 7, 7) + convolution("kernel_size: 1", 50),
        input_layer("x", 2, 40, 24, 24) + convolution("kernel_size: 3 pad: 1", 64) + RELU,
        input_layer("x", 2, 3, 64, 64) + convolution("kernel_size: 7 pad: 3 stride: 2", 32),
        input_layer("x", 2, 3, 17) + convolution("kernel_size: 3"),
    ],
    "Eltwise": [
        PAIR + layer("Eltwise", "x x2"),
        PAIR + layer("Eltwise", "x x2", "eltwise_param { coeff: 2 coeff: -1 }") + RELU,
        PAIR + layer("Eltwise", "x x2", "eltwise_param { operation: MAX }"),
        PAIR + layer("Eltwise", "x x2", "eltwise_param { operation: PROD }"),
    ],
    "InnerProduct": [
        X + ip("y", "x", 12),
        X + ip("y", "x", 12).replace("num_output", "transpose: true num_output") + RELU,
        X + ip("y", "x", 12).replace("num_output", "normalize: true num_output"),
        input_layer("x", 70, 30)
        + ip("y", "x", 40).replace("num_output", "bias_term: false num_output"),
    ],
    "LRN": [
        X + layer("LRN"),
        X + layer("LRN", options="lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 }"),
    ],
    "Pooling": [
        X + layer("Pooling", options="pooling_param { kernel_size: 3 stride: 2 }"),
        X + layer("Pooling", options="pooling_param { kernel_size: 3 stride: 2 }", tops="y mask"),
        X + layer("Pooling", options="pooling_param { pool: AVE kernel_size: 3 stride: 2 }"),
        X + layer("Pooling", options="pooling_param { pool: AVE global_pooling: true }"),
        X + layer("Pooling", options="pooling_param { pool: STOCHASTIC kernel_size: 2 }"),
    ],
    "ReLU": [X + layer("ReLU"), X + layer("ReLU", options="relu_param { negative_slope: 0.1 }")],
    "Scale": [
        X + layer("Scale"),
        X + layer("Scale", options="scale_param { axis: 0 num_axes: 2 bias_term: true }") + RELU,
        PAIR + layer("Scale", "x x2", "scale_param { axis: 0 }"),
    ],
    "Softmax": [X + layer("Softmax"), X + layer("Softmax", options="softmax_param { axis: 3 }")],
    "Split": [X + layer("Split", tops="y z")],
}
# Options of layers that are not repeated, though their types are.
NEVER = "normalize: true", "STOCHASTIC", "MAX }", "PROD", "LEARN", "scale_param { axis: 0 }"
ALL = [(kind, index) for kind, cases in CASES.items() for index in range(len(cases))]


def test_each_type_that_says_so_is_tested():
    declared = {kind for kind in layer_types() if "only_kernels" in vars(layer_class(kind))}
    assert declared == set(CASES)


@pytest.fixture
def made_again(monkeypatch):
    """Return a list that gets an item whenever calls are made again."""
    found, make = [], Repeated._make_calls

    def count(repeated):
        found.append(repeated)
        return make(repeated)

    monkeypatch.setattr(Repeated, "_make_calls", count)
    return found


def passes(prototxt, monkeypatch, repeat, count=PASSES):
    """Return all values after passes with new inputs, gradients and parameters."""
    with monkeypatch.context() as patch:
        if not repeat:
            patch.setattr(Repeated, "run", lambda repeated: repeated._work())
        net = build("force_backward: true " + prototxt, dtype=np.float32)
        rng, found = np.random.default_rng(3), []
        for number in range(count):
            for name, blob in net.blobs.items():
                blob.data[...] = rng.random(blob.shape) - 0.3 if name in net.inputs else np.nan
                blob.diff[...] = np.nan
            for parameter in net.parameters:
                parameter.blob.data[...] = rng.standard_normal(parameter.blob.shape)
            net.debug_info = number == 3  # then no layers run as one
            net.forward()
            for name in net.outputs:
                net.blobs[name].diff[...] = rng.standard_normal(net.blobs[name].shape)
            net.backward(accumulate=number % 2 == 1)
            blobs = [*net.blobs.values(), *(parameter.blob for parameter in net.parameters)]
            found += [array.copy() for blob in blobs for array in (blob.data, blob.diff)]
    return found


@pytest.mark.parametrize(("kind", "index"), ALL)
def test_passes_are_repeated_bit_for_bit(kind, index, monkeypatch, made_again):
    prototxt = CASES[kind][index]
    count = 2 * PASSES
    wanted = passes(prototxt, monkeypatch, False, count)
    assert not made_again
    found = passes(prototxt, monkeypatch, True, count)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert bool(made_again) != any(word in prototxt for word in NEVER)


def test_a_method_that_a_program_replaces_is_called(made_again):
    net = build(X + layer("Pooling", options="pooling_param { kernel_size: 2 }"), dtype=np.float32)
    own, called = net.layers[-1], []
    for _ in range(PASSES):
        net.forward()
    assert made_again
    forward = own.forward
    own.forward = lambda *blobs: (called.append(own), forward(*blobs))
    for _ in range(PASSES):
        net.forward()
    assert called == [own] * PASSES
    del own.forward
    before = len(made_again)
    net.forward()
    assert len(called) == PASSES and len(made_again) == before + 1


@pytest.mark.parametrize(
    "kind",
    ["BatchNorm", "Convolution", "InnerProduct", "LRN", "Pooling", "ReLU", "Softmax", "Split"],
)
def test_common_layers_run_in_machine_code_alone(kind, monkeypatch, made_again):
    passes(CASES[kind][0], monkeypatch, True)
    functions = [function for repeated in made_again for function in repeated._functions]
    assert functions
    assert all(isinstance(getattr(each, "__self__", None), Chain) for each in functions)


def test_other_types_of_data_are_not_repeated(monkeypatch, made_again):
    net = build(X + convolution("kernel_size: 3"), dtype=np.float64)
    for _ in range(PASSES):
        net.forward()
    assert not made_again


def test_a_subclass_does_not_inherit_the_declaration():
    kind = layer_class("Convolution")

    class Doubled(kind):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            top[0].data[...] *= 2

    net = build(X + convolution("kernel_size: 3"), dtype=np.float32)
    own = net.layers[-1]
    assert own.repeats_calls
    own.__class__ = Doubled
    assert not own.repeats_calls
