"""Compiling before the first iteration: a dry run finds the kernels, workers compile them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from running import python, run

from pycaffe_dist.kernels import ahead, caching, dry_run
from pycaffe_dist.kernels.dry_run import Needs
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.net import Net, precompile
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

ROOT = Path(__file__).resolve().parents[2]
DATA = """
layer { name: 'data' type: 'DummyData' top: 'data' top: 'label'
        dummy_data_param { shape { dim: 4 dim: 3 dim: 21 dim: 19 } shape { dim: 4 }
                           data_filler { type: 'gaussian' } data_filler { type: 'constant' } } }
"""
NET = (
    "state { phase: TRAIN }"
    + DATA
    + """
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
        convolution_param { num_output: 13 kernel_size: 4 pad: 1
                            weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'pool' type: 'Pooling' bottom: 'conv' top: 'pool'
        pooling_param { kernel_size: 3 stride: 2 } }
layer { name: 'norm' type: 'LRN' bottom: 'pool' top: 'norm' }
layer { name: 'bn' type: 'BatchNorm' bottom: 'norm' top: 'bn' }
layer { name: 'scale' type: 'Scale' bottom: 'bn' top: 'scale' }
layer { name: 'drop' type: 'Dropout' bottom: 'scale' top: 'scale' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'scale' top: 'ip'
        inner_product_param { num_output: 5 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""
)


def needs_of(net):
    needs = Needs()
    precompile.find_needs(net, needs)
    return needs


def loops(needs):
    return {(function.py_func.__qualname__, types) for function, types in needs.loops}


def parse(words):
    return text_format.Parse(words, caffe_pb2.NetParameter())


def test_a_dry_run_takes_no_memory_and_draws_no_random_numbers():
    wide = "num_output: 4096 } } layer { name: 'b' type: 'InnerProduct' bottom: 'ip' top: 'b' "
    wide += "inner_product_param { num_output: 100000 weight_filler { type: 'gaussian' } } }"
    param = DATA + "layer { name: 'a' type: 'InnerProduct' bottom: 'data' top: 'ip' "
    param = parse(param + "inner_product_param { " + wide)
    # A new process starts with the memory peak of its parent.
    program = f"""
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import numpy as np
from google.protobuf import text_format
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.net import Net, precompile
from pycaffe_dist.schema import caffe_pb2
needs = dry_run.Needs()
with dry_run.noting(needs):
    net = Net(text_format.Parse({text_format.MessageToString(param)!r}, caffe_pb2.NetParameter()))
np.random.seed(1)
state = str(np.random.get_state())
precompile.find_needs(net, needs)
assert str(np.random.get_state()) == state
assert needs.loops
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(run([sys.executable, "-c", program]))
    assert grown < 500_000  # KiB; the weights alone would take 1.6 GB


def test_it_finds_every_loop_of_training(tmp_path):
    """The dry run finds all compiled functions that training calls."""
    program = f"""
import json, sys
from google.protobuf import text_format
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.net import Net, precompile
from pycaffe_dist.schema import caffe_pb2
param = text_format.Parse({NET!r}, caffe_pb2.NetParameter())
net = Net(param)
precompile.compile_kernels([net])
needs = dry_run.Needs()
precompile.find_needs(net, needs)
for _ in range(2):
    net.forward()
    net.backward()
found = {{function.py_func.__qualname__ for function, _ in needs.loops}}
used = {{
    value.py_func.__qualname__
    for name, module in list(sys.modules.items()) if name.startswith("pycaffe_dist.kernels")
    for value in vars(module).values()
    if hasattr(value, "py_func") and (value.stats.cache_hits or value.stats.cache_misses)
}}
missed = sum(
    sum(value.stats.cache_misses.values())
    for name, module in list(sys.modules.items()) if name.startswith("pycaffe_dist.kernels")
    for value in vars(module).values() if hasattr(value, "py_func")
)
print(json.dumps([sorted(found), sorted(used), missed]))
"""
    found, used, missed = json.loads(run([sys.executable, "-c", program]))
    assert len(found) > 10
    assert set(used) <= set(found)
    assert missed == 0


@pytest.mark.parametrize("phase", [caffe_pb2.TRAIN, caffe_pb2.TEST], ids=["TRAIN", "TEST"])
def test_warmup_compiles_the_kernels_of_published_nets(phase):
    """For a new net only the kernels that depend on its sizes remain to be compiled."""
    usual = text.read_net(ROOT / "pycaffe_dist" / "net" / "usual.prototxt")
    with dry_run.noting(Needs()):  # no values
        known = loops(needs_of(Net(with_state(usual, phase))))
    for path in ("bvlc_googlenet", "bvlc_reference_caffenet", "resnet50", "mobilenet_v1", "vgg16"):
        param = text.read_net(ROOT / "models" / path / "train_val.prototxt")
        for layer in param.layer:
            if layer.HasField("data_param"):
                layer.data_param.batch_size = 2
        with dry_run.noting(Needs()):
            net = Net(without_sources(with_state(param, phase), None))
        found = loops(needs_of(net))
        assert found
        assert found <= known, path


def test_each_net_has_one_dry_run(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(precompile.ahead, "compile_needs", lambda *args: calls.append(args) or True)
    monkeypatch.setattr(precompile.caching, "mark", lambda name: tmp_path / name)
    net = Net(parse(NET))
    precompile.compile_kernels([net])
    precompile.compile_kernels([net])
    assert len(calls) == 1
    precompile.compile_kernels([net], also_is="another method")
    assert len(calls) == 2


@pytest.fixture
def usual_cache():
    return str(caching.cache_directory())


@pytest.fixture
def own_microkernels(tmp_path, monkeypatch):
    """A cache without microkernels, but with all compiled loops."""
    shared = caching.cache_directory() / f"numba-{caching.version()}"
    shared.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / shared.name).symlink_to(shared)
    monkeypatch.setenv("PCAFFE_CACHE_DIR", str(folder))
    return folder


def train(tmp_path, name, **environment):
    """Return the log of training, and the losses."""
    (tmp_path / "net.prototxt").write_text(f"name: '{name}'" + NET.partition("}")[2])
    (tmp_path / "solver.prototxt").write_text(
        "net: 'net.prototxt' base_lr: 0.1 lr_policy: 'fixed' max_iter: 5 display: 1 "
        "random_seed: 1 solver_mode: CPU snapshot_after_train: false"
    )
    log = run(["pcaffe", "train", "--solver=solver.prototxt"], tmp_path, **environment)
    return log, [
        float(line.split("loss = ")[1].split()[0])
        for line in log.splitlines()
        if "Train net output #0" in line
    ]


@pytest.mark.skipif(target() is None, reason="PCAFFE_SIMD=none has no microkernels")
def test_a_compiler_that_dies_costs_speed_and_a_warning(usual_cache, tmp_path, own_microkernels):
    log, losses = train(tmp_path, "dying", PCAFFE_ABORT_COMPILING="RowKernel")
    warnings = [line for line in log.splitlines() if line.startswith("W")]
    assert len(warnings) == 1, warnings
    assert "layer 'conv': RowKernel(" in warnings[0]
    assert "status -6" in warnings[0]
    _, expected = train(tmp_path, "dying", PCAFFE_CACHE_DIR=usual_cache)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    # The kept code is used again, with a note in the log.
    log, losses = train(tmp_path, "dying")
    assert "in an earlier run" in log
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_several_processes_compile_once(own_microkernels):
    """The first one compiles; the others wait, and find all kernels."""
    program = f"""
from google.protobuf import text_format
from pycaffe_dist import log
from pycaffe_dist.net import Net, precompile
from pycaffe_dist.schema import caffe_pb2
log.start()
net = Net(text_format.Parse({NET!r}, caffe_pb2.NetParameter()))
precompile.compile_kernels([net])
"""
    done = [job.finish() for job in [python(program) for _ in range(3)]]
    assert [job.status for job in done] == [0, 0, 0]
    assert sum("kernels in" in job.output for job in done) == 1, done


def test_a_kernel_that_fails_ahead_is_compiled_at_its_first_use(monkeypatch, caplog):
    needs = Needs()
    net = Net(parse(NET))
    precompile.find_needs(net, needs)

    def fail(worker):
        raise OSError("no space left")

    monkeypatch.setattr(ahead, "_groups", lambda *args: [[fail]])
    with caplog.at_level("INFO", "pcaffe"):
        assert not ahead.compile_needs(needs)
    assert "no space left" in caplog.text
