"""A run that was stopped and resumed gives the weights of the run that was never stopped."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from digits import write_digits
from kept_jobs import run_pcaffe

from pycaffe_dist.snapshot import companion
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state

pytestmark = pytest.mark.slow

NET = """
layer { name: 'data' type: 'Data' top: 'data' top: 'label'
  transform_param { scale: 0.00390625 crop_size: 9 mirror: true }
  data_param { source: 'digits_lmdb' batch_size: 5 backend: LMDB rand_skip: 9 } }
layer { name: 'rows' type: 'HDF5Data' top: 'rows'
  hdf5_data_param { source: 'rows.txt' batch_size: 5 shuffle: true } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'norm' type: 'BatchNorm' bottom: 'conv' top: 'norm' }
layer { name: 'relu' type: 'ReLU' bottom: 'norm' top: 'norm' }
layer { name: 'pool' type: 'Pooling' bottom: 'norm' top: 'pool'
  pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }
layer { name: 'flat' type: 'Flatten' bottom: 'pool' top: 'flat' }
layer { name: 'all' type: 'Concat' bottom: 'flat' bottom: 'rows' top: 'all' }
layer { name: 'drop' type: 'Dropout' bottom: 'all' top: 'all' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'all' top: 'ip'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""
# No random_seed: one run's random numbers must reach the other through the snapshot.
SOLVER = """
net: 'net.prototxt' base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 lr_policy: 'step' gamma: 0.5
stepsize: 5 display: 1 average_loss: 7 max_iter: 11 snapshot: 4 solver_mode: CPU
test_iter: 3 test_interval: 3 snapshot_prefix: '%s' %s
"""
LAST = "_iter_11"
# auto chooses by its measurements, so two runs may differ in rounding (but not a resumed one).
EXCHANGE = "--exchange=allreduce"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with a net, 83 images in an LMDB and 37 rows in HDF5 files."""
    rng = np.random.default_rng(0)
    write_digits(tmp_path, 83, side=12)
    for name, count in (("a", 17), ("b", 20)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["rows"] = rng.standard_normal((count, 3)).astype(np.float32)
    (tmp_path / "rows.txt").write_text("a.h5\nb.h5\n")
    (tmp_path / "net.prototxt").write_text(NET)
    return tmp_path


def train(
    folder: Path, prefix: str, ranks: int, *flags: str, solver: str = "", every: int = 4
) -> str:
    text = SOLVER.replace("snapshot: 4", f"snapshot: {every}")
    (folder / f"{prefix}.solver").write_text(text % (prefix, solver))
    # A resumed run's state must be in the snapshot, not in a process of an earlier run.
    resumes = any(flag.startswith("--snapshot=") for flag in flags)
    words = ["train", f"--solver={prefix}.solver", EXCHANGE, *flags]
    return run_pcaffe(ranks, words, folder, process="resumed" if resumes else "")


def losses(output: str) -> dict[str, str]:
    """Return the displayed losses and test outputs by iteration."""
    found = dict(re.findall(r"Iteration (\d+) \(.*loss = (\S+)", output))
    tests = re.findall(r"Iteration (\d+), Testing net(?:.|\n)*?Test net output #0: (.*)", output)
    return found | {f"test {iteration}": value for iteration, value in tests}


def assert_same_bits(folder: Path, one: str, other: str, suffix: str = "") -> None:
    assert_same_weights(folder, one, other, suffix)
    first, second = (load_state(folder / f"{p}{LAST}.solverstate{suffix}") for p in (one, other))
    assert first.current_step == second.current_step
    assert first.averaged == second.averaged
    for arrays in ("history", "weights"):
        for mine, theirs in zip(getattr(first, arrays), getattr(second, arrays), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    mine, theirs = (
        companion.load(companion.path_of(folder / f"{p}{LAST}.solverstate{suffix}"))
        for p in (one, other)
    )
    assert mine.by_rank == theirs.by_rank
    assert (mine.tested, mine.best) == (theirs.tested, theirs.best)


def assert_same_weights(folder: Path, one: str, other: str, suffix: str = "") -> None:
    first, second = (load_weights(folder / f"{p}{LAST}.caffemodel{suffix}") for p in (one, other))
    for mine, theirs in zip(first, second, strict=True):
        for a, b in zip(mine.blobs, theirs.blobs, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=mine.name)


@pytest.mark.parametrize(
    "ranks, solver",
    [
        pytest.param(1, "snapshot_format: HDF5 type: 'Adam'", marks=pytest.mark.long),
        (1, "iter_size: 2"),
        pytest.param(2, "type: 'Nesterov'", marks=pytest.mark.long),
        pytest.param(4, "", marks=pytest.mark.long),
        (1, "type: 'Lion' averaging: 'EMA' averaging_decay: 0.8 snapshot_format: HDF5"),
        (2, "type: 'AdamW' averaging: 'EMA' averaging_decay: 0.8 best_output: 'loss' patience: 9"),
        pytest.param(
            *(4, "averaging: 'SWA' averaging_start: 2 averaging_period: 3 best_output: 'loss'"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_bit_for_bit(folder, ranks, solver):
    suffix = ".h5" if "HDF5" in solver else ""
    whole = losses(train(folder, "whole", ranks, solver=solver))
    state = f"whole_iter_4.solverstate{suffix}"
    resumed = train(folder, "resumed", ranks, f"--snapshot={state}", solver=solver)
    assert "Resuming exactly where iteration 4 ended" in resumed
    assert_same_bits(folder, "whole", "resumed", suffix)
    again = losses(resumed)
    assert "test 6" in again and "10" in again and "3" not in again
    assert again == {key: value for key, value in whole.items() if key in again}


@pytest.mark.parametrize("at", [2, 8])
def test_a_resumed_run_keeps_autos_plan(folder, at):
    """Before and after it knows the times of the layers."""
    whole = train(folder, "whole", 2, "--exchange=auto", every=at)
    assert ("now that the layers' times are known" in whole) == (at == 8)
    state = f"--snapshot=whole_iter_{at}.solverstate"
    resumed = train(folder, "resumed", 2, "--exchange=auto", state, every=at)
    assert "Exchange plan of the snapshot" in resumed
    assert_same_bits(folder, "whole", "resumed")


@pytest.mark.long
def test_stopping_anywhere_changes_nothing(folder):
    """Also if the uninterrupted run writes no snapshot and averages no statistics there."""
    train(folder, "whole", 3, solver="random_seed: 4")
    (folder / "whole.solver").rename(folder / "kept.solver")
    stopped = (folder / "kept.solver").read_text().replace("max_iter: 11", "max_iter: 7")
    (folder / "stopped.solver").write_text(stopped.replace("'whole'", "'stopped'"))
    run_pcaffe(3, ["train", "--solver=stopped.solver", EXCHANGE], folder)
    train(folder, "resumed", 3, "--snapshot=stopped_iter_7.solverstate")
    assert_same_bits(folder, "whole", "resumed")


def test_servers_save_and_load_their_history(folder):
    """A run resumes with servers, and then without, as if it had never stopped."""
    solver = "type: 'Adam' momentum2: 0.99"
    train(folder, "whole", 2, solver=solver)
    servers = ["--exchange=parameter_server", "--server_ranks=2"]
    state = "--snapshot=whole_iter_4.solverstate"
    output = train(folder, "served", 4, *servers, state, solver=solver)
    assert "Resuming exactly where iteration 4 ended" in output
    assert_same_bits(folder, "whole", "served")
    train(folder, "resumed", 2, "--snapshot=served_iter_8.solverstate", solver=solver)
    assert_same_bits(folder, "whole", "resumed")


@pytest.mark.parametrize("before, after", [(1, 3), pytest.param(4, 2, marks=pytest.mark.long)])
def test_another_number_of_ranks_resumes_and_logs_the_changes(folder, before, after):
    train(folder, "whole", before)
    output = train(folder, "resumed", after, "--snapshot=whole_iter_8.solverstate")
    assert output.count(f"Resuming on {after} rank(s) a run of {before}: data go on") == 1
    assert f"effective batch size is {5 * after} now and was {5 * before}" in output
    assert "Resuming exactly" not in output
    read = []
    for prefix in ("whole_iter_8", f"resumed{LAST}"):
        about = companion.load(folder / f"{prefix}.solverstate.json")
        places = [record["train"]["data"]["place"]["next_record"] for record in about.by_rank]
        read.append(min(places))
    assert read == [8 * 5 * before, 8 * 5 * before + 3 * 5 * after]


def test_without_the_companion_it_resumes_as_caffe_does(folder):
    train(folder, "whole", 1)
    (folder / "whole_iter_4.solverstate.json").unlink()
    output = train(folder, "plain", 1, "--snapshot=whole_iter_4.solverstate")
    assert "Resuming exactly" not in output
    about = companion.load(folder / f"plain{LAST}.solverstate.json")
    assert about.by_rank[0]["train"]["data"]["place"]["batch"] == 11 - 4


def test_a_companion_of_another_run_is_not_taken(folder):
    train(folder, "one", 1)
    train(folder, "two", 1)
    shutil.copy(folder / "one_iter_4.solverstate.json", folder / "two_iter_4.solverstate.json")
    output = train(folder, "resumed", 1, "--snapshot=two_iter_4.solverstate")
    assert "two_iter_4.solverstate.json does not belong to the snapshot beside it" in output
    assert "Resuming exactly" not in output


def test_latest_skips_damaged_snapshots(folder):
    first = train(folder, "run", 1, "--snapshot=latest")
    assert "There is no snapshot of prefix 'run' yet" in first
    for path in folder.glob(f"run{LAST}*"):
        path.unlink()
    weights = folder / "run_iter_8.caffemodel"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    (folder / "run_more_iter_99.solverstate").write_bytes(b"of another prefix")
    second = train(folder, "run", 1, "--snapshot=latest", "--keep=1")
    assert "Skipping the snapshot of iteration 8: run_iter_8.caffemodel: is damaged" in second
    assert "Resuming exactly where iteration 4 ended" in second
    names = sorted(path.name for path in folder.glob("run_*"))
    assert names == [
        f"run{LAST}.caffemodel",
        f"run{LAST}.solverstate",
        f"run{LAST}.solverstate.json",
        "run_more_iter_99.solverstate",
    ]
