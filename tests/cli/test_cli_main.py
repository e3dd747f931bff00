from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import pycaffe_dist
from pycaffe_dist.cli import main as cli
from pycaffe_dist.cli.flags import add_flag
from pycaffe_dist.errors import (
    FAILURE,
    WRONG_INPUT,
    DataError,
    LayerError,
    PrototxtError,
    UsageError,
    exit_status,
)
from pycaffe_dist.log import DETAIL, logger

FATAL = re.compile(r"^F\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ (\S+\.py):\d+\] (.*)\n$")


@pytest.fixture
def command(monkeypatch):
    """Replace every command's module by the returned object."""

    def add_flags(parser):
        add_flag(parser, "level", int, default=0, help="a level")

    module = SimpleNamespace(__doc__="Do something.", add_flags=add_flags, run=lambda options: 0)
    monkeypatch.setattr(cli, "_import", lambda name: module)
    return module


def fatal_message(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    match = FATAL.match(captured.err)
    assert match, captured.err
    return match.group(2)


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("train", "test", "time", "device_query"):
        assert re.search(rf"^  {name} +\w+", shown, re.MULTILINE)
    assert not re.search(r"^  (main|flags|nets|progress)\b", shown, re.MULTILINE)


@pytest.mark.parametrize("args", [["-help"], ["help"], ["train", "--help"], ["help", "train"]])
def test_other_spellings_of_help(capsys, args):
    assert cli.main(args) == 0
    assert capsys.readouterr().out.startswith("usage: pcaffe ")


def test_every_command_explains_itself(capsys):
    for name in cli.commands():
        assert cli.main([name, "--help"]) == 0
        assert f"usage: pcaffe {name}" in capsys.readouterr().out


def test_nothing_heavy_is_imported_for_help():
    code = (
        "import sys; from pycaffe_dist.cli.main import main; main(['--help'])\n"
        "heavy = {'numpy', 'numba', 'google', 'cv2', 'h5py', 'lmdb', 'mpi4py'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pcaffe {pycaffe_dist.__version__}\n"


def test_without_a_command_the_usage_is_shown(capsys):
    assert cli.main([]) == WRONG_INPUT
    assert "usage: pcaffe COMMAND" in capsys.readouterr().err


def test_an_unknown_command_and_a_module_without_a_command(capsys):
    assert cli.main(["trian"]) == WRONG_INPUT
    assert fatal_message(capsys) == "unknown command 'trian'; did you mean 'train'?"
    assert cli.main(["flags"]) == WRONG_INPUT
    assert fatal_message(capsys).startswith("unknown command 'flags'")
    assert cli.main(["--solver=x"]) == WRONG_INPUT
    assert fatal_message(capsys).startswith("no command is given; known are")


def test_flags_may_stand_before_the_command(monkeypatch, command):
    seen = []
    command.run = lambda options: seen.append(options.level) or 0
    assert cli.main(["--level=3", "train"]) == 0
    assert cli.main(["train", "-level", "4"]) == 0
    assert seen == [3, 4]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DataError("no such file: x_lmdb"), "no such file: x_lmdb"),
        (MemoryError("cannot have 8 GiB"), "cannot have 8 GiB"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_error_is_one_line_with_the_place_that_raised_it(capsys, command, error, words):
    def run(options):
        raise error

    command.run = run
    assert cli.main(["train"]) == 1
    assert fatal_message(capsys) == words


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (UsageError("an unknown flag"), None, WRONG_INPUT),
        (LayerError("conv1", "Convolution", "needs num_output"), None, WRONG_INPUT),
        (LayerError("mine", "Python", "KeyError: 3"), KeyError(3), FAILURE),
        (PrototxtError("cannot be read: Input/output error"), OSError(5), FAILURE),
        (DataError("no such file: x_lmdb"), None, FAILURE),
        (MemoryError(), None, FAILURE),
    ],
)
def test_wrong_input_has_a_status_of_its_own(error, cause, status):
    error.__cause__ = cause
    assert exit_status(error) == status


def test_an_unexpected_error_is_one_line_with_a_hint(capsys, command):
    command.run = lambda options: {}["a\nkey"]
    assert cli.main(["train"]) == FAILURE
    message = fatal_message(capsys)
    assert message.startswith("KeyError: 'a\\nkey' (an unexpected error")
    assert "--debug shows where" in message


@pytest.mark.parametrize("error", [DataError("no such file: x_lmdb"), ZeroDivisionError()])
def test_a_traceback_on_request(capsys, command, error):
    def run(options):
        raise error

    command.run = run
    assert cli.main(["train", "--debug"]) == FAILURE
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "in run\n" in shown and "unexpected" not in shown
    assert cli.main(["train", "--debug", "--nodebug"]) == FAILURE
    assert "Traceback" not in capsys.readouterr().err


def test_a_traceback_of_an_error_before_the_flags_are_read(capsys):
    assert cli.main(["trian", "--debug"]) == WRONG_INPUT
    assert "Traceback" in capsys.readouterr().err


def test_every_command_has_the_flag_for_tracebacks(capsys):
    for name in cli.commands():
        assert cli.main([name, "--help"]) == 0
        assert "--[no]debug" in capsys.readouterr().out


def test_an_interrupt_is_quiet(capsys, command):
    def run(options):
        raise KeyboardInterrupt

    command.run = run
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pycaffe_dist", "--help"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_other_ranks_let_rank_0_speak_first(capsys, monkeypatch):
    waits = []
    monkeypatch.setattr(cli.time, "sleep", waits.append)
    for rank in ("0", "2"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        assert cli.main(["train", "--solvr=x"]) == WRONG_INPUT
    assert "unknown flag --solvr" in capsys.readouterr().err
    assert len(waits) == 1


def test_log_flags_and_their_environment(capsys, command, monkeypatch, tmp_path):
    def run(options):
        logger.info("hello")
        logger.warning("careful")
        return 0

    command.run = run
    assert cli.main(["train", "--minloglevel=1"]) == 0
    assert "hello" not in capsys.readouterr().err
    monkeypatch.setenv("GLOG_minloglevel", "2")
    assert cli.main(["train"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["train", "--minloglevel=0", f"--log_dir={tmp_path}"]) == 0
    assert "hello" in capsys.readouterr().err
    assert "hello" in (tmp_path / "pcaffe.INFO").read_text()
    assert cli.main(["train", "--minloglevel=9"]) == WRONG_INPUT
    assert "from 0 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, shown",
    [
        ([], ["hello", "careful"]),
        (["-v", "1"], ["detail", "hello", "careful"]),
        (["--noalsologtostderr", "--log_dir=LOGS"], []),
        (["--noalsologtostderr", "--log_dir=LOGS", "--stderrthreshold=1"], ["careful"]),
        (["--noalsologtostderr", "--log_dir=LOGS", "--logtostderr"], ["hello", "careful"]),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_glogs_flags_have_glogs_meaning(
    capsys, command, monkeypatch, tmp_path, flags, shown, by_environment
):
    def run(options):
        logger.log(DETAIL, "detail")
        logger.info("hello")
        logger.warning("careful")
        return 0

    command.run = run
    flags = [flag.replace("LOGS", str(tmp_path)) for flag in flags]
    if by_environment:
        for name, value in {
            "-v": ("v", "1"),
            "--noalsologtostderr": ("alsologtostderr", "0"),
            "--logtostderr": ("logtostderr", "1"),
            "--stderrthreshold=1": ("stderrthreshold", "1"),
            f"--log_dir={tmp_path}": ("log_dir", str(tmp_path)),
        }.items():
            if name in flags:
                monkeypatch.setenv(f"GLOG_{value[0]}", value[1])
        flags = []
    assert cli.main(["train", *flags]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("] ")[2] for line in lines] == shown


def test_a_log_folder_that_is_missing_is_one_line(capsys, command, tmp_path):
    assert cli.main(["train", f"--log_dir={tmp_path / 'none'}"]) == WRONG_INPUT
    assert fatal_message(capsys).startswith("cannot write a log file in")


@pytest.mark.parametrize(
    "args, message",
    [
        (["train"], "need a solver definition"),
        (["train", "--solver=s", "--snapshot=a", "--weights=b"], "but not both"),
        (["train", "--solver=s", "--sigint_effect=die"], "--sigint_effect is one of"),
        (["train", "--solver=s", "--threads=-1"], "--threads needs 0 or more"),
        (["test"], "need a model definition to score"),
        (["test", "--model=m"], "need model weights to score"),
        (["test", "--precision=half"], "--precision is one of float32, bfloat16, not 'half'"),
        (["test", "--model=m", "--weights=w", "--iterations=0"], "--iterations needs 1 or more"),
        (["time"], "need a model definition to time"),
        (["device_query", "--gpu=77"], "there is no GPU 77"),
    ],
)
def test_wrong_flags_of_the_commands(capsys, args, message):
    assert cli.main(args) in (FAILURE, WRONG_INPUT)
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1]
    assert "Traceback" not in error


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "args, status", [("train --solver=s.prototxt", 0), ("train --solver=none", WRONG_INPUT)]
)
def test_closed_standard_streams_are_no_error(tmp_path, closed, args, status):
    (tmp_path / "s.prototxt").write_text(
        "net_param { layer { name: 'x' type: 'DummyData' top: 'x' "
        "dummy_data_param { shape { dim: 1 } } } } "
        "base_lr: 1 lr_policy: 'fixed' max_iter: 1 snapshot_after_train: false"
    )
    line = f"'{sys.executable}' -m pycaffe_dist {args} {closed}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    program = (
        "import os; from pycaffe_dist.cli import main; main.main(['--version']);"
        f"print(open('{tmp_path}/x', 'w').fileno() > 2, file=open('{tmp_path}/y', 'w'))"
    )
    line = f"'{sys.executable}' -c \"{program}\" <&- >&- 2>&-"
    subprocess.run(["sh", "-c", line], check=True)
    assert (tmp_path / "y").read_text() == "True\n"
