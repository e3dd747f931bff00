"""Programs as pycaffe's users write them run unchanged, on one rank and on several."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import running

from pycaffe_dist.snapshot.caffemodel import load_weights

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).with_name("programs")
NET = """
layer { name: 'data' type: 'HDF5Data' top: 'data' top: 'label'
  hdf5_data_param { source: 'rows.txt' batch_size: %d } }
layer { name: 'ip1' type: 'InnerProduct' bottom: 'data' top: 'ip1'
  inner_product_param { num_output: 8 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'ip1' top: 'ip1' }
layer { name: 'ip2' type: 'InnerProduct' bottom: 'ip1' top: 'ip2'
  inner_product_param { num_output: 3 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip2' bottom: 'label' top: 'loss' }
"""
SOLVER = """
train_net: '%s' base_lr: 0.05 lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.001
display: 5 max_iter: 10 random_seed: 4 snapshot_prefix: 'run'
"""


def run(folder, *arguments, ranks=1, expect_failure=False, **variables):
    """Run ``python -m pycaffe_dist.as_caffe`` with arguments in a folder; return what it printed.

    A program of ``programs`` may be given by its name alone.
    """
    words = [PROGRAMS / word if (PROGRAMS / word).is_file() else word for word in arguments]
    command = [sys.executable, "-m", "pycaffe_dist.as_caffe", *words]
    return running.run(command, folder, ranks, expect_failure, MPLBACKEND="Agg", **variables)


def weights(path):
    return [blob for layer in load_weights(path) for blob in layer.blobs]


def assert_same(found, wanted, **tolerance):
    for mine, theirs in zip(weights(found), weights(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, **tolerance)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with data and two solvers: one rank's batch is two ranks' together."""
    import h5py

    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = rng.standard_normal((48, 5)).astype(np.float32)
        file["label"] = rng.integers(0, 3, 48).astype(np.float32)
    (tmp_path / "rows.txt").write_text("rows.h5\n")
    for ranks, batch in ((1, 12), (2, 6)):
        (tmp_path / f"net{ranks}.prototxt").write_text(NET % batch)
        (tmp_path / f"solver{ranks}.prototxt").write_text(SOLVER % f"net{ranks}.prototxt")
    return tmp_path


LAYER = """
import caffe

class Twice(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff
"""


def test_fcn_surgery(tmp_path):
    assert "segmented (30, 30)" in run(tmp_path, "fcn_surgery.py")


def test_siamese_features(tmp_path):
    pytest.importorskip("matplotlib")
    assert "within" in run(tmp_path, "siamese_features.py", "features.png")
    assert (tmp_path / "features.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_hard_examples(tmp_path, ranks):
    """A Python layer, found beside the program, on every rank."""
    printed = run(tmp_path, "ohem_train.py", ranks=ranks)
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}" in printed
        assert_same(
            tmp_path / f"weights_of_rank_{rank}.caffemodel",
            tmp_path / "weights_of_rank_0.caffemodel",
        )


def test_a_multi_gpu_script_on_two_ranks(folder):
    alone = run(folder, "--cpu", "train_ranks.py", "--solver=solver1.prototxt", "--timing")
    assert "Using 1 ranks" in alone
    assert "back ip2: " in alone
    arguments = ["--cpu", "train_ranks.py", "--solver=solver2.prototxt", "--ranks=2"]
    together = run(folder, *arguments, ranks=2)
    assert "Iteration 5" in together
    assert_same(folder / "rank_1_of_2.caffemodel", folder / "rank_0_of_2.caffemodel")
    assert_same(
        folder / "rank_0_of_2.caffemodel",
        folder / "rank_0_of_1.caffemodel",
        rtol=1e-4,
        atol=1e-6,
    )
    refused = run(folder, *arguments, expect_failure=True)
    assert "mpirun -n 2" in refused


def test_a_loop_by_hand_on_two_ranks(folder):
    run(folder, "by_hand.py", "solver1.prototxt")
    run(folder, "by_hand.py", "solver2.prototxt", ranks=2)
    assert_same(
        folder / "by_hand_1_of_2.caffemodel",
        folder / "by_hand_0_of_1.caffemodel",
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.long
def test_a_python_layer_that_fails_ends_all_ranks(folder):
    net = (
        "layer { name: 'picky' type: 'Python' top: 'p' "
        "python_param { module: 'ohem_layers' layer: 'FailsOnRankOne' } }"
        "layer { name: 'quiet' type: 'Silence' bottom: 'p' }"
    )
    (folder / "net2.prototxt").write_text(NET % 6 + net)
    printed = run(
        folder,
        "by_hand.py",
        "solver2.prototxt",
        ranks=2,
        expect_failure=True,
        PYTHONPATH=str(PROGRAMS),
    )
    assert "rank 1 of 2" in printed
    assert "layer 'picky' (Python): ohem_layers.FailsOnRankOne: forward raised KeyError" in printed


@pytest.mark.long
def test_the_same_trainer_as_a_tool(folder):
    tool = PROGRAMS.parent.parent.parent / "tools" / "train.py"
    printed = run(folder, tool, "--solver=solver2.prototxt", "--timing", ranks=2)
    assert "forw   1      ip1 : " in printed
    assert "started with mpirun" not in printed


def test_an_installed_caffe_is_not_hidden(tmp_path):
    package = tmp_path / "elsewhere" / "caffe"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('the installed one')")
    (tmp_path / "program.py").write_text("import caffe\nprint(caffe.Net.__module__)")
    where = str(package.parent)
    printed = run(tmp_path, "program.py", PYTHONPATH=where, expect_failure=True)
    assert "there is a Caffe already" in printed
    assert "elsewhere" in printed
    assert "pycaffe_dist" in run(tmp_path, "--force", "program.py", PYTHONPATH=where)


def test_a_folder_named_caffe_is_no_module(tmp_path):
    (tmp_path / "caffe").mkdir()
    (tmp_path / "program.py").write_text(
        "import sys, caffe, caffe.io, caffe.draw\n"
        "from caffe.proto import caffe_pb2\n"
        "import caffe.proto.caffe_pb2 as again\n"
        "assert again is caffe_pb2 is caffe.io.caffe_pb2 and sys.argv[1:] == ['-x', 'y']\n"
        "print(caffe.__version__, __name__, caffe.log, caffe.layers)\n"
        "import caffe.net\n"
    )
    printed = run(tmp_path, "program.py", "-x", "y", expect_failure=True)
    assert "1.0.0 __main__ " in printed
    assert "No module named 'caffe.net'" in printed


def test_commands_run_layers_that_were_written_for_caffe(tmp_path):
    (tmp_path / "twice.py").write_text(LAYER)
    (tmp_path / "net.prototxt").write_text(
        """layer { name: 'x' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: 2 } } }
        layer { name: 'twice' type: 'Python' bottom: 'x' top: 'y'
          python_param { module: 'twice' layer: 'Twice' } }"""
    )
    running.run(["pcaffe", "time", "--model=net.prototxt", "--iterations=1"], tmp_path)
