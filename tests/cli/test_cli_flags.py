from __future__ import annotations

import pytest

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag, split_list
from pycaffe_dist.errors import UsageError


@pytest.fixture
def parser():
    parser = FlagParser("pcaffe try", "Try flags.")
    add_caffe_flags(parser, ("solver", "weights", "iterations", "phase"))
    add_flag(parser, "shuffle", bool, help="in another order")
    add_flag(parser, "batch_size", int, default=64, help="images")
    add_flag(parser, "ratio", float, default=0.5, help="a ratio")
    return parser


@pytest.mark.parametrize(
    "args", [["-solver", "x.p"], ["-solver=x.p"], ["--solver", "x.p"], ["--solver=x.p"]]
)
def test_the_four_spellings_of_a_value(parser, args):
    assert parser.parse([*args, "--iterations", "7"]).solver == "x.p"


@pytest.mark.parametrize(
    "arg, value",
    [
        ("--shuffle", True),
        ("-shuffle", True),
        ("--noshuffle", False),
        ("-noshuffle", False),
        ("--shuffle=false", False),
        ("--shuffle=1", True),
        ("--shuffle=no", False),
    ],
)
def test_booleans(parser, arg, value):
    assert parser.parse(["--shuffle", arg]).shuffle is value


def test_a_boolean_does_not_take_the_next_argument(parser):
    parser.add_argument("folder")
    options = parser.parse(["--shuffle", "images/"])
    assert options.shuffle is True
    assert options.folder == "images/"


def test_the_last_one_counts_and_dashes_are_underscores(parser):
    assert parser.parse(["--batch-size=1", "-batch_size", "2"]).batch_size == 2


def test_negative_numbers_empty_values_and_values_with_equal_signs(parser):
    options = parser.parse(["--batch_size", "-3", "--ratio=-.5", "--solver=a=b", "-weights", ""])
    assert (options.batch_size, options.ratio) == (-3, -0.5)
    assert (options.solver, options.weights) == ("a=b", "")


def test_defaults(parser):
    options = parser.parse([])
    assert (options.iterations, options.phase, options.shuffle) == (50, "", False)


@pytest.mark.parametrize(
    "args, message",
    [
        (["-solvr", "x"], "unknown flag -solvr; did you mean '--solver'?"),
        (["--zzz=1"], "unknown flag --zzz (see pcaffe try --help)"),
        (["--nosolver"], "unknown flag --nosolver"),
        (["--iterations", "many"], "flag --iterations needs an integer, not 'many'"),
        (["--iterations=1.5"], "flag --iterations needs an integer, not '1.5'"),
        (["--ratio=half"], "flag --ratio needs a number, not 'half'"),
        (["--ratio=nan"], "flag --ratio needs a number, not 'nan'"),
        (["--shuffle=maybe"], "flag --shuffle needs true or false, not 'maybe'"),
        (["--phase=VAL"], "flag --phase is one of TRAIN, TEST, not 'VAL'"),
        (["--solver"], "flag --solver needs a value"),
        (["--solver", "--weights=x"], "flag --solver needs a value"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_errors(parser, args, message):
    with pytest.raises(UsageError) as error:
        parser.parse(args)
    assert str(error.value).startswith(message)


def test_a_missing_positional_is_named(parser):
    parser.add_argument("db_path")
    with pytest.raises(UsageError, match="db_path"):
        parser.parse([])


def test_flags_of_other_commands_are_accepted_and_reported(parser):
    parser.parse(["-gpu", "0", "--level=3"])
    assert parser.given_without_effect == ["gpu", "level"]
    with pytest.raises(UsageError, match="integer"):
        parser.parse(["--level=top"])


def test_flags_from_a_file(parser, tmp_path):
    file = tmp_path / "flags"
    file.write_text("# what to train\n--solver=x.p\n\n-iterations=3\n")
    options = parser.parse([f"--flagfile={file}", "--iterations=4"])
    assert (options.solver, options.iterations) == ("x.p", 4)
    with pytest.raises(UsageError, match=r"the flag file .* cannot be read"):
        parser.parse(["-flagfile", str(tmp_path / "none")])


def test_help_shows_texts_and_defaults(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse(["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: pcaffe try [flags]\n")
    parser.add_argument("net")
    parser.add_argument("mean", nargs="?")
    parser.add_argument("logs", nargs="+")
    assert parser.format_help().startswith("usage: pcaffe try [flags] net [mean] logs …\n")
    assert "--[no]shuffle" in shown
    assert "(default: 64)" in shown
    assert "--snapshot" not in shown


def test_split_list():
    assert split_list("a.h5, b.h5,") == ("a.h5", "b.h5")
    assert split_list("") == ()
