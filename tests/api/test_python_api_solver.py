"""Solvers and process-wide settings through the Python API."""

import gc
import logging
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist import log
from pycaffe_dist.errors import DeviceError, UsageError

GOLDEN = Path(__file__).parent.parent / "golden" / "solver"


@pytest.fixture
def solver(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    solver = caffe.get_solver("solver_sgd.prototxt")
    solver.net.copy_from("init.caffemodel")
    return solver


def test_a_solver_is_freed_with_its_last_reference(monkeypatch, tmp_path):
    """As in pycaffe: programs make solvers in loops."""
    monkeypatch.chdir(GOLDEN)
    gc.disable()
    try:
        for _ in range(2):  # the first compilation may leave frames to the collector
            solver = caffe.get_solver("solver_sgd.prototxt")
            solver.add_callback(lambda: None, lambda: None)
            solver.step(2)
            solver.param.snapshot_prefix = str(tmp_path / "s")
            solver.snapshot()
            solver.restore(tmp_path / f"s_iter_{solver.iter}.solverstate.h5")
            solver.step(1)
            parts = [weakref.ref(part) for part in (solver, solver.net, solver._solver.net)]
            parts += [weakref.ref(layer) for layer in solver.net.layers]
            del solver
        assert [part() for part in parts if part() is not None] == []
    finally:
        gc.enable()


def test_every_method_has_its_class(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    assert isinstance(caffe.get_solver("solver_adadelta.prototxt"), caffe.AdaDeltaSolver)
    for name in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"):
        made = getattr(caffe, f"{name}Solver")("solver_adagrad.prototxt")
        assert made.param.type == name
        assert isinstance(made, caffe.SGDSolver)


def test_iterations_by_hand_equal_step(solver, monkeypatch):
    """Programs with their own loop call forward, backward and apply_update."""
    expected = np.load("expected_sgd.npz")["losses"]
    losses = []
    for _ in range(4):
        solver.net.clear_param_diffs()
        losses.append(float(solver.net.forward()["loss"]))
        solver.net.backward()
        solver.apply_update()
    assert solver.iter == 4
    np.testing.assert_allclose(losses, expected[:4], rtol=1e-3)


def test_apply_update_uses_the_diffs(solver):
    solver.param.weight_decay = 0
    data, diff = (getattr(solver.net.params["ip1"][1], part) for part in ("data", "diff"))
    data[...], diff[...] = 0, 1
    assert solver.lr == pytest.approx(solver.param.base_lr)
    solver.apply_update()
    np.testing.assert_allclose(data, -solver.lr * 2, rtol=1e-6)  # the biases' lr_mult


def test_diffs_of_all_blobs_can_be_read_after_a_step(solver):
    solver.step(1)
    found = [name for name, blob in solver.net.blobs.items() if blob.diff.any()]
    assert len(found) > 2


def test_callbacks_run_around_the_gradients(solver):
    seen = []
    bias = solver.net.params["ip1"][1]

    def start():
        seen.append(("start", solver.iter, float(np.abs(bias.diff).sum())))

    def ready():
        seen.append(("ready", solver.iter, float(np.abs(bias.diff).sum())))

    solver.add_callback(start, ready)
    solver.step(2)
    assert [event[:2] for event in seen] == [("start", 0), ("ready", 0), ("start", 1), ("ready", 1)]
    assert seen[0][2] == 0 < seen[1][2]
    with pytest.raises(UsageError, match="two functions"):
        solver.add_callback(start)


def test_a_callback_may_change_the_gradients(solver):
    before = solver.net.params["ip1"][0].data.copy()
    solver.param.weight_decay = 0

    def clear():
        for blobs in solver.net.params.values():
            for blob in blobs:
                blob.diff[...] = 0

    solver.add_callback(lambda: None, clear)
    solver.step(1)
    np.testing.assert_array_equal(solver.net.params["ip1"][0].data, before)


def test_a_new_base_lr_counts_from_the_next_iteration(solver):
    solver.step(1)
    before = solver.net.params["ip1"][0].data.copy()
    solver.param.base_lr = 0.0
    solver.param.momentum = 0.0
    solver.step(1)
    assert solver.lr == 0
    moved = solver.net.params["ip1"][0].data - before
    assert np.abs(moved).max() < 1e-2


def test_share_weights(solver):
    other = caffe.Net(str(GOLDEN / "net.prototxt"), caffe.TRAIN)
    solver.share_weights(other)
    solver.net.params["ip1"][0].data[...] = 3
    assert (other.params["ip1"][0].data == 3).all()


def test_nccl_objects_do_no_harm_on_one_rank(solver):
    assert caffe.has_nccl()
    uid = caffe.NCCL.new_uid()
    assert isinstance(uid, bytes)
    nccl = caffe.NCCL(solver, uid)
    nccl.bcast()
    solver.add_callback(nccl)
    solver.net.after_backward(nccl)
    solver.step(1)
    assert solver.iter == 1


def test_ranks_without_mpirun():
    assert (caffe.solver_count(), caffe.solver_rank()) == (1, 0)
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(True)
    with pytest.raises(UsageError, match="mpirun -n 4"):
        caffe.set_solver_count(4)
    with pytest.raises(UsageError, match="started it as rank 0"):
        caffe.set_solver_rank(1)


def test_gpus_are_refused():
    caffe.set_device(0)
    with pytest.raises(UsageError):
        caffe.set_device(-1)
    with pytest.raises(DeviceError, match="--cpu"):
        caffe.set_mode_gpu()


def test_timer():
    timer = caffe.Timer()
    assert timer.ms == 0
    timer.start()
    assert timer.ms > 0
    timer.stop()
    assert timer.ms == timer.ms > 0


@pytest.fixture
def no_log():
    yield
    log.stop()


def test_log_levels(capfd, no_log):
    caffe.init_log()
    caffe.log("a line")
    assert "test_python_api_solver.py" in (line := capfd.readouterr().err)
    assert line.startswith("I")
    assert line.endswith("] a line\n")
    caffe.init_log(1)
    caffe.log("quiet")
    logging.getLogger("pcaffe").warning("loud")
    assert capfd.readouterr().err.endswith("loud\n")
    with pytest.raises(UsageError, match="not 7"):
        caffe.init_log(7)


def test_the_log_can_go_to_a_file(tmp_path, monkeypatch, capfd, no_log):
    monkeypatch.setenv("GLOG_log_dir", str(tmp_path))
    caffe.init_log(0, False)
    caffe.log("a line")
    assert "a line" in (tmp_path / "pcaffe.INFO").read_text()
    assert not capfd.readouterr().err


def test_the_environment_sets_the_level(capfd, no_log, monkeypatch):
    monkeypatch.setenv("GLOG_minloglevel", "2")
    caffe.init_log()
    logging.getLogger("pcaffe").warning("quiet")
    assert not capfd.readouterr().err


def test_the_log_starts_with_the_first_solver():
    program = (
        "import sys, pycaffe_dist as caffe; caffe.Net('net.prototxt', caffe.TRAIN); "
        "print('now a solver', file=sys.stderr); caffe.SGDSolver('solver_sgd.prototxt')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=GOLDEN, capture_output=True, text=True, check=True
    )
    before, _, after = done.stderr.partition("now a solver\n")
    assert not before
    assert "Layers of net" in after


def test_a_program_with_a_log_of_its_own_keeps_it(solver):
    """The tests themselves run with pytest's handlers."""
    assert logging.getLogger().handlers
    assert not log.logger.handlers


def test_a_net_is_a_table_in_the_log(capfd, no_log, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    caffe.init_log()
    caffe.Net("net.prototxt", caffe.TRAIN)
    short = capfd.readouterr().err
    assert "Layers of net" in short and "Setting up" not in short
    monkeypatch.setenv("GLOG_v", "1")
    caffe.init_log()
    caffe.Net("net.prototxt", caffe.TRAIN)
    assert "Setting up" in capfd.readouterr().err
