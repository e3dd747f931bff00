"""Commands print their results on standard output, whatever is logged: as tables and as JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pycaffe_dist import results
from pycaffe_dist.cli import device_query
from pycaffe_dist.cli.main import main
from pycaffe_dist.reports.scores import Output, Scores

GOLDEN = Path(__file__).parents[1] / "golden"
NET = """
name: "small"
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { value: 1 }
    data_filler { value: 0 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 2 weight_filler { value: 0 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" reduction_param { axis: 1 } }
"""


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Run a command without a log; return what it prints."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        "net: 'net.prototxt' base_lr: 0 lr_policy: 'fixed' max_iter: 1 snapshot_prefix: 'w'"
    )
    monkeypatch.chdir(tmp_path)

    def printed(*args: str) -> str:
        assert main([*args, "--minloglevel=3"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return printed


def test_scores(printed):
    assert printed("train", "--solver=solver.prototxt") == ""
    command = ["test", "--model=net.prototxt", "--weights=w_iter_1.caffemodel", "--iterations=3"]
    rows = [line.split() for line in printed(*command).splitlines()]
    assert rows[0] == ["output", "mean", "of", "3", "batches"]
    assert rows[1] == ["loss", "0.693147", "loss,", "weight", "1"]
    assert rows[2:] == [*([f"sum[{i}]", "0"] for i in range(4)), ["whole", "loss", "0.693147"]]
    found = json.loads(printed(*command, "--json"))
    loss = pytest.approx(math.log(2))
    assert found == {
        "iterations": 3,
        "loss": loss,
        "outputs": [
            {"name": "loss", "means": [loss], "loss_weight": 1},
            {"name": "sum", "means": [0] * 4, "loss_weight": 0},
        ],
        "precisions": {},
    }


def test_times(printed):
    command = ["time", "--model=net.prototxt", "--iterations=2"]
    rows = [line.split() for line in printed(*command).splitlines()]
    assert rows[0] == ["layer", "type", "forward", "ms", "backward", "ms"]
    assert [row[:2] for row in rows[2:4]] == [["data", "DummyData"], ["ip", "InnerProduct"]]
    assert rows[-1][:4] == ["iteration", "mean", "of", "2"]
    found = json.loads(printed(*command, "--json"))
    assert found["iterations"] == 2
    assert [layer["name"] for layer in found["layers"]][:2] == ["data", "ip"]
    forward = sum(layer["forward"] for layer in found["layers"])
    assert forward == pytest.approx(found["forward"], abs=1e-3)
    assert found["both"] >= found["forward"] > 0


def test_facts():
    """In a process of its own, since it starts and ends MPI."""
    command = [sys.executable, "-m", "pycaffe_dist", "device_query", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)["facts"]
    assert list(facts)[:3] == ["CPU", "Cores", "SIMD"] and {"MPI", "Python"} <= set(facts)
    assert device_query.Facts({"CPU": "x", "Cores": "2"}).table() == "CPU:    x\nCores:  2"


def test_a_summary(printed):
    assert printed("summarize", "net.prototxt").splitlines()[-1].split()[:3] == [
        "total",
        "4",
        "layers",
    ]
    found = json.loads(printed("summarize", "net.prototxt", "--json"))
    assert (found["name"], found["phase"]) == ("small", "TEST")
    assert [layer["macs"] for layer in found["layers"]] == [0, 24, 0, 0]
    assert found["layers"][0]["shapes"] == [[4, 3], [4]]


def test_a_comparison(printed):
    files = [str(GOLDEN / "solver" / f"sgd_iter_10.caffemodel{end}") for end in ("", ".h5")]
    found = json.loads(printed("compare", *files, "--json"))
    assert found["same"] == found["compared"] > 0
    assert {difference["largest"] for difference in found["differences"]} == {0.0}


@dataclass(frozen=True)
class Made:
    values: tuple[float, ...]

    def table(self) -> str:
        return "text"


@pytest.mark.parametrize("rank, shown", [("0", '{"values": [1.5, null, null]}\n'), ("1", "")])
def test_only_rank_0_prints_and_what_is_not_finite_is_null(capsys, monkeypatch, rank, shown):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    results.show(Made((1.5, math.nan, math.inf)), as_json=True)
    assert capsys.readouterr().out == shown


def test_precisions_of_detections_are_in_the_table():
    scores = Scores(2, 0.5, (Output("loss", (0.5,), 1.0),), {"eval": {"11point": 0.25}})
    row = scores.table().splitlines()[2].split()
    assert row == ["eval", "0.25", "mean", "average", "precision,", "11point"]
