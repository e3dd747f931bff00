"""One rank computes the gradients of large inner products during the update: no visible change."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver, local_engine

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 5 dim: 7 } shape { dim: 5 dim: 3 }
  data_filler { type: 'gaussian' } data_filler { type: 'gaussian' } } }
layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'
  inner_product_param { num_output: 11 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'a' top: 'a' }
layer { name: 'b' type: 'InnerProduct' bottom: 'a' top: 'b'
  inner_product_param { num_output: 11 transpose: true weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'b' top: 'tanh' }
layer { name: 's' type: 'InnerProduct' bottom: 'tanh' top: 's' param { name: 'w' }
  inner_product_param { num_output: 11 bias_term: false weight_filler { type: 'xavier' } } }
layer { name: 't' type: 'InnerProduct' bottom: 's' top: 't' param { name: 'w' }
  inner_product_param { num_output: 11 bias_term: false weight_filler { type: 'xavier' } } }
layer { name: 'c' type: 'InnerProduct' bottom: 't' top: 'c'
  inner_product_param { num_output: 3 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'c' bottom: 'y' top: 'loss' }
"""
SPARED = {"a[0]", "b[0]", "c[0]"}


def make_solver(fields: str = "", **options) -> Solver:
    param = text.parse(
        f"net_param {{ {NET} }} base_lr: 0.01 momentum: 0.9 weight_decay: 0.01 lr_policy: 'fixed' "
        f"max_iter: 9 random_seed: 3 {fields}",
        caffe_pb2.SolverParameter(),
    )
    return Solver(param, **options)


def spared(solver: Solver) -> set[str]:
    return set(solver.engine.factored)


def weights(solver: Solver) -> list[np.ndarray]:
    return [parameter.blob.data.copy() for parameter in solver.net.parameters]


def expected(monkeypatch, fields: str = "") -> list[np.ndarray]:
    """Return the weights of a run in which backward makes all gradients."""
    monkeypatch.setattr(local_engine, "_LEAST_BYTES", 1 << 40)
    solver = make_solver(fields)
    solver.step(4)
    assert not spared(solver)
    monkeypatch.setattr(local_engine, "_LEAST_BYTES", 1)
    return weights(solver)


def assert_close(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "fields",
    [
        "",
        "clip_gradients: 0.1",
        "debug_info: true display: 2",
        "larc_policy: 'clip'",
        "type: 'Adam'",
    ],
)
def test_weights_equal_those_with_all_products_in_backward(monkeypatch, fields):
    wanted = expected(monkeypatch, fields)
    solver = make_solver(fields)
    solver.step(4)
    assert spared(solver) == SPARED
    assert_close(weights(solver), wanted)


def test_several_passes_are_summed_in_backward(monkeypatch):
    wanted = expected(monkeypatch, "iter_size: 2")
    solver = make_solver("iter_size: 2")
    solver.step(4)
    assert not spared(solver)
    assert_close(weights(solver), wanted)


def test_a_callback_sees_the_gradients(monkeypatch):
    found: dict[float, list[np.ndarray]] = {}
    for least in (1, 1 << 40):
        monkeypatch.setattr(local_engine, "_LEAST_BYTES", least)
        solver = make_solver()
        found[least] = []
        solver.callbacks.after_gradients.append(
            lambda solver, of=found[least]: of.extend(
                parameter.blob.diff.copy() for parameter in solver.net.parameters
            )
        )
        solver.step(2)
    assert_close(*found.values())


def test_a_loop_by_hand_after_steps_and_before_them(monkeypatch):
    wanted = expected(monkeypatch)
    solver = make_solver(keep_diffs=True)
    solver.step(1)
    assert spared(solver) == SPARED
    for _ in range(2):
        solver.net.clear_parameter_diffs()
        solver.net.forward()
        solver.net.backward()
        solver.apply_update()
        assert not spared(solver)
    solver.step(1)
    assert spared(solver) == SPARED
    assert_close(weights(solver), wanted)
    solver.close()
    assert not spared(solver)
