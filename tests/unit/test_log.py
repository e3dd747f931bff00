from __future__ import annotations

import io
import logging
import os
import re

import pytest

from pycaffe_dist import log
from pycaffe_dist.errors import DataError, UsageError

# What Caffe's parse_log.py, extract_seconds.py and parse_log.sh read of a line.
HEAD = re.compile(r"^([IWEF])(\d{4}) (\d\d:\d\d:\d\d\.\d{6}) +(\d+) (\S+\.py):(\d+)\] (.*)$", re.S)
NET_OUTPUT = re.compile(r"(?:Train|Test) net output #(\d+): (\S+) = ([\.\deE+-]+)")
LEARNING_RATE = re.compile(r"lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)")


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
    log.logger.error("only in the file")
    log.stop()
    (file,) = tmp_path.glob(f"pcaffe.*.log.INFO.*.{os.getpid()}")
    text = file.read_text()
    assert text.startswith("Log file created at: ")
    assert text.splitlines()[-1].endswith("only in the file")
    assert "only in the file" not in stream.getvalue()
    assert (tmp_path / "pcaffe.INFO").read_text() == text


def test_only_rank_0_writes_a_log_file(stream, tmp_path):
    log.start(stream=stream, rank=1, log_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_log_folder_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="cannot write a log file"):
        log.start(log_dir=str(tmp_path / "none"))
