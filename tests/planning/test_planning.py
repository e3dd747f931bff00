"""``pcaffe plan``: predictions for any cluster, on one rank."""

from __future__ import annotations

import json
import re

import pytest

from pycaffe_dist.cli.main import main
from pycaffe_dist.comm.measured import Contention, Link
from pycaffe_dist.errors import WRONG_INPUT, UsageError
from pycaffe_dist.planning import prediction
from pycaffe_dist.planning.layer_times import Times
from pycaffe_dist.planning.search import Workload

SOLVER = """
base_lr: 0.01 lr_policy: 'fixed' max_iter: 10 %s net_param {
  layer { name: 'x' type: 'DummyData' top: 'x' top: 'y' dummy_data_param {
    shape { dim: 8 dim: 100 } shape { dim: 8 dim: 10 } } }
  layer { name: 'large' type: 'InnerProduct' bottom: 'x' top: 'large'
    inner_product_param { num_output: 1000 weight_filler { type: 'xavier' } } }
  layer { name: 'small' type: 'InnerProduct' bottom: 'large' top: 'small'
    inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
  layer { name: 'loss' type: 'EuclideanLoss' bottom: 'small' bottom: 'y' top: 'loss' } }
"""
# 10 MB/s, no latency, 8 GFLOP/s.
IMAGINED = prediction.Imagined(4, Link(0.0, 1e7), 8e9)
TIMES = "large 2 3   # the first layer's data have no gradient\nsmall 1 2\nupdate 1.1101\n"


@pytest.fixture
def solver(tmp_path):
    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER % "")
    (tmp_path / "times").write_text(TIMES)
    return path


@pytest.fixture
def net(solver):
    net, _ = prediction.open_net(str(solver))
    yield net
    net.close()


def test_an_iteration_worked_out_by_hand(net, solver):
    times = prediction.read_times(str(solver.parent / "times"), net)
    plan, found = prediction.predict(net, Workload(times), IMAGINED, "allreduce")
    # 111010 floats, of which 3/2 go out at 2.5 million a second: 66.606 ms.  Backward lasts from
    # 3 to 8 ms.  The bucket of small[1], small[0] and large[1] (11010 floats, 6.606 ms) and the
    # 100000 of large[0] (60 ms) are both complete when it ends; the last update takes 1 ms.
    assert found.wire == pytest.approx(66.606e-3)
    assert found.computing == pytest.approx(9.1101e-3)
    assert found.total == pytest.approx(8e-3 + 66.606e-3 + 1e-3)
    assert set(plan.choice.values()) == {"allreduce"}


def test_factors_take_the_place_of_the_large_gradient(net, solver):
    times = prediction.read_times(str(solver.parent / "times"), net)
    plan, found = prediction.predict(net, Workload(times), IMAGINED, "auto")
    rows = plan.choice
    assert rows["large[0]"] == "sufficient_factor"
    assert rows["large[1]"] == rows["small[1]"] == "allreduce"
    # A product of 8 samples is 1.6 MFLOP, 0.2 ms: backward has one less, and four come after it.
    small = 0 if rows["small[0]"] == "allreduce" else 0.02e-3
    assert found.computing == pytest.approx(9.1101e-3 + 3 * (0.2e-3 + small))
    assert found.wire < 25e-3


def test_exchanges_hidden_by_backward_cost_nothing(tmp_path):
    """Alone, the second weight takes 24 ms as factors and 30 ms as a gradient.

    But backward of the earlier layer hides these, and not the larger product.
    """
    path = tmp_path / "solver.prototxt"
    path.write_text((SOLVER % "").replace("dim: 10 }", "dim: 30 }").replace(": 10 w", ": 30 w"))
    net, _ = prediction.open_net(str(path))
    workload = Workload(Times((0.0,) * 4, (0.0, 0.3, 0.02, 0.0), 0.0))
    imagined = prediction.Imagined(2, Link(0.0, 4e6), 3e7)
    plan, found = prediction.predict(net, workload, imagined, "auto")
    assert re.search(r"(?m)^small\[0\] .* allreduce +30 .*hidden behind backward$", plan.table())
    assert re.search(r"(?m)^large\[0\] .* sufficient_factor ", plan.table())
    as_factors = prediction.predict(net, workload, imagined, "sufficient_factor")[1]
    # Backward keeps a product of 8 samples, 16 ms; one of 16 would take 32 after it, of which 8.8
    # pass while the first weight's factors are on the wire.
    assert as_factors.total - found.total == pytest.approx((32 - 8.8 - 16) * 1e-3)
    net.close()


@pytest.mark.parametrize(("per_message", "kib"), [(0.0, 64), (5e-3, 1024)])
def test_messages_that_slow_computing_down_are_few(net, monkeypatch, per_message, kib):
    """All 434 KiB go together if that costs less than more messages."""
    contention = Contention(per_message=per_message)
    monkeypatch.setattr("pycaffe_dist.planning.search.contention_of", lambda cluster: contention)
    workload = Workload(Times((0.0,) * 4, (0.0, 0.01, 0.1, 0.0), 0.0))
    plan, _ = prediction.predict(net, workload, prediction.Imagined(2, Link(0.0, 1e9), 1e6), "auto")
    assert plan.table().endswith(f"together up to {kib} KiB")


def test_the_curve_ends_at_the_ranks_that_were_asked_for(net, solver):
    times = prediction.read_times(str(solver.parent / "times"), net)
    imagined = prediction.Imagined(6, Link(0.0, 1e7), 8e9)
    found = prediction.forecast(net, Workload(times), imagined, "allreduce")
    assert [speed.ranks for speed in found.speeds] == [1, 2, 4, 6]
    alone, two = (speed.iteration for speed in found.speeds[:2])
    assert (alone.total, alone.wire) == (pytest.approx(9.1101e-3), 0)
    assert two.total == pytest.approx(8e-3 + 44.404e-3 + 1e-3)
    plan, curve = found.table().split("\n\n")
    assert plan.startswith("Exchange plan for 6 ranks on 6 hosts (latency 0 us, 10 MB/s):")
    heading, first, second, *_ = curve.splitlines()
    assert heading.split()[-2:] == ["speed-up", "efficiency"]
    assert first.split()[-3:] == ["1.00", "100", "%"]
    assert float(second.split()[-3]) == pytest.approx(2 * 9.1101 / 53.404, abs=0.005)


def test_layers_are_timed(net):
    from pycaffe_dist.schema import caffe_pb2

    param = caffe_pb2.SolverParameter(type="SGD")
    times = prediction.measure_times(net, param, 2)
    assert len(times.forward) == len(times.backward) == len(net.nodes)
    assert times.forward[1] > 0 and times.backward[1] > 0 and times.update > 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("larg 1 2", r"times:1: the net has no layer 'larg'; did you mean 'large'"),
        ("large 1", r"times:1: expected LAYER FORWARD_MS BACKWARD_MS"),
        ("large 1 fast", r"times:1: expected LAYER"),
    ],
)
def test_a_wrong_line_of_times_is_named(net, tmp_path, line, message):
    (tmp_path / "times").write_text(line)
    with pytest.raises(UsageError, match=message):
        prediction.read_times(str(tmp_path / "times"), net)


def test_the_command_prints_plan_and_curve(solver, capsys):
    flags = [f"--solver={solver}", "--ranks=8", "--bandwidth=1", "--latency=20", "--iterations=1"]
    assert main(["plan", *flags]) == 0
    plan, curve = capsys.readouterr().out.split("\n\n")
    assert "8 ranks on 8 hosts (latency 20 us, 125 MB/s" in plan
    assert [line.split()[0] for line in curve.splitlines()] == ["ranks", "1", "2", "4", "8"]
    assert main(["plan", *flags, "--json", "--minloglevel=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [speed["ranks"] for speed in found["speeds"]] == [1, 2, 4, 8]
    assert {row["key"] for row in found["plan"]["rows"]} >= {"large[0]", "small[1]"}


def test_accumulated_gradients_go_as_gradients(tmp_path, capsys):
    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER % "iter_size: 2")
    assert main(["plan", f"--solver={path}", "--gflops=10", "--iterations=1"]) == 0
    assert "2 passes (iter_size)" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--ranks=0", "--bandwidth=0", "--latency=-1", "--gflops=-1"])
def test_impossible_clusters_are_refused(solver, capsys, flag):
    assert main(["plan", f"--solver={solver}", flag]) == WRONG_INPUT
    assert flag.split("=")[0] in capsys.readouterr().err
