"""Nets whose layers repeat their calls, as programs change and read them between passes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist import threads
from pycaffe_dist.kernels.chains import Chain

NET = """
layer { name: 'data' type: 'Input' top: 'data'
        input_param { shape { dim: 2 dim: 3 dim: 12 dim: 12 } } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv' convolution_param {
        num_output: 16 kernel_size: 3 weight_filler { type: 'xavier' }
        bias_filler { value: 0.1 } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'pool' type: 'Pooling' bottom: 'conv' top: 'pool'
        pooling_param { global_pooling: true pool: AVE } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'pool' top: 'ip'
        inner_product_param { num_output: 40 weight_filler { type: 'xavier' } } }
layer { name: 'prob' type: 'Softmax' bottom: 'ip' top: 'prob' }
"""
PASSES = 5


@pytest.fixture(params=[1, 2], autouse=True)
def some_threads(request):
    before = threads.thread_count()
    threads.set_threads(request.param)
    yield
    threads.set_threads(before)


@pytest.fixture(autouse=True)
def chains_run(monkeypatch):
    """Return a list that gets an item whenever a chain runs."""
    found, run = [], Chain.run

    def count(chain):
        found.append(chain)
        run(chain)

    monkeypatch.setattr(Chain, "run", count)
    return found


@pytest.fixture(params=[True, False], ids=["all blobs", "outputs"])
def make(request, tmp_path):
    """Return a function that makes a net, with the weights of a file if given."""
    path = tmp_path / "net.prototxt"
    path.write_text(NET)

    def make(weights=None, keep_blobs=request.param):
        weights = str(weights) if weights else None
        return caffe.Net(str(path), caffe.TEST, weights=weights, keep_blobs=keep_blobs)

    return make


def batch(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape or (2, 3, 12, 12)).astype(np.float32)


def passes(net, chains_run):
    """Run a net until its calls are made again; return its output for the last input."""
    for seed in range(PASSES):
        before = len(chains_run)
        found = net.forward(data=batch(seed))["prob"].copy()
    assert len(chains_run) > before
    return found


def output(net, values):
    net.blobs["data"].reshape(*values.shape)
    return net.forward(data=values)["prob"].copy()


def test_other_inputs_and_shapes(make, chains_run, tmp_path):
    net = make()
    passes(net, chains_run)
    net.save(str(tmp_path / "net.caffemodel"))
    for shape in ((2, 3, 12, 12), (1, 3, 9, 14), (4, 3, 12, 12), (2, 3, 12, 12)):
        for seed in range(PASSES):
            values = batch(seed, *shape)
            np.testing.assert_array_equal(
                output(net, values), output(make(tmp_path / "net.caffemodel"), values)
            )


def test_weights_that_are_written_loaded_and_shared(make, chains_run, tmp_path):
    net, values = make(), batch(9)
    before = passes(net, chains_run)
    for name in ("conv", "ip"):
        for blob in net.params[name]:
            blob.data[...] = 1.5 * blob.data + 0.01
    net.save(str(tmp_path / "new.caffemodel"))
    wanted = output(make(tmp_path / "new.caffemodel"), values)
    np.testing.assert_array_equal(output(net, values), wanted)
    assert (before != wanted).any()

    other = make()
    passes(other, chains_run)
    other.copy_from(str(tmp_path / "new.caffemodel"))
    np.testing.assert_array_equal(output(other, values), wanted)

    third = make()
    passes(third, chains_run)
    third.share_with(net)
    np.testing.assert_array_equal(output(third, values), wanted)
    net.params["conv"][0].data[...] *= 0.5
    third.weights_changed()
    passes(third, chains_run)
    net.save(str(tmp_path / "newer.caffemodel"))
    newer = make(tmp_path / "newer.caffemodel")
    np.testing.assert_array_equal(output(third, values), output(newer, values))


def test_blobs_that_are_read_and_written(make, chains_run):
    net = make()
    found = passes(net, chains_run)
    np.testing.assert_array_equal(net.blobs["prob"].data, found)
    np.testing.assert_array_equal(net.blobs["data"].data, batch(PASSES - 1))
    whole = make(keep_blobs=True)
    whole.share_with(net)
    for seed in range(PASSES):
        net.forward(data=batch(seed))
        whole.forward(data=batch(seed))
        np.testing.assert_allclose(
            net.blobs["pool"].data, whole.blobs["pool"].data, rtol=1e-5, atol=1e-6
        )


def test_parts_of_a_net_and_callbacks(make, chains_run):
    net = make()
    found, seen = passes(net, chains_run), []
    net.forward(end="pool")
    net.blobs["pool"].data[...] = 0
    changed = net.forward(start="ip")["prob"].copy()
    assert (changed != found).any()
    net.after_forward(seen.append)
    np.testing.assert_allclose(net.forward()["prob"], found, rtol=1e-5)
    assert seen == list(range(6))


def test_two_threads_with_nets_that_share_weights(make):
    first = make()
    second = make()
    second.share_with(first)
    values = [batch(seed) for seed in range(8)]
    wanted = [output(first, each) for each in values]
    wrong = []

    def run(net):
        for number in range(200):
            if (output(net, values[number % 8]) != wanted[number % 8]).any():
                wrong.append(number)

    callers = [threading.Thread(target=run, args=(net,)) for net in (first, second)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
