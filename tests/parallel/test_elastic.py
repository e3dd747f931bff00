"""Ranks die, and the others go on as if the run had begun without them, or with new ranks."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from digits import write_digits
from running import Job, find_mpirun

from pycaffe_dist.launch.mpirun import fault_tolerance
from pycaffe_dist.launch.resizing import RequestFile
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state
from pycaffe_dist.training.metrics_file import read_records

pytestmark = pytest.mark.slow

# Labels of 7 are ignored, so that each forward asks all ranks for the number of the others.  The
# margin grows with the number of forward passes, of which a repeated one must not count.
NET = """
layer { name: 'data' type: 'Data' top: 'data' top: 'label' transform_param { scale: 0.00390625 }
  data_param { source: 'digits_lmdb' batch_size: 5 backend: LMDB } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'conv' top: 'ip'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'margin' type: 'LabelSpecificAdd' bottom: 'ip' bottom: 'label' top: 'margin'
  label_specific_add_param { bias_base: 0 bias_gamma: 0.2 bias_power: -1 bias_min: -1 } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'margin' bottom: 'label' top: 'loss'
  loss_param { ignore_label: 7 } }
"""
SOLVER = """
net: 'net.prototxt' base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 lr_policy: 'step' gamma: 0.5
stepsize: 5 display: 1 max_iter: 12 snapshot: 6 solver_mode: CPU random_seed: 3
test_iter: 3 test_interval: 4 snapshot_prefix: '%s'
averaging: 'EMA' averaging_decay: 0.8 best_output: 'loss'
"""
# Ranks agree on updates that are displayed.
QUIET = SOLVER.replace("display: 1 ", "display: 5 ")
CHANGING = SOLVER.replace("snapshot: 6", "snapshot: 4")
LAST = 12
PROGRAM = Path(__file__).with_name("programs") / "faulty.py"
# The dead write nothing, and MPI's own words are not ours.
LOST = re.compile(r"(rank \d.*) lost: (\d) rank\(s\) go on with iteration (\d+)")
CHANGED = re.compile(r"the hosts have changed: (\d) rank\(s\) go on with iteration (\d+)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a net, 83 images in an LMDB, and the undisturbed run "whole"."""
    made = tmp_path_factory.mktemp("elastic")
    write_digits(made, 83, side=12)
    (made / "net.prototxt").write_text(NET)
    train(made, "whole", 3, "", "--metrics=whole.jsonl")
    return made


def train(
    folder: Path,
    prefix: str,
    ranks: int,
    faults: str = "",
    *flags: str,
    status: int | None = 0,
    solver: str = SOLVER,
    **variables: str,
) -> str:
    """Train on several ranks, some of which may die; return the output."""
    (folder / f"{prefix}.solver").write_text(solver % prefix)
    under = [find_mpirun(), *fault_tolerance(60), "-n", ranks, sys.executable, PROGRAM]
    words = ["train", f"--solver={prefix}.solver", "--elastic", "--exchange=allreduce", *flags]
    finished = Job([*under, *words], folder, FAULTS=faults, **variables).finish()
    assert status in (None, finished.status), finished.output[-4000:]
    return finished.output


def assert_same(folder: Path, one: str, other: str, at: int = LAST) -> None:
    """Check that two runs have the same weights, means of them, and history, bit for bit."""
    first, second = (load_weights(folder / f"{p}_iter_{at}.caffemodel") for p in (one, other))
    for mine, theirs in zip(first, second, strict=True):
        for a, b in zip(mine.blobs, theirs.blobs, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=mine.name)
    first, second = (load_state(folder / f"{p}_iter_{at}.solverstate") for p in (one, other))
    assert first.averaged == second.averaged
    for arrays in ("history", "weights"):
        for a, b in zip(getattr(first, arrays), getattr(second, arrays), strict=True):
            np.testing.assert_array_equal(a, b)


def results(records: list[dict]) -> list[tuple]:
    """Return what records say of the net, in their order."""
    return [
        (record["kind"], record["iteration"], record["epoch"], record["loss"])
        for record in records
        if record["kind"] in ("train", "test")
    ]


@pytest.mark.long
def test_the_others_go_on_as_a_run_that_was_resumed_with_them(folder):
    """Also without rank 0, which logs and writes the snapshots."""
    train(folder, "fewer", 2, "", "--snapshot=whole_iter_6.solverstate")
    metrics = "--metrics=lost.jsonl"
    output = train(folder, "lost", 3, "0:exchange:6", "--norespawn", metrics)
    assert [found[1:] for found in LOST.findall(output)] == [("2", "6")], output[-3000:]
    assert_same(folder, "fewer", "lost")
    records = read_records(str(folder / "lost.jsonl"))
    shown = [record["iteration"] for record in records if record["kind"] == "train"]
    assert shown == [*range(LAST + 1)]
    assert [record["ranks"] for record in records if record["kind"] == "start"] == [3, 2]


def test_a_new_rank_takes_the_place_of_a_lost_one(folder):
    output = train(folder, "healed", 3, "1:agreement:7", "--metrics=healed.jsonl")
    assert [found[1:] for found in LOST.findall(output)] == [("3", "7")], output[-3000:]
    assert_same(folder, "whole", "healed")
    whole, healed = (read_records(str(folder / f"{run}.jsonl")) for run in ("whole", "healed"))
    assert results(healed) == results(whole)
    assert [r["iteration"] for r in healed if r["kind"] == "start"] == [0, 7]


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "iteration"),
    [
        ("0:late:6 1:forward:7", 7),
        ("2:late:6 1:forward:7", 7),
        ("0:late:6 1:forward:7 2:recovery:7", 6),
    ],
    ids=["first", "last", "only"],
)
def test_ranks_without_the_last_update_get_it_from_others(folder, faults, iteration):
    """If the only rank that has made it is lost, too, they go on without."""
    output = train(folder, "healed", 3, faults, solver=QUIET)
    assert [int(found[2]) for found in LOST.findall(output)] == [iteration], output[-3000:]
    assert_same(folder, "whole", "healed")


def test_ranks_join_and_leave_when_the_hostfile_changes(folder):
    """No iteration is lost or made twice."""
    hosts = folder / "hosts"
    hosts.write_text("localhost slots=1\n")
    with EndlessJob(folder, "hosts", 1) as job:
        for ranks in (2, 1):
            hosts.write_text(f"localhost slots={ranks}\n")
            job.read_until(rf"hosts have changed: {ranks} rank\(s\) go on")
            job.read_until("Iteration .* loss")
        output = job.stop()
    made = [int(number) for number in re.findall(r"Iteration (\d+) \(", output)]
    assert made == [*range(made[-1] + 1)]
    assert output.count("Starting Optimization") == 1
    assert "NBC_Progress" not in output and not LOST.search(output)


class EndlessJob:
    """Training on the hosts of the file ``name``, while entered, for as long as it takes."""

    def __init__(self, folder: Path, name: str, ranks: int, **variables: str):
        solver = SOLVER.replace("max_iter: 12", "max_iter: 1000000").replace("snapshot: 6", "")
        solver = solver.replace("test_interval: 4", "test_interval: 1000000")
        (folder / f"{name}.solver").write_text(solver % name)
        launch = ["launch", "-n", ranks, "--elastic", f"--hostfile={name}"]
        words = ["-m", "pycaffe_dist", *launch, "train", f"--solver={name}.solver"]
        self._job = Job([sys.executable, *words], folder, **variables)
        self._lines: list[str] = []

    def __enter__(self) -> EndlessJob:
        self.read_until("Iteration 20 ")
        return self

    def __exit__(self, *details: object) -> None:
        for _ in range(2):  # the second one ends the job at once
            self._job.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        self._job.process.wait(60)

    def read_until(self, sign: str) -> None:
        """Wait for a line of the output that matches ``sign``."""
        while not re.search(sign, self._lines[-1] if self._lines else ""):
            self._lines.append(self._job.process.stdout.readline())
            assert self._lines[-1], "".join(self._lines)[-3000:]

    def stop(self) -> str:
        """End the training; return its output."""
        self._job.process.send_signal(signal.SIGINT)
        self._lines.extend(self._job.process.stdout)
        output = "".join(self._lines)
        assert self._job.finish().status == 0, output[-3000:]
        return output


@pytest.mark.long
@pytest.mark.parametrize("ranks", ["0:{0}:{1}", "1:{0}:{1} 2:{0}:{1}"], ids=["first", "others"])
@pytest.mark.parametrize("exchange", ["allreduce", "sufficient_factor", "naive"])
@pytest.mark.parametrize(
    "phase", ["plan", "forward", "backward", "exchange", "agreement", "update", "test", "snapshot"]
)
def test_it_does_not_matter_when_or_who(folder, phase, exchange, ranks):
    at = {"plan": 0, "snapshot": 6}.get(phase, 7)
    use = f"--exchange={exchange}"
    if not (folder / f"{exchange}_iter_12.caffemodel").exists():
        train(folder, exchange, 3, "", use)
    output = train(folder, "healed", 3, ranks.format(phase, at), use)
    assert LOST.search(output), output[-3000:]
    assert_same(folder, exchange, "healed")


@pytest.mark.long
def test_ranks_may_be_lost_one_after_another(folder):
    output = train(folder, "healed", 3, "1:forward:3 0:backward:5 2:exchange:9")
    assert len(LOST.findall(output)) == 3, output[-3000:]
    assert_same(folder, "whole", "healed")


@pytest.fixture(scope="module")
def changing(folder) -> Path:
    """Return the folder with runs of 2, then 4, then 2 ranks, each resumed from the one before."""
    train(folder, "two", 2, solver=CHANGING)
    train(folder, "four", 4, "", "--snapshot=two_iter_4.solverstate", solver=CHANGING)
    train(folder, "again", 2, "", "--snapshot=four_iter_8.solverstate", solver=CHANGING)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("faults", "asked"), [("", 8), ("1:recovery:8", 8), ("0:agreement:6", 7)])
def test_ranks_join_and_leave_as_in_runs_that_were_resumed(changing, faults, asked):
    """Also if one dies meanwhile; mpirun's status may be that of ranks that have left.

    Rank 0 has been asked when it dies: the others then agree on the request an iteration later.
    """
    job = f"{secrets.token_hex(8)}.0"
    changes = {"CHANGES": f"4:4 2:{asked}", "PCAFFE_JOB": job}
    try:
        output = train(changing, "changed", 2, faults, status=None, solver=CHANGING, **changes)
    finally:
        RequestFile(job).remove()
    assert CHANGED.findall(output) == [("4", "4"), ("2", "8")], output[-3000:]
    assert bool(LOST.search(output)) == faults.startswith("0"), output[-3000:]
    assert_same(changing, "four", "changed", at=8)
    assert_same(changing, "again", "changed")


@pytest.mark.long
def test_a_rank_may_be_lost_while_others_recover(folder):
    output = train(folder, "healed", 3, "1:backward:5 2:recovery:5")
    assert LOST.search(output), output[-3000:]
    assert_same(folder, "whole", "healed")


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_end_although_one_dies_in_mpi_finalize(folder, rank):
    started = time.monotonic()
    train(folder, "left", 3, f"{rank}:leaving:11")
    assert time.monotonic() - started < 60
    assert_same(folder, "whole", "left")


@pytest.mark.long
def test_a_rank_that_is_stopped_for_a_while_is_not_lost(folder):
    output = train(folder, "stopped", 3, "1:pause:5", "--stall_timeout=2")
    assert not LOST.search(output) and "has waited" in output, output[-3000:]
    assert_same(folder, "whole", "stopped")


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.1, 0.5])
def test_a_new_rank_may_die_while_it_starts(folder, seconds):
    """The first rank, which waits for it, ends itself; the last one starts two others."""
    (folder / "healed.solver").write_text(SOLVER % "healed")
    under = [find_mpirun(), *fault_tolerance(60), "-n", 3, sys.executable, PROGRAM]
    words = ["train", "--solver=healed.solver", "--elastic", "--exchange=allreduce"]
    job = Job([*under, *words], folder, FAULTS="1:backward:5", PCAFFE_TEST="starts")
    while not ranks_of("starts"):
        assert job.process.poll() is None
        time.sleep(0.05)
    time.sleep(seconds)
    kill_one("starts", np.random.default_rng(0))
    finished = job.finish()
    # mpirun's status may be that of the rank that did not start.
    assert LOST.search(finished.output), finished.output[-3000:]
    assert_same(folder, "whole", "healed")


@pytest.mark.long
def test_with_too_few_ranks_it_writes_a_snapshot_and_ends(folder):
    train(folder, "few", 3, "2:backward:6", "--norespawn", "--elastic=3", status=1)
    assert_same(folder, "whole", "few", at=6)


@pytest.mark.long
def test_an_error_of_one_rank_ends_that_rank(folder):
    output = train(folder, "healed", 3, "1:error:5")
    assert "rank 1 of 3" in output and "OSError: a broken disk" in output
    assert_same(folder, "whole", "healed")


def test_an_exchange_that_needs_all_ranks_is_refused(folder):
    output = train(folder, "x", 2, "", "--exchange=one_sided", status=2)
    assert "--elastic does not work with --exchange=one_sided" in output


def test_a_mpi_without_fault_tolerance_is_named(folder):
    (folder / "x.solver").write_text(SOLVER % "x")
    words = ["-m", "pycaffe_dist", "train", "--solver=x.solver", "--elastic"]
    finished = Job([sys.executable, *words], folder, ranks=2).finish()
    assert finished.status and "pcaffe launch --elastic" in finished.output
    assert not list(folder.glob("x_iter*"))


@pytest.mark.long
def test_training_under_constant_losses_ends_with_the_same_weights(folder):
    """Ranks chosen at random are killed, one after another."""
    solver = SOLVER.replace("max_iter: 12", "max_iter: 600").replace("display: 1 ", "display: 50 ")
    solver = solver.replace("test_interval: 4", "test_interval: 200")
    outputs = {}
    for prefix, losses in (("quiet", 0), ("losses", 5)):
        (folder / f"{prefix}.solver").write_text(solver % prefix)
        words = ["train", f"--solver={prefix}.solver", "--exchange=allreduce"]
        launch = ["-m", "pycaffe_dist", "launch", "-n", 3, "--elastic", *words]
        job = Job([sys.executable, *launch], folder, PCAFFE_TEST=prefix)
        rng = np.random.default_rng(5)
        read: list[str] = []
        for loss in range(losses):
            # Losses without an iteration between them end a run, and so do those in its start.
            for sign in ("lost: 3 rank" if loss else "Starting Optimization", r"Iteration \d+ \("):
                for line in iter(job.process.stdout.readline, ""):
                    read.append(line)
                    if re.search(sign, line):
                        break
            kill_one(prefix, rng)
        outputs[prefix] = "".join(read) + job.finish().output
    assert len(LOST.findall(outputs["losses"])) == losses, outputs["losses"][-3000:]
    assert_same(folder, "quiet", "losses", at=600)


def kill_one(mark: str, rng: np.random.Generator) -> None:
    """Kill one of a job's ranks, chosen at random."""
    if ranks := ranks_of(mark):
        os.kill(int(rng.choice(ranks)), signal.SIGKILL)


def ranks_of(mark: str) -> list[int]:
    """Return a job's processes that run pcaffe itself; ``mark`` is in their environment."""
    ranks = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            marked = f"PCAFFE_TEST={mark}".encode() in (process / "environ").read_bytes()
            if marked and words[1:4] == [b"-m", b"pycaffe_dist", b"train"]:
                ranks.append(int(process.name))
    return ranks
