from __future__ import annotations

import pytest

from pycaffe_dist.cli import launch
from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.errors import ClusterError, UsageError
from pycaffe_dist.launch import environment, mpirun


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
        (("-n", "2", "--failure_timeout=4", "train"), "--failure_timeout is at least 5"),
        (("-n", "2", "--mpirun_flags=--output file=log", "test"), "has '--output file=log', which"),
        (("-n", "2", "--mpirun_flags=-n 1 -outfile-pattern=x", "test"), "has '-outfile-pattern=x'"),
    ],
)
def test_errors(args, message):
    with pytest.raises(UsageError, match=message):
        launch.run(parse(*args))


@pytest.mark.parametrize(
    "given, wanted",
    [
        ([], "latest@launch"),
        (["--snapshot=a_iter_5.solverstate"], "latest@launch,a_iter_5.solverstate"),
        (["-snapshot", "a"], "latest@launch,a"),
        (["--snapshot=latest", "--weights=w"], "latest"),
        (["--snapshot=latest,a"], "latest,a"),
    ],
)
def test_a_restart_prefers_the_runs_own_snapshots(given, wanted):
    resumed = launch._resumed(parse("-n", "2", "train", "--solver=s", *given))
    assert resumed == ["train", "--solver=s", *given, f"--snapshot={wanted}"]


@pytest.mark.parametrize(
    "version, between",
    [
        (
            "mpirun (Open MPI) 5",
            ["--hostfile", "HOSTS", "-x", "GLOG_v", "-x", "PCAFFE_JOB", "-x", "PCAFFE_SIMD"],
        ),
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
    variables = {"PCAFFE_SIMD": "avx2", "HOME": "/", "GLOG_v": ""}
    monkeypatch.setattr(environment.os, "environ", variables)
    line = mpirun.command(3, str(hosts), ["--bind-to", "none"], ["train", "--solver=s"])
    assert line[:3] == [str(program), "-n", "3"]
    assert line[3:-7] == [str(hosts) if word == "HOSTS" else word for word in between]
    assert line[-7:-5] == ["--bind-to", "none"]
    assert line[-4:] == ["-m", "pycaffe_dist", "train", "--solver=s"]


@pytest.mark.parametrize("shown", ["mpirun (Open MPI) 4.1.6", "HYDRA build details:"])
def test_elastic_jobs_need_open_mpi_5(monkeypatch, tmp_path, shown):
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{shown}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpirun, "find", lambda: str(program))
    with pytest.raises(ClusterError, match=r"Open MPI 5 or newer.*--restarts works with any"):
        mpirun.fault_tolerance(15)


def test_a_host_is_lost_after_the_failure_timeout(monkeypatch, tmp_path):
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpirun, "find", lambda: str(program))
    flags = mpirun.fault_tolerance(22)
    first, between, number = (
        int(flags[flags.index(f"oob_tcp_keepalive_{name}") + 1])
        for name in ("time", "intvl", "probes")
    )
    assert first + between * number == 22


def test_without_mpirun_the_error_says_where_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no mpirun: pip install"):
        mpirun.find()
