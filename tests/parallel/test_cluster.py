"""What ranks agree on, and how a run ends when a rank fails."""

from __future__ import annotations

import signal

import pytest


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_operations(mpirun, ranks):
    finished = mpirun(ranks, "agreeing.py")
    assert finished.status == 0, finished.output
    assert finished.output.count("all right") == ranks


def test_a_signal_stops_all_ranks_in_the_same_iteration(start_job):
    job = start_job(3, "signalled.py")
    lines = []
    while sum("is ready" in line for line in lines) < 3:
        lines.append(job.process.stdout.readline())
        assert lines[-1], "".join(lines)
    job.process.send_signal(signal.SIGUSR1)
    finished = job.finish(30)
    assert finished.status == 0, finished.output
    stops = [line.split()[-1] for line in finished.output.splitlines() if "stopped" in line]
    assert len(stops) == 3
    assert len(set(stops)) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("error", "the loss is nan"),
        ("bug", "ValueError: a mistake in a layer"),
        ("outside", "the loss is nan"),
        ("interrupt", "interrupted"),
    ],
)
def test_a_rank_that_fails_ends_the_run_with_one_message(mpirun, how, message):
    finished = mpirun(3, "failing.py", how, timeout=30)
    assert finished.status == 1
    assert finished.seconds < 10
    # A program that does not start pcaffe's log also gets the traceback of a bug.
    assert finished.output.count(message) == 1 + (how == "bug")
    assert finished.output.count("rank 1 of 3 on ") == 1
    assert finished.output.count("Traceback") == (how == "bug")
    assert "finished" not in finished.output


def test_when_all_ranks_fail_there_is_one_message(mpirun):
    finished = mpirun(4, "failing.py", "everybody", timeout=30)
    assert finished.status == 1
    assert finished.output.count("the loss is nan") == 1
    assert "rank 0 of 4 on " in finished.output


@pytest.mark.parametrize("how", ["error", "outside"])
def test_one_rank_fails_like_a_run_without_mpirun(mpirun, how):
    finished = mpirun(1, "failing.py", how, timeout=30)
    assert finished.status == 1
    assert finished.output.count("NumericError: the loss is nan") == 1
    assert "MPI_ABORT" not in finished.output


@pytest.mark.parametrize("how", ["exit", "exit-0", "kill"])
def test_a_rank_that_vanishes_ends_the_run(mpirun, how):
    finished = mpirun(3, "failing.py", how, timeout=30)
    assert finished.status != 0
    assert finished.seconds < 10
    assert "Traceback" not in finished.output
    assert "finished" not in finished.output


def test_ranks_that_wait_long_say_for_which_exchange_and_ranks(mpirun):
    finished = mpirun(3, "failing.py", "late")
    assert finished.status == 0, finished.output
    for rank in (0, 2):
        start = f"pcaffe: rank {rank} of 3 on "
        waits, told = [line for line in finished.output.splitlines() if line.startswith(start)]
        assert "layer0[0]" in waits
        assert waits.endswith("for rank 1")
        assert told.endswith("rank 1 has nothing under way and computes, in round 2 of exchanges")
    assert finished.output.count("finished") == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("options", "the command line of rank 1 of 2 differs from rank 0's: it has check_"),
        (
            "solver",
            "the solver of rank 1 of 2 differs from rank 0's: it has max_iter: 5 instead of "
            "max_iter: 8",
        ),
        ("net", "the net of rank 1 of 2 differs from rank 0's: it has ip[0] of shape (5, 3)"),
    ],
)
def test_all_ranks_learn_how_they_differ(kept_mpirun, how, message):
    finished = kept_mpirun(2, "disagreeing.py", how)
    assert finished.status == 0, finished.output
    assert finished.output.count(message) == 2


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", "layer0[1] (5,) float32 instead of layer0[1] (4,) float32"),
        ("count", "this rank's net has 4 parameters, rank 0's has 3"),
        ("twice", "the gradient of layer0[0] is ready twice"),
        ("missing", "backward has not made that of layer0[1], layer1[0]"),
    ],
)
def test_ranks_whose_gradients_differ_get_an_error(mpirun, how, message):
    finished = mpirun(2, "disagreeing.py", how, timeout=30)
    assert finished.status == 1
    assert finished.output.count(message) == 1


def test_weights_that_drift_apart_end_the_run(mpirun):
    """Rank 1 differs in layer1[0], rank 3 in layer0[1]."""
    finished = mpirun(4, "drifting.py", timeout=30)
    assert finished.status == 1
    assert finished.output.count("equal") == 4
    message = (
        "after iteration 7 the weights of ranks 1, 3 of 4 differ from the other ranks', "
        "first in layer0[1]"
    )
    assert finished.output.count(message) == 1
