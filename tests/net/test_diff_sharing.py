"""Diffs that share memory: the same gradients, less memory, and no stale values to read."""

from __future__ import annotations

import numpy as np
import pytest
from nets import build, input_layer, ip, parse

from pycaffe_dist.errors import NetError
from pycaffe_dist.net.diff_sharing import Turn
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import Solver


def conv(name: str, bottom: str, size: int = 1) -> str:
    return (
        f"layer {{ name: '{name}' type: 'Convolution' bottom: '{bottom}' top: '{name}' "
        f"convolution_param {{ num_output: 4 kernel_size: {size} pad: {size // 2} "
        "weight_filler { type: 'gaussian' std: 1 } } }"
        f"layer {{ name: '{name}/relu' type: 'ReLU' bottom: '{name}' top: '{name}' }}"
    )


# Branches of a split of a split, a shared Flatten, in-place layers, a top without a reader, a top
# with a loss of its own, and two losses.
NET = (
    input_layer("data", 3, 4, 6, 6)
    + input_layer("label", 3)
    + conv("stem", "data", 3)
    + "layer { name: 'norm' type: 'LRN' bottom: 'stem' top: 'norm' loss_weight: 0.25 }"
    + conv("a", "norm")
    + conv("b", "norm", 3)
    + "layer { name: 'pool' type: 'Pooling' bottom: 'norm' top: 'pool' "
    "  pooling_param { kernel_size: 3 stride: 1 pad: 1 } }"
    + conv("c", "a")
    + conv("d", "a", 3)
    + "layer { name: 'join' type: 'Concat' bottom: 'b' bottom: 'pool' bottom: 'c' top: 'join' }"
    "layer { name: 'cut' type: 'Slice' bottom: 'join' top: 'cut' top: 'unread' top: 'rest' }"
    "layer { name: 'sum' type: 'Eltwise' bottom: 'cut' bottom: 'd' top: 'sum' "
    "  eltwise_param { operation: PROD } }"
    "layer { name: 'tanh' type: 'TanH' bottom: 'sum' top: 'sum' }"
    "layer { name: 'drop' type: 'Dropout' bottom: 'sum' top: 'drop' }"
    "layer { name: 'flat' type: 'Flatten' bottom: 'drop' top: 'flat' }"
    + ip("scores", "flat", 3)
    + "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'scores' bottom: 'label' top: 'loss' }"
    + ip("more", "rest", 3)
    + "layer { name: 'aux' type: 'SoftmaxWithLoss' bottom: 'more' bottom: 'label' top: 'aux' "
    "  loss_weight: 0.5 }"
)


def filled(**options):
    net = build(NET, **options)
    rng = np.random.default_rng(0)
    net.blobs["data"].data[...] = rng.standard_normal(net.blobs["data"].shape)
    net.blobs["label"].data[...] = [0, 2, 1]
    return net


def turns(net):
    found = {id(blob.diff_storage): blob.diff_storage for blob in net.blobs.values()}
    return [storage for storage in found.values() if isinstance(storage, Turn)]


def storages(net):
    return {id(turn.slot): turn.slot.storage for turn in turns(net)}.values()


def run(net):
    net.clear_parameter_diffs()
    net.forward()
    net.backward()
    return [parameter.blob.diff.copy() for parameter in net.parameters]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_do_not_depend_on_what_shared_memory_held_before(dtype):
    kept, shared = filled(dtype=dtype), filled(dtype=dtype, keep_diffs=False)
    for _ in range(2):
        wanted, found = run(kept), run(shared)
        assert all(diff.any() for diff in wanted)
        for one, other in zip(wanted, found):
            np.testing.assert_array_equal(one, other)
        for storage in storages(shared):
            storage._buffer[:] = np.nan


def test_shared_diffs_take_less_memory():
    net = filled(keep_diffs=False)
    run(net)
    apart = {id(blob.diff_storage): blob.count for blob in net.blobs.values()}
    alone = sum(apart[id(turn)] for turn in turns(net))
    assert len(turns(net)) > 10
    assert sum(storage._buffer.size for storage in storages(net)) < 0.4 * alone


def test_a_diff_is_right_or_refused():
    kept, shared = filled(), filled(keep_diffs=False)
    run(kept), run(shared)
    refused = 0
    for name, blob in shared.blobs.items():
        try:
            found = blob.diff
        except NetError as error:
            assert "diff of blob" in str(error) and "keep_diffs" in str(error)
            refused += 1
        else:
            np.testing.assert_array_equal(found, kept.blobs[name].diff, name)
    assert refused > 5


def test_each_layer_finds_the_diffs_of_its_own_backward():
    kept, shared = filled(), filled(keep_diffs=False)
    seen: dict[int, list[np.ndarray]] = {}
    for net in (kept, shared):

        def look(index, net=net):
            node = net.nodes[index]
            if node.need_backward:
                written = [b for b, w in zip(node.bottom, node.propagate_down) if w]
                seen.setdefault(index, []).extend(b.diff.copy() for b in written)

        net.after_backward.append(look)
        run(net)
    for arrays in seen.values():
        half = len(arrays) // 2
        for one, other in zip(arrays[:half], arrays[half:]):
            np.testing.assert_array_equal(one, other)


def test_shared_memory_grows_with_the_input():
    kept, shared = filled(), filled(keep_diffs=False)
    run(shared), run(kept)
    for net in (kept, shared):
        rng = np.random.default_rng(1)
        net.blobs["data"].reshape(5, 4, 6, 6)
        net.blobs["label"].reshape(5)
        net.blobs["data"].data[...] = rng.standard_normal((5, 4, 6, 6))
        net.blobs["label"].data[...] = 1
    for one, other in zip(run(kept), run(shared)):
        np.testing.assert_array_equal(one, other)


def test_diffs_that_no_layer_writes_or_that_others_read_share_no_memory():
    net = filled(keep_diffs=False)
    shared = {id(turn) for turn in turns(net)}
    apart = {name for name, blob in net.blobs.items() if id(blob.diff_storage) not in shared}
    # Tops with their own losses, factors for the exchange of gradients, and a top without a reader.
    assert {"loss", "aux", "scores", "more", "unread", "norm_norm_0_split_0"} <= apart
    assert not apart & {"stem", "norm", "a", "b", "join", "cut", "sum", "flat", "drop"}


def test_the_training_net_of_a_solver_shares_unless_told_otherwise():
    param = caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", random_seed=1)
    param.net_param.CopyFrom(parse(NET))
    assert turns(Solver(param).net)
    assert not turns(Solver(param, keep_diffs=True).net)
