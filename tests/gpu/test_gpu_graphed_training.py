"""Training by CUDA graphs: the same numbers, bit for bit, as with launches one by one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import LayerError
from pycaffe_dist.log import DETAIL
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.layer_metrics import LayerMetrics

ROOT = Path(__file__).parents[2]
# As small as the nets allow: an emulated GPU is slow.
SHAPES = {"grey": (1, 16, 16), "colour": (3, 20, 20)}
ITERATIONS = 20
NORMALIZED = """
layer { name: 'data' type: 'Data' top: 'data' top: 'label' transform_param { crop_size: 12
  mirror: true scale: 0.01 mean_value: 100 }
  data_param { source: 'colour' backend: LMDB batch_size: 5 } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 6 kernel_size: 3 stride: 2 weight_filler { type: 'xavier' } } }
layer { name: 'bn' type: 'BatchNorm' bottom: 'conv' top: 'conv' }
layer { name: 'scale' type: 'Scale' bottom: 'conv' top: 'conv' scale_param { bias_term: true } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'pool' type: 'Pooling' bottom: 'conv' top: 'pool'
  pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'pool' top: 'ip'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
layer { name: 'mean' type: 'Reduction' bottom: 'ip' top: 'mean' loss_weight: 0.1
  reduction_param { operation: SUMSQ axis: 1 coeff: 0.01 } }
"""
# The diffs of a layer that no loss needs are set to zero.
BRANCHED = f"""{NORMALIZED}
layer {{ name: 'unused' type: 'InnerProduct' bottom: 'pool' top: 'unused'
  inner_product_param {{ num_output: 2 weight_filler {{ type: 'xavier' }} }} }}
"""
OWN = {"normalized": NORMALIZED, "branched": BRANCHED}
DROPOUT = "layer { name: 'drop%d' type: 'Dropout' bottom: 'pool%d' top: 'pool%d' }"
BASE = "base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 random_seed: 5 "
INV = BASE + "lr_policy: 'inv' gamma: 0.1 power: 0.75 "
RUNS = {
    "lenet": ("lenet", INV),
    "lenet, two batches": ("lenet", INV + "iter_size: 2"),
    "lenet, Adam, means": (
        "lenet",
        "base_lr: 0.001 momentum: 0.9 momentum2: 0.999 type: 'Adam' lr_policy: 'step' gamma: 0.5 "
        "stepsize: 4 random_seed: 5 averaging: 'EMA' averaging_decay: 0.9",
    ),
    "cifar10_quick": ("cifar10_quick", BASE + "lr_policy: 'multistep' gamma: 0.1 stepvalue: 9"),
    "normalized": ("normalized", INV),
    "normalized, three batches, shown": (
        "normalized",
        INV + "iter_size: 3 display: 5 debug_info: true",
    ),
    "branched": ("branched", INV + "iter_size: 2"),
    "normalized, clipped": ("normalized", INV + "clip_gradients: 0.5"),
    "normalized, shown": ("normalized", INV + "display: 5 debug_info: true"),
    "normalized, plateau": (
        "normalized",
        BASE + "lr_policy: 'plateau' gamma: 0.1 plateau_winsize: 3",
    ),
    "normalized, float16": ("normalized", INV + "data_type: 'float16'"),
    "normalized, LARS": ("normalized", INV + "larc_policy: 'scale' larc_eta: 0.01"),
}
SLOW = "lenet,", "cifar10_quick", "normalized, three"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the databases."""
    folder = tmp_path_factory.mktemp("graphs")
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        patterns = rng.integers(0, 200, (10, *shape))
        with create_database(str(folder / name), "lmdb") as database:
            for number in range(60):
                image = (patterns[number % 10] + rng.integers(0, 56, shape)).astype(np.uint8)
                datum = caffe_pb2.Datum(data=image.tobytes(), label=number % 10)
                datum.channels, datum.height, datum.width = shape
                database.put(b"%08d" % number, datum.SerializeToString())
    return folder


def net_of(name):
    """Return the text of a net, narrow and with small batches of the databases: it is emulated."""
    if name in OWN:
        return OWN[name]
    found = (ROOT / "models" / name / f"{name}_train_test.prototxt").read_text()
    found = re.sub(r'source: ".*"', f"source: '{'grey' if name == 'lenet' else 'colour'}'", found)
    found = re.sub(r"batch_size: \d+", "batch_size: 4", found)
    found = re.sub(r"num_output: \d\d+", _narrow, found)
    found = re.sub(r'mean_file: "[^"]*"', "mean_value: 110", found)
    if name == "cifar10_quick":
        found += "".join(DROPOUT % (i, i, i) for i in (1, 2))
        # Before the layers that read the blobs.
        net = text.parse(found, caffe_pb2.NetParameter())
        for _ in (1, 2):
            drop = net.layer.pop()
            place = [layer.name for layer in net.layer].index(f"pool{drop.name[-1]}")
            net.layer.insert(place + 1, drop)
        found = text.to_text(net)
    return found


def _narrow(match):
    return match[0] if match[0].endswith(" 10") else "num_output: 4"


def solver_of(folder, name, fields, gpu, *, prefix="run", **options):
    """Return a solver; it tests and writes snapshots."""
    param = text.parse(
        f"net_param {{ {net_of(name)} }} {fields} snapshot: 7 max_iter: {ITERATIONS} "
        f"snapshot_prefix: '{folder}/{prefix}'",
        caffe_pb2.SolverParameter(),
    )
    param.test_iter.append(2)
    param.test_interval = 5
    return Solver(param, device=gpu, **options)


def run(folder, name, fields, gpu, *, resume="", **options):
    """Train; return all losses, weights, histories, test values and the written weights."""
    solver = solver_of(folder, name, fields, gpu, **options)
    found = []

    def keep(each):
        found.append(np.array(each.state.losses.recent[-1]))
        if each.iteration % 5 == 0:
            found.extend(np.array(values) for values in each.testing.values[0].values())

    solver.callbacks.end_of_iteration.append(keep)
    solver.solve(resume)
    solver.close()
    blobs = [blob for layer in solver.net.layers for blob in layer.blobs]
    found += [blob.read_data().copy() for blob in blobs]
    found += [np.asarray(each).copy() for each in solver.method.history]
    return found, solver


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[pytest.mark.long] * name.startswith(SLOW)) for name in RUNS],
)
def test_training_gives_the_same_bits(case, folder, gpu, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    name, fields = RUNS[case]
    found = {}
    for graphs in (False, True):
        with caplog.at_level(DETAIL, "pcaffe"):
            found[graphs], _ = run(folder, name, fields, gpu, cuda_graph=graphs)
        texts = [record.getMessage() for record in caplog.records]
        captured = "CUDA graph of forward and backward%s captured"
        assert (captured % "" in texts) == graphs
        assert (captured % " of later batches" in texts) == (graphs and "iter_size" in fields)
        assert not [each for each in texts if each.lower().startswith("no cuda graph")]
        caplog.clear()
    assert_equal(found[True], found[False])


@pytest.fixture
def trained(folder, gpu, monkeypatch):
    """Return a function that makes two solvers, with and without graphs, in iteration 5."""
    monkeypatch.chdir(folder)
    made = []

    def make(fields=INV, **options):
        for graphs in (True, False):
            made.append(solver_of(folder, "normalized", fields, gpu, cuda_graph=graphs, **options))
            made[-1].step(5)
        return made[-2:]

    yield make
    for solver in made:
        solver.close()


def weights(solver):
    return [blob.read_data().copy() for layer in solver.net.layers for blob in layer.blobs]


def _change_weights(solver):
    for parameter in solver.net.parameters:
        parameter.blob.data[...] *= 0.5


def _read_everything(solver):
    for blob in solver.net.blobs.values():
        blob.data.sum()
    for parameter in solver.net.parameters:
        parameter.blob.diff.sum()


def _restore(solver):
    solver.snapshot()
    solver.restore(f"run_iter_{solver.iteration}.solverstate")


def _change_history(solver):
    with device.use(solver.device):
        for history in solver.method.history:
            history *= 0.5


def _new_arrays(solver):
    with device.use(solver.device):
        for parameter in solver.net.parameters:
            other = Blob(parameter.shape)
            other.data[...] = 0.5 * parameter.blob.data
            parameter.blob.share_data(other)


@pytest.mark.parametrize(
    "change",
    [
        _change_weights,
        _read_everything,
        _restore,
        _change_history,
        _new_arrays,
        lambda solver: solver.net.reshape(),
        lambda solver: solver.net.forward(),
        lambda solver: solver.net.before_forward.append(lambda index: None),
    ],
)
def test_what_happens_between_iterations_counts(change, trained):
    pair = trained()
    for solver in pair:
        change(solver)
        solver.step(2)
        solver.net.before_forward.clear()
        solver.step(6)
    assert_equal(*map(weights, pair))


def test_graphs_go_on_while_the_run_is_followed(trained):
    graphed, _ = pair = trained(INV + "display: 2")
    spans, records = [], {True: [], False: []}
    graphed.profile(spans.extend)
    for solver in pair:
        solver.recorder.layers = LayerMetrics()
        found = records[solver is graphed]
        solver.callbacks.on_record.append(lambda _, record, found=found: found.append(record))
        solver.step(6)
    graphed.profile(spans.extend, wanted=False)
    assert_equal(*map(weights, pair))
    passes = {(kind, name) for kind, name, *_ in spans if kind in ("backward", "update")}
    assert passes == {("backward", "all"), ("update", "all")}
    one, other = ([r["parameters"] for r in records[g] if r["kind"] == "train"] for g in records)
    assert one == other and len(one) == 3 and one[-1]["ip[0]"]["update"] > 0


def test_the_loss_scale_may_change(trained, caplog):
    pair = trained(INV + "data_type: 'float16'")
    with caplog.at_level(DETAIL, "pcaffe"):
        for solver in pair:
            solver.state.loss_scale.value /= 4
            solver.step(5)
    assert sum("forward and backward captured" in each.getMessage() for each in caplog.records) == 1
    assert_equal(*map(weights, pair))


def test_wrong_labels_are_reported_by_graphs(trained):
    graphed, plain = trained()
    for solver in (plain, graphed):
        layer = solver.net.layers[solver.net.layer_index("data")]
        take = layer.forward

        def forward(bottom, top, take=take):
            take(bottom, top)
            top[1].data[3] = 12

        layer.forward = forward
        with pytest.raises(LayerError, match="label 12 of sample 3 in bottom 'label'"):
            solver.step(1)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            "layer { name: 'pick' type: 'Filter' bottom: 'ip' bottom: 'label' top: 'pick' }",
            "layer 'pick' (Filter) runs on the host, between others",
        ),
        (
            "layer { name: 'add' type: 'LabelSpecificAdd' bottom: 'ip' bottom: 'label' top: 'add' }"
            "layer { name: 'quiet' type: 'Silence' bottom: 'add' }",
            "layer 'add' (LabelSpecificAdd) does not do the same in every pass",
        ),
    ],
)
def test_a_net_that_cannot_be_captured_says_why(layer, reason, folder, gpu, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    param = text.parse(
        f"net_param {{ {NORMALIZED} {layer} }} {INV} snapshot_prefix: '{folder}/why'",
        caffe_pb2.SolverParameter(),
    )
    with caplog.at_level(DETAIL, "pcaffe"):
        solver = Solver(param, device=gpu)
        solver.step(5)
        solver.close()
    assert f"No CUDA graph of the net: {reason}" in [each.getMessage() for each in caplog.records]
