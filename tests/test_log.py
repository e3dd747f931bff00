from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from pycaffe_dist import log
from pycaffe_dist.errors import DataError, UsageError

# The parts of a line that Caffe's parse_log.py, extract_seconds.py and parse_log.sh read.
HEAD = re.compile(r"^([IWEF])(\d{4}) (\d\d:\d\d:\d\d\.\d{6}) +(\d+) (\S+\.py):(\d+)\] (.*)$", re.S)
NET_OUTPUT = re.compile(r"(?:Train|Test) net output #(\d+): (\S+) = ([\.\deE+-]+)")
LEARNING_RATE = re.compile(r"lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)")
START = """
import sys
from pycaffe_dist import log
for _ in range(200):
    log.start(log_dir=sys.argv[1], to_stream=False)
"""


@contextlib.contextmanager
def full_disk(size):
    """Limit the size of files, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def stream():
    yield io.StringIO()
    log.stop()


@pytest.mark.parametrize(
    "number, text",
    [
        (0.00999251, "0.00999251"),
        (0.01, "0.01"),
        (1, "1"),
        (2.39296123, "2.39296"),
        (1e-5, "1e-05"),
        (0.0001, "0.0001"),
        (123456, "123456"),
        (1234567, "1.23457e+06"),
        (1.55027e30, "1.55027e+30"),
        (-0.5, "-0.5"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_streamed_as_in_cpp(number, text):
    assert log.fmt(number) == text


def test_a_line_has_glogs_head(stream):
    log.start(stream=stream)
    log.logger.info("Iteration %d, lr = %s", 5, log.fmt(0.00999625))
    severity, _, _, process, file, _, message = HEAD.match(stream.getvalue()).groups()
    assert (severity, int(process), file) == ("I", os.getpid(), "test_log.py")
    assert message == "Iteration 5, lr = 0.00999625\n"
    assert LEARNING_RATE.search(message).group(1) == "0.00999625"


@pytest.mark.parametrize("value", [0.856667, 1e-7, 87.3365, 3.0])
def test_scripts_read_numbers_back(value):
    line = f"    Test net output #0: accuracy = {log.fmt(value)}"
    assert float(NET_OUTPUT.search(line).group(3)) == pytest.approx(value, rel=1e-5)
    assert float(LEARNING_RATE.search(f"lr = {log.fmt(value)}").group(1)) == pytest.approx(value)


def test_severities_and_many_lines(stream):
    log.start(stream=stream)
    log.logger.debug("not shown")
    log.logger.info("parameters: \nname: x\nstate {")
    log.logger.warning("w")
    log.logger.error("e")
    lines = stream.getvalue().splitlines()
    assert [line[0] for line in (lines[0], *lines[3:])] == ["I", "W", "E"]
    assert lines[1:3] == ["name: x", "state {"]


def test_other_ranks_log_warnings_with_their_rank(stream):
    log.start(stream=stream, rank=3)
    log.logger.info("not shown")
    log.logger.warning("slow disk")
    assert HEAD.match(stream.getvalue()).group(7) == "[rank 3] slow disk\n"


def test_a_fatal_line_names_the_place_that_raised(stream):
    log.start(stream=stream)
    try:
        raise DataError("no such file")
    except DataError as error:
        log.fatal(error)
    severity, *_, file, line, message = HEAD.match(stream.getvalue()).groups()
    assert (severity, file, message) == ("F", "test_log.py", "no such file\n")
    assert int(line) > 0


def test_a_log_file_is_named_as_glog_names_it(stream, tmp_path):
    log.start(stream=stream, log_dir=str(tmp_path))
    log.logger.info("Solving LeNet")
    log.start(level=logging.WARNING, stream=stream, log_dir=str(tmp_path), to_stream=False)
    log.logger.warning("only in the file")
    log.logger.error("also on the stream")
    log.stop()
    (file,) = tmp_path.glob(f"pcaffe.*.log.INFO.*.{os.getpid()}")
    assert file.read_text().startswith("Log file created at: ")
    assert file.read_text().splitlines()[-1].endswith("Solving LeNet")
    text = (tmp_path / "pcaffe.INFO").read_text()
    assert text.splitlines()[-2].endswith("only in the file")
    assert "only in the file" not in stream.getvalue()
    assert stream.getvalue().endswith("also on the stream\n")


def test_names_of_log_files_are_unique(stream, tmp_path, monkeypatch):
    """Also in containers, which may share host names and process ids."""
    moment = time.localtime()
    monkeypatch.setattr(log.time, "localtime", lambda *args: moment)
    for number in range(3):
        log.start(stream=stream, log_dir=str(tmp_path))
        log.logger.info("run %d", number)
    files = sorted(tmp_path.glob("pcaffe.*.log.INFO.*"))
    assert [path.read_text().splitlines()[-1][-5:] for path in files] == ["run 0", "run 1", "run 2"]
    assert os.readlink(tmp_path / "pcaffe.INFO") == files[2].name


def test_simultaneous_starts_share_a_folder(tmp_path):
    programs = 4
    line = [sys.executable, "-c", START, str(tmp_path)]
    running = [subprocess.Popen(line) for _ in range(programs)]
    assert [process.wait() for process in running] == [0] * programs
    assert (tmp_path / "pcaffe.INFO").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("to_stream", [True, False])
def test_a_full_disk_loses_lines_of_the_log_with_one_warning(stream, tmp_path, capsys, to_stream):
    log.start(stream=stream if to_stream else None, log_dir=str(tmp_path), to_stream=to_stream)
    (file,) = tmp_path.glob("pcaffe.*.log.INFO.*")
    log.logger.info("before")
    with full_disk(file.stat().st_size + 10):
        for number in range(100):
            log.logger.info("dropped %d", number)
    log.logger.info("after")
    log.stop()
    lines = file.read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines[3:]] == ["before", "after"]
    shown = stream.getvalue() if to_stream else capsys.readouterr().err
    (warning,) = [line for line in shown.splitlines() if line.startswith("W")]
    assert warning.endswith(
        f"{file}: cannot be written: File too large; lines of the log are dropped"
    )
    assert "Traceback" not in shown


def test_a_full_disk_behind_standard_error_ends_nothing(capsys):
    with open("/dev/full", "w") as full:
        log.start(stream=full)
        log.logger.info("dropped")
        log.stop()
        with contextlib.suppress(OSError):
            full.close()
    assert capsys.readouterr().err == ""


def test_a_link_is_not_needed(stream, tmp_path, monkeypatch):
    def fail(*args):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(log.Path, "symlink_to", fail)
    log.start(stream=stream, log_dir=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_only_rank_0_writes_a_log_file(stream, tmp_path):
    log.start(stream=stream, rank=1, log_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_log_folder_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="cannot write a log file"):
        log.start(log_dir=str(tmp_path / "none"))


@pytest.mark.parametrize("verbosity", [0, 1])
def test_details_go_to_the_file_and_on_request_to_the_stream(stream, tmp_path, verbosity):
    log.start(stream=stream, log_dir=str(tmp_path), verbosity=verbosity)
    log.logger.log(log.DETAIL, "Setting up conv1")
    log.logger.info("Solving LeNet")
    log.stop()
    shown = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
    assert shown == ["Setting up conv1"] * verbosity + ["Solving LeNet"]
    assert (tmp_path / "pcaffe.INFO").read_text().splitlines()[3][0] == "I"
    assert "Setting up conv1" in (tmp_path / "pcaffe.INFO").read_text()


def test_from_warnings_on_there_are_no_details(stream, tmp_path):
    log.start(logging.WARNING, stream, log_dir=str(tmp_path), verbosity=1)
    log.logger.log(log.DETAIL, "Setting up conv1")
    assert not stream.getvalue()
    assert "Setting" not in (tmp_path / "pcaffe.INFO").read_text()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(shown: str) -> list[str]:
    """Return the lines that a terminal shows after these bytes."""
    return [line.rpartition("\x1b[K")[2] for line in shown.split("\n")]


def test_a_status_stays_below_the_log_of_a_terminal():
    stream = Terminal()
    log.start(stream=stream)
    log.status("3/10 iterations")
    log.logger.info("Iteration 3, lr = 0.01")
    first, last = seen(stream.getvalue())
    assert first.endswith("] Iteration 3, lr = 0.01") and last == "3/10 iterations"
    log.status("4/10 iterations")
    with log.line_removed():
        stream.write("a table\n")
    assert seen(stream.getvalue())[1:] == ["a table", "4/10 iterations"]
    with log.line_removed(ends_line=False):
        stream.write("half")
    log.status("5/10 iterations")
    with log.line_removed():
        stream.write(" a line\n")
    assert seen(stream.getvalue())[2:] == ["half a line", "5/10 iterations"]
    log.stop()
    assert seen(stream.getvalue())[-1] == ""


def test_a_status_is_cut_to_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    log.start(stream=stream)
    log.status("3/1000 iterations")
    assert seen(stream.getvalue()) == ["3/1000 it"]
    log.stop()


def test_without_a_terminal_a_status_is_logged_after_silence(stream, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(log.time, "monotonic", lambda: now)
    log.start(stream=stream)
    log.status("1/10 iterations")
    now += 29
    log.logger.info("Iteration 2, lr = 0.01")
    now += 29
    log.status("3/10 iterations")
    now += 2
    log.status("4/10 iterations")
    log.status("5/10 iterations")
    log.status("")
    messages = [HEAD.match(line).group(7) for line in stream.getvalue().splitlines()]
    assert messages == ["Iteration 2, lr = 0.01", "4/10 iterations"]
