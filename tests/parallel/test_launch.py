"""``pcaffe launch``: signals reach the ranks, dead ranks are named, and training goes on."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from running import TIMEOUT_SECONDS, Job

from pycaffe_dist.errors import WRONG_INPUT, ClusterError
from pycaffe_dist.launch import failure, mpirun
from pycaffe_dist.launch.hostfile import read_hostfile
from pycaffe_dist.snapshot import catalog

pytestmark = pytest.mark.slow

SOLVER = """
net_param {
  layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
    dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 }
    data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
  layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
    inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
  layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }
}
base_lr: 0.001 lr_policy: 'fixed' max_iter: %d display: 100 solver_mode: CPU
snapshot: %d snapshot_prefix: 'run' %s
"""
FOR_EVER = 100_000_000


class Running(Job):
    """A ``pcaffe launch`` whose output is read as it comes."""

    def __init__(self, command: list[str], folder: Path):
        # The launcher is to bring these itself.
        left_out = {} if command[0] == "mpirun" else dict.fromkeys(mpirun.ENVIRONMENT)
        # A shell gives its background jobs an ignored SIGINT, which tests may have inherited.
        super().__init__(["env", "--default-signal=INT", *command], folder, **left_out)
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read until a line has the pattern."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no {pattern} in: {self.output[-4000:]}")

    def end(self) -> int:
        """Read the rest; return the exit status."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(TIMEOUT_SECONDS)


@pytest.fixture
def launch(tmp_path) -> Iterator[Callable[..., Running]]:
    """Return a function that launches a solver's training, endless or of some iterations."""
    started = []

    def start(
        ranks: int, *flags: str, snapshot: int = 0, iterations: int = FOR_EVER, fields: str = "",
        launcher: tuple[str, ...] = (),
    ) -> Running:  # fmt: skip
        (tmp_path / "solver.prototxt").write_text(SOLVER % (iterations, snapshot, fields))
        train = ["train", "--solver=solver.prototxt", *flags]
        command = ["pcaffe", "launch", "-n", str(ranks), *launcher, *train]
        if launcher == ("mpirun",):
            command = ["mpirun", "-n", str(ranks), "pcaffe", *train]
        started.append(Running(command, tmp_path))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            for _ in range(2):
                running.process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            running.process.wait(20)


def snapshots(folder: Path) -> list[int]:
    return sorted(snapshot.iteration for snapshot in catalog.snapshots(f"{folder}/run"))


def test_ctrl_c_stops_all_ranks_with_one_snapshot(launch, tmp_path):
    running = launch(3)
    running.read_until("Iteration 100 ")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0, running.output
    assert "Optimization stopped early." in running.output
    (iteration,) = snapshots(tmp_path)
    assert iteration > 100
    catalog.check(catalog.place(f"{tmp_path}/run", iteration, hdf5=False))


def test_ctrl_c_leaves_servers_to_the_ranks_that_train(launch, tmp_path):
    running = launch(2, "--exchange=parameter_server", "--server_ranks=1")
    running.read_until("Iteration 100 ")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0, running.output
    assert len(snapshots(tmp_path)) == 1


def test_sighup_snapshots_and_sigterm_snapshots_and_stops(launch, tmp_path):
    running = launch(2, "--sigint_effect=none", fields="snapshot_after_train: false")
    running.read_until("Iteration 100 ")
    running.process.send_signal(signal.SIGHUP)
    running.read_until("Snapshotting solver state")
    running.read_until("Iteration ")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0, running.output
    assert "Optimization stopped early." in running.output
    assert len(snapshots(tmp_path)) == 2


@pytest.mark.long
def test_plain_mpirun_passes_the_two_user_signals_on(launch, tmp_path):
    running = launch(2, launcher=("mpirun",))
    running.read_until("Iteration 100 ")
    running.process.send_signal(signal.SIGUSR2)
    running.read_until("Snapshotting solver state")
    running.process.send_signal(signal.SIGUSR1)
    assert running.end() == 0, running.output
    assert "Optimization stopped early." in running.output
    assert len(snapshots(tmp_path)) == 2


def test_a_second_ctrl_c_ends_the_job_at_once(launch, tmp_path):
    running = launch(2, "--sigint_effect=none")
    running.read_until("Iteration 100 ")
    for _ in range(2):
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert running.end() == 130, running.output
    # mpirun tells its ranks: one may have had time for a snapshot.
    for iteration in snapshots(tmp_path):
        catalog.check(catalog.place(f"{tmp_path}/run", iteration, hdf5=False))


def child_of_rank(rank: int, launcher: int) -> int:
    """Return a rank's process, a child of mpirun, which is a child of the launcher."""
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = status.read_bytes().split(b"\0")
        except OSError:
            continue
        process = int(status.parent.name)
        if b"OMPI_COMM_WORLD_RANK=%d" % rank in environment and launcher in ancestors(process):
            return process
    raise AssertionError(f"there is no rank {rank}")


def descendants(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if process in ancestors(int(status.parent.name)):
                found.append(int(status.parent.name))
    return found


def program(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
    return ""


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
def test_a_killed_rank_is_named_and_training_goes_on_from_the_latest_snapshot(launch, tmp_path):
    running = launch(2, "--keep=2", launcher=("--restarts=1",), snapshot=50)
    running.read_until("Iteration 200 ")
    victim = child_of_rank(1, running.process.pid)
    os.kill(victim, signal.SIGKILL)
    running.read_until(
        rf"The job failed: rank 1 \(process {victim} on \S+\) was ended by signal 9 \(Killed\); "
        "restart 1 of 1"
    )
    iteration = int(running.read_until(r"Resuming exactly where iteration (\d+) ended")[1])
    assert iteration >= 150
    running.read_until(r"Iteration \d+ \(")
    os.kill(child_of_rank(0, running.process.pid), signal.SIGKILL)
    assert running.end() == 1
    assert re.search(r"the job failed: rank 0 \(process \d+ on ", running.output)
    assert len(snapshots(tmp_path)) in (2, 3)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
@pytest.mark.skipif(len(socket.if_nameindex()) < 2, reason="mpirun's processes need a network")
def test_a_lost_host_is_a_failure_and_training_goes_on(launch, tmp_path):
    # A host for which mpirun's ssh starts processes on this host instead.
    agent = tmp_path / "ssh"
    agent.write_text(
        '#!/bin/sh\nuntil [ "$1" = elsewhere ]; do shift; done\nshift\nexec sh -c "$*"\n'
    )
    agent.chmod(0o755)
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=1\nelsewhere slots=1\n")
    hosts = "--hostfile=hosts", f"--mpirun_flags=--prtemca plm_ssh_agent {agent}"
    running = launch(2, launcher=("--restarts=1", *hosts), snapshot=50)
    running.read_until("Iteration 100 ")
    for process in descendants(running.process.pid):
        # It runs in its own session, and its parent holds the ssh connection.
        if program(process).endswith("/prted") and os.getsid(process) == process:
            os.kill(process, signal.SIGKILL)
    running.read_until(r"The job failed: host \S+ does not answer any more.*; restart 1 of 1")
    running.read_until(r"Resuming exactly where iteration \d+ ended")
    running.read_until(r"Iteration \d+ \(")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0, running.output


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
def test_a_job_that_stalls_is_ended_and_goes_on(launch):
    running = launch(2, "--stall_shutdown=1", launcher=("--restarts=1",), snapshot=50)
    running.read_until("Iteration 200 ")
    os.kill(child_of_rank(1, running.process.pid), signal.SIGSTOP)
    running.read_until(r"rank 0 of 2 on \S+: .* has waited 1 s for .*: the run ends, as --stall_sh")
    running.read_until(
        r"The job failed: rank 0 on \S+ gave up; see its error message; restart 1 of 1"
    )
    running.read_until(r"Resuming exactly where iteration \d+ ended")
    running.read_until(r"Iteration \d+ \(")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0, running.output


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
def test_a_prefix_in_use_is_refused_and_a_restart_gets_its_own_again(launch):
    first = launch(1, "--keep=2", launcher=("--restarts=1",), snapshot=50)
    first.read_until("Iteration 200 ")
    owner = child_of_rank(0, first.process.pid)
    second = launch(1, launcher=("--restarts=2",), snapshot=50)
    assert second.end() == WRONG_INPUT
    assert f"the snapshot prefix 'run' is in use by process {owner} on " in second.output
    assert "Initializing" not in second.output and "restart 1 of 2" not in second.output
    os.kill(owner, signal.SIGKILL)
    first.read_until("restart 1 of 1")
    first.read_until(r"Resuming exactly where iteration \d+ ended")
    first.read_until(r"Iteration \d+ \(")
    assert "in use" not in first.output


def test_there_is_no_restart_after_wrong_input(launch):
    for wrong in ("--exchange=nope", "--solver=none"):
        running = launch(2, wrong, launcher=("--restarts=2",))
        assert running.end() == 2, running.output
        assert "it would fail again, so it is not restarted" in running.output
        assert not re.search("restart [12] of 2", running.output)


@pytest.mark.long
def test_a_run_to_the_end_has_status_0(launch, tmp_path):
    running = launch(2, iterations=20)
    assert running.end() == 0, running.output
    assert snapshots(tmp_path) == [20]


@pytest.mark.parametrize(
    "output, told",
    [
        (
            "prterun noticed that process rank 1 with PID 73 on node a-1 exited on\n"
            "signal 9 (Killed).\n",
            "rank 1 (process 73 on a-1) was ended by signal 9 (Killed)",
        ),
        (
            "   Process name: [prterun-vm-7368@1,2]\n   Exit code:    7\n",
            "rank 2 ended with status 7",
        ),
        (
            "prterun has exited due to process rank 0 with PID 0 on node vm calling\n"
            '"abort". This may have caused other processes',
            "rank 0 on vm gave up; see its error message",
        ),
        (
            "A daemon failed to report back after being spawned. This could\nbe due to\n\n"
            "  Local host:    vm\n  Remote host:   node7\n  Daemon exit status: 255\n",
            "no rank could be started on host node7: is it up, does ssh reach it without a "
            "password, is mpirun there at the same path, and does no firewall keep it from "
            "answering?",
        ),
        (
            "=   PID 17994 RUNNING AT vm\n=   EXIT CODE: 9\n=   CLEANING UP\n===\n"
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n",
            "process 17994 on vm was ended by signal 9 (Killed)",
        ),
        (
            "=   PID 73 RUNNING AT node-2.cluster\n=   EXIT CODE: 1\n=   CLEANING UP\n",
            "process 73 on node-2.cluster ended with status 1",
        ),
        (
            "PRTE has lost communication with a remote daemon.\n\n"
            "  HNP daemon   : [prterun-h1-106@0,0] on node h1\n"
            "  Remote daemon: [prterun-h1-106@0,2] on node h3.cluster\n\nThis is usually",
            "host h3.cluster does not answer any more, or mpirun's process there has ended",
        ),
        ("something else", ""),
    ],
)
def test_messages_of_mpirun(output, told):
    assert failure.find_cause(output) == told


ABORT = """prterun has exited due to process rank 0 with PID 0 on node h1 calling
"abort". This may have caused other processes in the application to be"""
BROKEN = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or ...

  Local host: %s
  Local PID:  17215
  Peer host:  %s
"""
HOSTS = ["h1", "h2.cluster", "h3.cluster", "h3.cluster"]


def test_mpirun_takes_the_end_of_its_process_on_a_host_for_a_failed_start():
    said = "A daemon failed to report back after being spawned.\n  Remote host:   h3\n"
    told = "host h3 does not answer any more, or mpirun's process there has ended"
    assert failure.find_cause(said, [], HOSTS) == told


@pytest.mark.parametrize(
    "broken, hosts, suspects",
    [
        ([("h1", "h2")], HOSTS, "rank 1 on h2"),
        ([("h1", "h3")], HOSTS, "ranks 2 or 3 on h3"),
        ([("h1", "h2")], [], "a rank on h2"),
        # A rank that sees another one die dies, too, and so do others.
        ([("h1", "h2"), ("h2.cluster", "h3")], HOSTS, "ranks 2 or 3 on h3"),
        ([("h1", "h2"), ("h2", "h1")], HOSTS, "rank 1 on h2 or rank 0 on h1"),
    ],
)
def test_a_rank_that_mpi_kills_is_not_named_as_the_cause(broken, hosts, suspects):
    output = "".join(BROKEN % pair for pair in broken) + ABORT
    told = f"rank 0 on h1 lost its connection to {suspects}, which had probably died before"
    assert failure.find_cause(output, [], hosts) == told
    reason = "rank 2 on h3 gave up; see its error message"
    assert failure.find_cause(output, ["rank 2 on h3", "rank 0 on h1"], hosts) == reason


@pytest.mark.parametrize(
    "lines, message",
    [
        ("a slots=1\nb slots=1\n", "has slots for 2 ranks, but 3 are to be launched"),
        ("a slots=2\nb slots=two  # a word\n", r"hosts:2: slots of b is .*, not 'two'"),
        ("a slots=0\n", r"hosts:1: slots of a is .*, not '0'"),
        ("# nobody\n\n", "names no host"),
    ],
)
def test_wrong_hostfiles(tmp_path, lines, message):
    (tmp_path / "hosts").write_text(lines)
    with pytest.raises(ClusterError, match=message):
        read_hostfile(str(tmp_path / "hosts"), 3)


def test_valid_hostfiles(tmp_path):
    for lines, hosts in (
        ("a slots=2\nb slots=1\n", [("a", 2), ("b", 1)]),
        ("a\n", [("a", None)]),
        ("a max-slots=9 slots=3 # three\n\nb\n", [("a", 3), ("b", None)]),
    ):
        (tmp_path / "hosts").write_text(lines)
        assert read_hostfile(str(tmp_path / "hosts"), 3) == hosts
    with pytest.raises(ClusterError, match=r"the hostfile .* cannot be read: No such file"):
        read_hostfile(str(tmp_path / "missing"), 3)
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match=r"the hostfile .* is a binary file, expected a text"):
        read_hostfile(str(tmp_path / "hosts"), 3)
