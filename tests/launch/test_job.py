"""Jobs of ``pcaffe launch`` with a script in place of mpirun: how they end and restart."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import pytest

from pycaffe_dist import log
from pycaffe_dist.cli import main as cli
from pycaffe_dist.errors import WRONG_INPUT, ClusterError, UsageError
from pycaffe_dist.launch import environment, job, processes
from pycaffe_dist.launch.hostfile import Hosts
from pycaffe_dist.launch.messages import DONE, VARIABLE, MessageFilter
from pycaffe_dist.launch.resizing import decode

_BEGIN = rf"\002{VARIABLE} $PCAFFE_JOB"
IS_DONE = rf'printf "{_BEGIN} done \003\n" >&2'
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux")


def program_that(tmp_path, does: str) -> list[str]:
    """Return a command line in place of mpirun's."""
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


def test_there_is_no_restart_after_wrong_input(tmp_path):
    line = program_that(tmp_path, f"exit {WRONG_INPUT}")
    with pytest.raises(UsageError, match="it would fail again, so it is not restarted"):
        job.run(line, 3, never)


def test_there_is_a_restart_after_another_failure(tmp_path):
    line = program_that(tmp_path, "exit 1")
    assert job.run(line, 3, lambda: program_that(tmp_path, IS_DONE)) == 0


def test_status_0_is_success_only_when_rank_0_has_done_its_work(tmp_path, caplog):
    lost = r"""printf 'PRTE has lost communication with a remote daemon.\n
  HNP daemon   : [prterun-a-1@0,0] on node a\n  Remote daemon: [prterun-a-1@0,2] on node c\n'"""
    line = program_that(tmp_path, f"{lost} >&2\nexit 0")
    with pytest.raises(ClusterError, match="the job failed: host c does not answer any more"):
        job.run(line, 0, never)
    assert job.run(line, 1, lambda: program_that(tmp_path, IS_DONE)) == 0
    assert "The job failed: host c does not answer any more" in caplog.text
    with pytest.raises(ClusterError, match="rank 0 has not said that it was done"):
        job.run(program_that(tmp_path, "exit 0"), 0, never)


def test_a_failure_after_rank_0s_work_is_a_failure(tmp_path):
    with pytest.raises(ClusterError, match="mpirun ended with status 3"):
        job.run(program_that(tmp_path, f"{IS_DONE}\nexit 3"), 0, never)


def test_messages_of_another_job_are_ignored(tmp_path):
    line = program_that(tmp_path, f"PCAFFE_JOB=other\n{IS_DONE}")
    with pytest.raises(ClusterError, match="rank 0 has not said that it was done"):
        job.run(line, 0, never)


@pytest.mark.parametrize(
    "arguments, rank, told", [(["help"], 0, True), (["help"], 1, False), (["nothing"], 0, False)]
)
def test_every_command_reports_success_from_rank_0(arguments, rank, told):
    environment = {**os.environ, VARIABLE: "job.0", "PMIX_RANK": str(rank)}
    command = [sys.executable, "-m", "pycaffe_dist", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    heard: list[str] = []
    MessageFilter("job.0", lambda kind, details: heard.append(kind))(done.stderr)
    assert heard == [DONE] * told, done.stderr


def test_a_rank_killed_by_a_signal_is_a_failure(tmp_path):
    line = program_that(tmp_path, "kill -USR1 $$")
    with pytest.raises(ClusterError, match="mpirun was ended by signal 10"):
        job.run(line, 0, never)


def test_a_signal_while_mpirun_is_being_started_reaches_it(tmp_path, monkeypatch):
    start = subprocess.Popen

    def interrupted(line, **settings):
        if "start_new_session" in settings:
            os.kill(os.getpid(), signal.SIGINT)
        return start(line, **settings)

    monkeypatch.setattr(job.subprocess, "Popen", interrupted)
    assert job.run(program_that(tmp_path, "exec sleep 20"), 1, never) == 130


def test_zero_bytes_and_messages_do_not_reach_the_output(tmp_path, capfd):
    line = program_that(tmp_path, rf"printf 'told\n\0' >&2; {IS_DONE}; printf 'a\002'")
    assert job.run(line, 0, never) == 0
    assert capfd.readouterr() == ("a\2", "told\n")


def test_progress_of_rank_0_is_shown_by_the_launcher(tmp_path, capfd, monkeypatch):
    shown = []
    monkeypatch.setattr(job.log, "status", shown.append)
    tells = rf'printf "{_BEGIN} progress 3/9 iterations, loss 2\003\n" >&2'
    line = program_that(tmp_path, f"{tells}; echo a line >&2; {IS_DONE}")
    assert job.run(line, 0, never) == 0
    assert shown == ["3/9 iterations, loss 2", ""]
    assert capfd.readouterr().err == "a line\n"


def test_the_progress_is_the_last_line_of_a_terminal(tmp_path, monkeypatch):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    tells = rf'printf "{_BEGIN} progress 3/9 iterations, loss 2\003\n" >&2'
    line = program_that(tmp_path, f"echo one >&2; {tells}; sleep 0.2; echo two; {IS_DONE}")
    with os.fdopen(slave, "w") as terminal:
        for stream in "stdout", "stderr":
            monkeypatch.setattr(job.sys, stream, terminal)
        log.start(stream=terminal)
        try:
            assert job.run(line, 0, never) == 0
        finally:
            log.stop()
            monkeypatch.undo()
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(master, 1 << 16):
            shown += data
    os.close(master)
    lines = shown.decode().replace("\r\r", "\r").split("\r\n")
    clear = "\r\x1b[K"
    assert [line.rpartition(clear)[2] for line in lines] == ["one", "two", ""]
    assert f"{clear}3/9 iterations, los{clear}" in lines[-1]


def test_messages_are_found_in_any_chunks():
    heard = []
    message = f"\2{VARIABLE} a.1 failed rank 1 on b\3\r\n".encode()
    text = b"one\n\2" + message + b"[1,0]<stderr>: " + message + b"two \3"
    for size in range(1, len(text)):
        take = MessageFilter("a.1", lambda *told: heard.append(told))
        shown = [take(text[at : at + size]) for at in range(0, len(text), size)]
        shown = b"".join([*shown, take.rest()])
        assert shown.replace(b"[1,0]<stderr>: ", b"") == b"one\n\2two \3"
        assert heard == [("failed", "rank 1 on b")] * 2
        heard.clear()


def test_lines_of_open_mpi_about_a_loss_are_dropped_in_any_chunks():
    noise = b"NBC_Progress: an error 75 was found during schedule 0x1 - aborting it\r\n\r\n"
    text = b"one\n" + noise + b"NBC_ is mine\n\n" + noise + noise.replace(b"\r", b"") + b"two\nN"
    for size in range(1, len(text)):
        for is_elastic, expected in ((True, b"one\nNBC_ is mine\n\ntwo\nN"), (False, text)):
            take = MessageFilter("a.1", lambda *told: None, is_elastic)
            shown = [take(text[at : at + size]) for at in range(0, len(text), size)]
            assert b"".join([*shown, take.rest()]) == expected


def test_mpirun_that_does_not_end_after_a_rank_has_given_up_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.1)
    monkeypatch.setattr(job, "_SECONDS_TO_END", 0.2)
    gives_up = rf'printf "{_BEGIN} failed rank 2 on c\003\n" >&2'
    line = program_that(tmp_path, f"trap '' TERM\n{gives_up}\nwhile :; do sleep 0.1; done")
    with pytest.raises(ClusterError, match="rank 2 on c gave up; see its error message"):
        job.run(line, 0, never)


def closed_pipe():
    """Return a stream without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_job_without_a_reader_of_its_output_goes_on(tmp_path, monkeypatch, caplog, stream):
    number = {"stdout": 1, "stderr": 2}[stream]
    prints = f"for i in $(seq 4000); do echo a line that is not short $i >&{number}; done"
    line = program_that(tmp_path, f"{prints}\ntouch {tmp_path}/end\n{IS_DONE}")
    with closed_pipe() as nobody:
        monkeypatch.setattr(job.sys, stream, nobody)
        assert job.run(line, 0, never) == 0
        monkeypatch.undo()
    assert (tmp_path / "end").exists()
    name = {"stdout": "standard output", "stderr": "standard error"}[stream]
    assert caplog.text.count(f"cannot write to {name} (Broken pipe): lines are dropped") == 1


def test_a_closed_stream_does_no_harm(tmp_path, monkeypatch):
    line = program_that(tmp_path, f"echo a; {IS_DONE}")
    for stream in "stdout", "stderr":
        monkeypatch.setattr(job.sys, stream, None)
    assert job.run(line, 0, never) == 0


def is_running(pid_file: Path) -> bool:
    try:
        stat = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@needs_proc
def test_a_restart_waits_for_the_end_of_the_old_ranks(tmp_path):
    lives_on = f'trap "" TERM; echo $$ >{tmp_path}/pid; for i in $(seq 20); do sleep 1; done'
    rank = f"""setsid sh -c '{lives_on}' &
    until [ -s {tmp_path}/pid ]; do sleep 0.02; done
    kill -9 $$"""

    def again() -> list[str]:
        assert not is_running(tmp_path / "pid")
        return program_that(tmp_path, IS_DONE)

    assert job.run(program_that(tmp_path, rank), 1, again) == 0
    assert (tmp_path / "pid").exists()


@needs_proc
def test_a_rank_of_a_restart_ends_old_processes_on_its_host(monkeypatch):
    command = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"]
    started = {
        name: subprocess.Popen(command, env={VARIABLE: name}, stdout=subprocess.PIPE)
        for name in ("a.0", "a.1", "a.2", "b.0")
    }
    try:
        for process in started.values():
            process.stdout.readline()
        monkeypatch.setenv(VARIABLE, "a.2")
        assert cli.main(["help"]) == 0
        assert [name for name, process in started.items() if process.poll() is None] == [
            "a.2",
            "b.0",
        ]
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


@needs_proc
def test_a_process_that_does_not_end_is_reported(monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_TO_END", 0.1)
    monkeypatch.setattr(processes, "_processes_of", lambda jobs: [12345678])
    began = time.monotonic()
    with pytest.raises(ClusterError, match="process 12345678 of the last attempt does not end"):
        processes.end({"a.0"})
    assert time.monotonic() - began < 5


ARE_ON = rf'printf "{_BEGIN} hosts node1 node1 node2 \003\n" >&2'
LOSES = """
echo 'PRTE has lost communication with a remote daemon.' >&2
echo '  HNP daemon   : [prterun-node1-1@0,0] on node node1' >&2
echo '  Remote daemon: [prterun-node1-1@0,1] on node node2' >&2
"""


def hosts_of(tmp_path: Path, least: int) -> Hosts:
    file = tmp_path / "hosts"
    file.write_text("node1 slots=2\nnode2 slots=1\n")
    return Hosts(str(file), 3, least)


@needs_proc
def test_an_elastic_job_goes_on_without_a_lost_host(tmp_path, caplog):
    hosts = hosts_of(tmp_path, 2)
    line = [*program_that(tmp_path, f"{ARE_ON}\n{LOSES}"), "--elastic=2"]

    def again() -> list[str]:
        assert (hosts.ranks, Path(hosts.path).read_text()) == (2, "node1 slots=2\n")
        return program_that(tmp_path, IS_DONE)

    assert job.run(line, 0, again, hosts) == 0
    assert "host node2 does not answer any more" in caplog.text
    assert "from the last snapshot with 2 rank(s)" in caplog.text


@needs_proc
def test_a_job_with_too_few_slots_after_a_loss_ends(tmp_path):
    line = [*program_that(tmp_path, f"{ARE_ON}\n{LOSES}"), "--elastic=3"]
    with pytest.raises(ClusterError, match="host node2 does not answer"):
        job.run(line, 0, never, hosts_of(tmp_path, 3))


def test_a_rank_that_the_job_has_survived_is_not_the_cause(tmp_path):
    does = (
        "echo 'process rank 1 with PID 5 on node a exited on' >&2\necho 'signal 9 (Killed).' >&2\n"
    )
    does += rf'printf "{_BEGIN} failed rank 2 on c\003\n" >&2' + "\nexit 1"
    with pytest.raises(ClusterError, match="rank 2 on c gave up"):
        job.run([*program_that(tmp_path, does), "--elastic=1"], 0, never)
    with pytest.raises(ClusterError, match=r"rank 1 .* was ended by signal 9"):
        job.run(program_that(tmp_path, does), 0, never)


@needs_proc
@pytest.mark.parametrize("again", [False, True])
def test_running_ranks_are_asked_for_the_numbers_of_a_changed_file(tmp_path, caplog, again):
    """A host that has left cannot join again: the job stops and starts on it."""
    hosts, own = hosts_of(tmp_path, 1), environment.host_name()
    file = Path(tempfile.gettempdir()) / "pcaffe-ranks-$PCAFFE_JOB"
    on = rf'printf "{_BEGIN} hosts {own} node1 \003\n{_BEGIN} hosts {own} \003\n" >&2'
    waits = f"{on}\ntrap '{IS_DONE}; exit 0' USR1\ntrap : USR2\n"
    waits += f"until [ -e {file} ]; do sleep 0.1; done\ncat {file} >{tmp_path}/asked\n{IS_DONE}"
    wanted = {own: 3, "node1": 1} if again else {own: 3, "node2": 1}
    text = "".join(f"{host} slots={slots}\n" for host, slots in wanted.items())
    later = threading.Timer(1, (tmp_path / "hosts").write_text, (text,))
    later.start()
    line = [*program_that(tmp_path, waits), "--elastic=1"]
    assert job.run(line, 0, lambda: program_that(tmp_path, IS_DONE), hosts) == 0
    later.join()
    if again:
        assert "node1 cannot join a second time" in caplog.text
        assert not (tmp_path / "asked").exists()
    else:
        assert decode((tmp_path / "asked").read_bytes()).ranks == wanted
        assert hosts.ranks == 4 and "last snapshot" not in caplog.text


@needs_proc
def test_a_job_moves_to_the_hosts_of_a_changed_file(tmp_path, caplog):
    """It stops as after a SIGTERM; a wrong file changes nothing."""
    hosts = hosts_of(tmp_path, 2)
    waits = f"{ARE_ON}\ntrap '{IS_DONE}; exit 0' USR1\ntrap : USR2\nwhile sleep 0.1; do :; done"

    def change() -> None:
        (tmp_path / "hosts").write_text("node1 slots=none\n")
        time.sleep(2)
        (tmp_path / "hosts").write_text("node1 slots=2\nnode3 slots=4\n")

    later = threading.Timer(1, change)
    later.start()
    line = [*program_that(tmp_path, waits), "--elastic=2"]
    assert job.run(line, 0, lambda: program_that(tmp_path, IS_DONE), hosts) == 0
    later.join()
    assert hosts.ranks == 6 and "The hosts stay" in caplog.text
    assert "The hosts have changed; going on from the last snapshot with 6 rank(s)" in caplog.text
