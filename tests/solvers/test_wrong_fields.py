"""Solver fields with values that no run can use."""

from __future__ import annotations

import pytest

from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.adam import Adam
from pycaffe_dist.solvers.lr_policy import LearningRate


def _solver(fields: str):
    return text.parse(fields, caffe_pb2.SolverParameter())


@pytest.mark.parametrize("field", ["momentum2: 3", "momentum: 1", "momentum2: nan", "momentum: -1"])
def test_adam_needs_momentums_from_0_to_below_1(field):
    with pytest.raises(UsageError, match=rf"Adam needs a {field.split(':')[0]} of at least 0"):
        Adam(_solver(f"base_lr: 0.1 {field}"), [])


@pytest.mark.parametrize(
    ("fields", "iteration"),
    [
        ('lr_policy: "inv" gamma: 10 power: -500', 3),
        ('lr_policy: "exp" gamma: 1e30', 2),
        ('lr_policy: "exp" gamma: 1e30', 200),
        ('lr_policy: "step" gamma: 1e30 stepsize: 1', 99),
        ('lr_policy: "poly" power: 0.5 max_iter: 10', 11),
        ('lr_policy: "poly" power: 1', 0),
        ('lr_policy: "fixed" base_lr: nan', 0),
        ('lr_policy: "fixed" base_lr: inf', 0),
    ],
)
def test_a_rate_that_is_not_finite_is_refused(fields, iteration):
    base = "" if "base_lr" in fields else "base_lr: 0.01 "
    with pytest.raises(UsageError, match=f"no usable learning rate for iteration {iteration}"):
        LearningRate(_solver(base + fields)).at(iteration)


def test_a_steep_sigmoid_begins_and_ends_flat():
    rate = LearningRate(_solver('base_lr: 1 lr_policy: "sigmoid" gamma: 1e30 stepsize: 10'))
    assert rate.at(0) < 1e-300
    assert rate.at(20) == 1
