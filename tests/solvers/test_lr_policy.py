"""Learning-rate policies against their formulas."""

import math

import pytest

from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.lr_policy import LearningRate


def rates(fields: str, iterations: int = 12) -> list[float]:
    policy = LearningRate(
        text.parse(f"base_lr: 2 max_iter: 10 {fields}", caffe_pb2.SolverParameter())
    )
    return [policy.at(i) for i in range(iterations)]


@pytest.mark.parametrize(
    ("fields", "formula"),
    [
        ("lr_policy: 'fixed'", lambda i: 2),
        ("lr_policy: 'step' gamma: 0.5 stepsize: 3", lambda i: 2 * 0.5 ** (i // 3)),
        ("lr_policy: 'exp' gamma: 0.5", lambda i: 2 * 0.5**i),
        ("lr_policy: 'inv' gamma: 0.5 power: 0.75", lambda i: 2 * (1 + 0.5 * i) ** -0.75),
        (
            "lr_policy: 'multistep' gamma: 0.5 stepvalue: 2 stepvalue: 5",
            lambda i: 2 * 0.5 ** ((i >= 2) + (i >= 5)),
        ),
        (
            "lr_policy: 'sigmoid' gamma: 0.5 stepsize: 4",
            lambda i: 2 / (1 + math.exp(-0.5 * (i - 4))),
        ),
    ],
)
def test_formula(fields, formula):
    assert rates(fields) == pytest.approx([formula(i) for i in range(12)])


def test_poly_ends_at_zero():
    assert rates("lr_policy: 'poly' power: 2", 11) == pytest.approx(
        [2 * (1 - i / 10) ** 2 for i in range(11)]
    )


def test_a_policy_without_its_field_is_refused():
    with pytest.raises(UsageError, match="'step' needs a stepsize above 0, found 0"):
        rates("lr_policy: 'step' gamma: 0.5")


def test_an_unknown_policy_is_told_the_nearest():
    with pytest.raises(UsageError, match="unknown lr_policy 'multstep'; did you mean 'multistep'"):
        rates("lr_policy: 'multstep'")
