"""Training on several ranks equals training on one, from the command line."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import lmdb
import numpy as np
import pytest
from digits import DATA, SOLVER, write_digits
from kept_jobs import run_pcaffe
from running import run

from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.training.metrics_file import read_records

ITERATIONS = 20
BATCH = 12

# Average pooling, because rounding may change which of two equal pixels is the largest.
LENET = (
    DATA
    + """
layer { name: 'conv1' type: 'Convolution' bottom: 'data' top: 'conv1' param { lr_mult: 1 }
  param { lr_mult: 2 } convolution_param { num_output: 20 kernel_size: 5
  weight_filler { type: 'xavier' } } }
layer { name: 'pool1' type: 'Pooling' bottom: 'conv1' top: 'pool1'
  pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: 'conv2' type: 'Convolution' bottom: 'pool1' top: 'conv2' param { lr_mult: 1 }
  param { lr_mult: 2 } convolution_param { num_output: 50 kernel_size: 5
  weight_filler { type: 'xavier' } } }
layer { name: 'pool2' type: 'Pooling' bottom: 'conv2' top: 'pool2'
  pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: 'ip1' type: 'InnerProduct' bottom: 'pool2' top: 'ip1' param { lr_mult: 1 }
  param { lr_mult: 2 } inner_product_param { num_output: 500 weight_filler { type: 'xavier' } } }
layer { name: 'relu1' type: 'ReLU' bottom: 'ip1' top: 'ip1' }
layer { name: 'ip2' type: 'InnerProduct' bottom: 'ip1' top: 'ip2'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'accuracy' type: 'Accuracy' bottom: 'ip2' bottom: 'label' top: 'accuracy'
  include { phase: TEST } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip2' bottom: 'label' top: 'loss' }
"""
)
# Two layers share weights, and one of them shares others with a third layer.
SHARED = (
    DATA
    + """
layer { name: 'squeeze' type: 'InnerProduct' bottom: 'data' top: 'squeeze'
  inner_product_param { num_output: 32 weight_filler { type: 'xavier' } } }
layer { name: 'a' type: 'InnerProduct' bottom: 'squeeze' top: 'a' param { name: 'w' }
  param { name: 'b' } inner_product_param { num_output: 32 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'a' top: 'tanh' }
layer { name: 'b' type: 'InnerProduct' bottom: 'tanh' top: 'b' param { name: 'w' }
  param { name: 'b' } inner_product_param { num_output: 32 weight_filler { type: 'xavier' } } }
layer { name: 'c' type: 'InnerProduct' bottom: 'b' top: 'c'
  inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'c' bottom: 'label' top: 'loss' }
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with an LMDB of 1000 noisy digits: ten fixed patterns."""
    folder = tmp_path_factory.mktemp("training")
    write_digits(folder, 1000)
    return folder


def train(folder: Path, name: str, net: str, ranks: int, batch: int, *flags: str, extra: str = ""):
    """Train on some ranks; return the displayed losses, the snapshot's weights and the log."""
    (folder / f"{name}.prototxt").write_text(net % batch)
    solver = SOLVER % (f"{name}.prototxt", ITERATIONS, name) + extra
    (folder / f"{name}_solver.prototxt").write_text(solver)
    output = run_pcaffe(ranks, ["train", f"--solver={name}_solver.prototxt", *flags], folder)
    losses = [float(loss) for loss in re.findall(r"Iteration \d+ \(.*loss = (\S+)", output)]
    assert len(losses) == ITERATIONS
    layers = load_weights(folder / f"{name}_iter_{ITERATIONS}.caffemodel")
    return losses, [blob for layer in layers for blob in layer.blobs], output


def assert_equal(found, expected, elementwise: bool = False):
    """Compare losses and the norms of blobs; with ``elementwise`` also single weights.

    Rounding of a ReLU's input near 0 may change single weights by more.
    """
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert np.linalg.norm(mine - theirs) <= 1e-5 * np.linalg.norm(theirs)
        if elementwise:
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def exchanges(found) -> dict[str, str]:
    """Return each parameter's exchange, from the table in the log."""
    rows = re.findall(r"(?m)^(\w+\[\d\]) +[\dx]+ +[\d.]+ +(\w+) ", found[2])
    assert rows
    return dict(rows)


@pytest.mark.parametrize(
    ("net", "ranks"),
    [("lenet", 2), ("shared", 3), pytest.param("lenet", 4, marks=pytest.mark.long)],
)
def test_ranks_that_share_the_batch_equal_one_rank(folder, net, ranks):
    prototxt = {"lenet": LENET, "shared": SHARED}[net]
    one = train(folder, f"{net}_one{ranks}", prototxt, 1, BATCH * ranks)
    many = train(folder, f"{net}_many{ranks}", prototxt, ranks, BATCH)
    assert_equal(many, one, elementwise=net == "shared")
    by_factors = train(
        folder, f"{net}_factors{ranks}", prototxt, ranks, BATCH, "--exchange=sufficient_factor"
    )
    assert_equal(by_factors, one, elementwise=net == "shared")
    chosen = {key for key, name in exchanges(by_factors).items() if name == "sufficient_factor"}
    assert chosen == {"lenet": {"ip1[0]", "ip2[0]"}, "shared": {"squeeze[0]", "c[0]"}}[net]


def test_factors_can_be_clipped_and_regularised(folder):
    extra = "clip_gradients: 0.5 regularization_type: 'L1' type: 'Nesterov'"
    one = train(folder, "clipped_one", LENET, 1, 2 * BATCH, extra=extra)
    two = train(folder, "clipped_two", LENET, 2, BATCH, "--exchange=sufficient_factor", extra=extra)
    assert one[2].count("Gradient clipping") == two[2].count("Gradient clipping") > 0
    assert_equal(two, one)


@pytest.mark.parametrize(
    ("net", "ranks", "exchange", "extra"),
    [
        (LENET, 2, "sufficient_factor", "snapshot: 7 test_iter: 2 test_interval: 5"),
        (SHARED, 3, "allreduce", "type: 'Adam'"),
        (SHARED, 2, "allreduce", "iter_size: 2"),
    ],
)
def test_exchange_during_forward_changes_no_bit(folder, net, ranks, exchange, extra):
    """Also with shared weights, several passes, and snapshots and tests in between."""
    runs = [
        train(folder, overlap, net, ranks, BATCH, *flags, extra=extra)
        for overlap in ("backward", "forward")
        for flags in [(f"--exchange={exchange}", f"--overlap={overlap}")]
    ]
    (losses, weights, log), (late_losses, late_weights, late_log) = runs
    assert late_losses == losses
    for mine, theirs in zip(late_weights, weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    tests = re.compile(r"Test net output.*")
    assert tests.findall(late_log) == tests.findall(log)
    assert re.search(r"s of exchange, \d+ % hidden", late_log)


def test_with_clipping_and_naive_the_log_says_why_no_exchange_overlaps_forward(folder):
    flags = ("--overlap=forward", "--exchange=naive")
    assert "naive starts after backward" in train(folder, "late", SHARED, 2, BATCH, *flags)[2]
    clipped = train(folder, "late", SHARED, 2, BATCH, flags[0], extra="clip_gradients: 1")
    assert "clip_gradients needs them all" in clipped[2]


def test_the_learning_rate_grows_with_the_number_of_ranks(folder):
    flags = "--scale_lr=10", "--exchange=allreduce"
    shown = re.compile(r"Iteration (\d+), lr = (\S+)")
    rates = {
        ranks: shown.findall(train(folder, "scaled", SHARED, ranks, BATCH, *flags)[2])
        for ranks in (1, 3)
    }
    factors = [float(rate) / float(one) for (_, rate), (_, one) in zip(rates[3], rates[1])]
    assert factors == pytest.approx(
        [min(3, 1 + 0.2 * number) for number in range(ITERATIONS)], rel=1e-5
    )
    both = ["train", "--solver=x", "--scale_lr", "--global_batch"]
    assert "give one of the two" in run(["pcaffe", *both], folder, expect_failure=True)


def test_iter_size_and_a_global_batch(folder):
    """Two passes of two ranks with half a batch each equal two passes of one rank."""
    one = train(folder, "passes_one", SHARED, 1, 2 * BATCH, extra="iter_size: 2")
    two = train(folder, "passes_two", SHARED, 2, 2 * BATCH, "--global_batch", extra="iter_size: 2")
    assert_equal(two, one)


@pytest.mark.parametrize("ignored", ["", "loss_param { ignore_label: 3 }"])
def test_ranks_that_cannot_divide_the_batch_have_shares(folder, ignored):
    """Also if losses are divided by the number of labels of all ranks."""
    net = SHARED.replace("top: 'loss'", f"top: 'loss' {ignored}")
    one, *several = (
        train(folder, f"shares{ranks}", net, ranks, 2 * BATCH + 1, "--global_batch")
        for ranks in (1, 2, 3, 4)
    )
    for found in several:
        assert_equal(found, one, elementwise=True)
    assert "Effective batch size: 25, which 4 ranks share" in several[-1][2]


def test_a_timeline_shows_all_ranks_on_one_clock(folder):
    files = f"--timeline={folder / 'timeline.json'}", f"--metrics={folder / 'timed.jsonl'}"
    train(folder, "timed", LENET, 2, BATCH, *files, "--layer_metrics")
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    for rank in (0, 1):
        found = Counter(span["cat"] for span in spans if span["pid"] == rank)
        assert found["forward"] >= 9 * ITERATIONS and found["backward"] == 9 * ITERATIONS
        assert found["update"] == 8 * ITERATIONS and found["exchange"] > 0
        assert found["iteration"] == ITERATIONS and found["snapshot"] == 1
    records = read_records(str(folder / "timed.jsonl"))
    check_messages([span for span in spans if span["cat"] == "exchange"], records)
    shown = [record for record in records if record["kind"] == "train"]
    assert [record["iteration"] for record in shown] == [*range(ITERATIONS + 1)]
    for record in shown[:-1]:
        shares = record["shares"]
        assert 0 < shares["exchange_hidden"] + shares["exchange_not_hidden"] <= 1
        assert sum(shares.values()) - shares["exchange_hidden"] <= 1
        assert shares["forward"] > 0 and shares["backward"] > 0 and shares["update"] > 0
    # An exchange ends on one rank only after the other has begun it.
    first, second = (
        [span for span in spans if span["pid"] == rank and span["cat"] == "exchange"]
        for rank in (0, 1)
    )
    for mine, theirs in zip(first[-20:], second[-20:]):
        slack = 1000
        assert mine["ts"] < theirs["ts"] + theirs["dur"] + slack
        assert theirs["ts"] < mine["ts"] + mine["dur"] + slack


def check_messages(spans: list[dict], records: list[dict]) -> None:
    """Check that a timeline and metrics tell the same of an exchange plan's messages."""
    plans = [record["messages"] for record in records if record["kind"] == "plan"]
    exchanges = {name: each for plan in plans for name, each in plan.items()}
    by_name: dict[str, list[dict]] = {}
    for span in spans:
        assert span["args"]["bytes"] > 0
        by_name.setdefault(f"{span['args']['exchange']} of {span['name']}", []).append(span)
    assert set(by_name) <= set(exchanges)
    parameters = ", ".join(name.partition(" of ")[2] for name in plans[-1]).split(", ")
    assert len(set(parameters)) == 8
    last = [record["messages"] for record in records if "messages" in record][-1]
    assert set(last) == set(plans[-1])
    for name, each in plans[-1].items():
        assert each["bytes"] > 0 and each["predicted_ms"] > 0
        if name.startswith("allreduce "):  # of two ranks: half goes out, and half of the mean
            assert last[name]["bytes"] == pytest.approx(each["bytes"] / each["count"], rel=0.1)
        assert last[name]["ms"] > 0
    rows = {(span["pid"], span["tid"]): set() for span in spans}
    for span in spans:
        rows[span["pid"], span["tid"]].add(span["args"]["exchange"])
    assert all(len(exchanges) == 1 for exchanges in rows.values())


def test_a_run_is_repeatable_bit_by_bit(folder):
    first = train(folder, "first", LENET, 2, BATCH, "--exchange=sufficient_factor")
    second = train(folder, "second", LENET, 2, BATCH, "--exchange=sufficient_factor")
    assert first[0] == second[0]
    for mine, theirs in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.long
def test_sixteen_ranks_on_few_cores(folder):
    one = train(folder, "sixteen_one", SHARED, 1, 16)
    sixteen = train(folder, "sixteen", SHARED, 16, 1)
    assert_equal(sixteen, one, elementwise=True)


def test_tests_spread_over_ranks_see_the_same_batches(folder):
    """Also if the ranks cannot divide the batches evenly, and from one test to the next."""
    results = []
    for ranks in (1, 3):
        extra = "test_iter: 5 test_interval: 10"
        name = f"tested{ranks}"
        (folder / f"{name}.prototxt").write_text(LENET % BATCH)
        solver = SOLVER.replace("0.01", "0") % (f"{name}.prototxt", ITERATIONS, name) + extra
        (folder / f"{name}.solver").write_text(solver)
        output = run_pcaffe(ranks, ["train", f"--solver={name}.solver"], folder)
        results.append(re.findall(r"Test net output #\d: \w+ = (\S+)", output))
    assert len(results[0]) == 6
    assert results[0] == results[1]


def test_a_failing_rank_ends_the_run_and_says_which(folder):
    """Only rank 1 reads the record with the invalid label."""
    bad = folder / "bad_lmdb"
    with lmdb.open(str(bad), map_size=1 << 26) as database, database.begin(write=True) as write:
        for number in range(200):
            datum = caffe_pb2.Datum(channels=1, height=28, width=28, data=bytes(784))
            datum.label = 77 if number == 41 else 0
            write.put(b"%08d" % number, datum.SerializeToString())
    (folder / "bad.prototxt").write_text((SHARED % 4).replace("digits_lmdb", "bad_lmdb"))
    (folder / "bad_solver.prototxt").write_text(SOLVER % ("bad.prototxt", ITERATIONS, "bad"))
    output = run(
        ["pcaffe", "train", "--solver=bad_solver.prototxt"], folder, 2, expect_failure=True
    )
    assert re.search(r"rank 1.*layer 'loss' \(SoftmaxWithLoss\).*77", output)
    assert "Traceback" not in output
    assert not list(folder.glob("bad_iter_*"))


def test_a_wrong_flag_gives_one_message(folder):
    output = run(["pcaffe", "train", "--sover=x"], folder, 3, expect_failure=True)
    assert output.count("unknown flag --sover; did you mean '--solver'?") == 1


def test_a_check_on_several_ranks(folder):
    """Rank 0 alone prints what the run will take; no rank leaves a file."""
    (folder / "checked.prototxt").write_text(LENET % BATCH)
    solver = SOLVER % ("checked.prototxt", ITERATIONS, "checked")
    tests = " test_iter: 5 test_interval: 4 averaging: 'SWA' best_output: 'accuracy'"
    (folder / "checked_solver.prototxt").write_text(solver + tests)
    output = run_pcaffe(2, ["train", "--solver=checked_solver.prototxt", "--check"], folder)
    assert output.count("The whole run will take about:") == 1
    for what, count in (("iterations", 20), ("tests", 6), ("snapshots", 1)):
        assert re.search(rf"^  {what} .*: {count} of ", output, re.MULTILINE), output
    assert " on each of 2 ranks" in output
    assert sorted(path.name for path in folder.glob("checked*")) == [
        "checked.prototxt",
        "checked_solver.prototxt",
    ]
