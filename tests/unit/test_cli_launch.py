from __future__ import annotations

import os
import signal
import subprocess

import pytest

from pycaffe_dist.cli import launch
from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.errors import WRONG_INPUT, ClusterError, UsageError
from pycaffe_dist.runtime import job, mpirun


def parse(*args: str):
    parser = FlagParser("pcaffe launch")
    launch.add_flags(parser)
    return parser.parse(args)


def test_flags_after_the_command_are_the_commands_own():
    options = parse("-n", "4", "-hostfile=h", "train", "-solver", "s", "--", "-n", "--what")
    assert (options.n, options.hostfile) == (4, "h")
    assert options.command == ["train", "-solver", "s", "--", "-n", "--what"]


@pytest.mark.parametrize(
    "args, message",
    [
        (("train",), "need the number of ranks to launch: -n N"),
        (("-n", "2"), "need a command to launch"),
        (("-n", "2", "--restarts=1", "test"), "only train can be restarted"),
        (("-n", "2", "--restarts=-1", "train"), "restarts needs 0 or more"),
    ],
)
def test_errors(args, message):
    with pytest.raises(UsageError, match=message):
        launch.run(parse(*args))


@pytest.mark.parametrize(
    "given, wanted",
    [
        ([], "latest@1700000000"),
        (["--snapshot=a_iter_5.solverstate"], "latest@1700000000,a_iter_5.solverstate"),
        (["-snapshot", "a"], "latest@1700000000,a"),
        (["--snapshot=latest", "--weights=w"], "latest"),
        (["--snapshot=latest,a"], "latest,a"),
    ],
)
def test_a_restart_prefers_the_runs_own_snapshots(given, wanted):
    resumed = launch._resumed(parse("-n", "2", "train", "--solver=s", *given), 1.7e9)
    assert resumed == ["train", "--solver=s", *given, f"--snapshot={wanted}"]


@pytest.mark.parametrize(
    "version, between",
    [
        ("mpirun (Open MPI) 5", ["--hostfile", "HOSTS", "-x", "GLOG_v", "-x", "PCAFFE_TRACEBACK"]),
        ("HYDRA build details:", ["-hosts", "a:2,b:1"]),
    ],
)
def test_the_command_line_for_mpirun(monkeypatch, tmp_path, version, between):
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=1\n")
    monkeypatch.setattr(mpirun, "find", lambda: str(program))
    monkeypatch.setattr(mpirun.os, "environ", {"PCAFFE_TRACEBACK": "1", "HOME": "/", "GLOG_v": ""})
    line = mpirun.command(3, str(hosts), ["--bind-to", "none"], ["train", "--solver=s"])
    assert line[:3] == [str(program), "-n", "3"]
    assert line[3:-7] == [str(hosts) if word == "HOSTS" else word for word in between]
    assert line[-7:-5] == ["--bind-to", "none"]
    assert line[-4:] == ["-m", "pycaffe_dist", "train", "--solver=s"]


def test_without_mpirun_the_error_says_where_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no mpirun: pip install"):
        mpirun.find()


def program_that(tmp_path, does: str) -> list[str]:
    """Return a command line that stands for mpirun's."""
    program = tmp_path / "mpirun"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{does}\n')
    program.chmod(0o755)
    return [str(program)]


def never() -> list[str]:
    raise AssertionError("the job was started again")


@pytest.mark.parametrize("asked", ["INT", "TERM", "USR1", "HUP"])
def test_a_signal_before_the_ranks_listen_is_no_failure(tmp_path, caplog, asked):
    line = program_that(tmp_path, f"kill -{asked} $PPID\nexec sleep 20")
    assert job.run(line, 1, never) == 130
    assert "ended the job before its ranks had begun" in caplog.text


def test_wrong_input_is_not_tried_again(tmp_path):
    line = program_that(tmp_path, f"exit {WRONG_INPUT}")
    with pytest.raises(UsageError, match="it would fail again, so it is not restarted"):
        job.run(line, 3, never)


def test_another_failure_is(tmp_path):
    line = program_that(tmp_path, "exit 1")
    assert job.run(line, 3, lambda: program_that(tmp_path, "exit 0")) == 0


def test_a_rank_that_a_signal_ends_of_itself_is_a_failure(tmp_path):
    line = program_that(tmp_path, "kill -USR1 $$")
    with pytest.raises(ClusterError, match="mpirun ended with status -10"):
        job.run(line, 0, never)


def test_a_signal_while_mpirun_is_being_started_reaches_it(tmp_path, monkeypatch):
    start = subprocess.Popen

    def interrupted(line, **settings):
        if "start_new_session" in settings:
            os.kill(os.getpid(), signal.SIGINT)
        return start(line, **settings)

    monkeypatch.setattr(job.subprocess, "Popen", interrupted)
    assert job.run(program_that(tmp_path, "exec sleep 20"), 1, never) == 130


def test_zero_bytes_of_mpirun_do_not_reach_the_output(tmp_path, capfd):
    assert job.run(program_that(tmp_path, r"printf 'told\n\0' >&2"), 0, never) == 0
    assert capfd.readouterr().err == "told\n"
