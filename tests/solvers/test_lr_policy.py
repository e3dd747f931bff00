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
            "lr_policy: 'multifixed' stagelr: 3 stageiter: 4 stagelr: 1 stageiter: 8",
            lambda i: 3 if i <= 4 else 1,
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


@pytest.mark.parametrize("fields", ["", "stagelr: 1", "stagelr: 1 stageiter: 2 stageiter: 3"])
def test_multifixed_needs_a_last_iteration_for_each_rate(fields):
    with pytest.raises(UsageError, match="'multifixed' needs a stageiter for each stagelr"):
        rates(f"lr_policy: 'multifixed' {fields}")


def test_the_error_of_an_unknown_policy_names_the_nearest():
    with pytest.raises(UsageError, match="unknown lr_policy 'multstep'; did you mean 'multistep'"):
        rates("lr_policy: 'multstep'")


def test_the_error_of_a_missing_policy_lists_the_known_ones():
    with pytest.raises(UsageError, match="the solver has no lr_policy; known are fixed, step"):
        rates("lr_policy: ''")


@pytest.mark.parametrize(("kind", "power"), [("linear", 1), ("quadratic", 2)])
def test_warm_up_rises_to_the_policys_rate(kind, power):
    fields = "lr_policy: 'step' gamma: 0.5 stepsize: 3 warmup_iter: 5 warmup_start_lr: 0.5"
    policy = [2 * 0.5 ** (i // 3) for i in range(12)]
    warm = [0.5 + (policy[i] - 0.5) * (i / 5) ** power for i in range(5)]
    assert rates(f"{fields} warmup_type: '{kind}'") == pytest.approx(warm + policy[5:])


def test_min_lr_is_a_floor_but_not_for_the_warm_up():
    found = rates("lr_policy: 'exp' gamma: 0.5 min_lr: 0.3 warmup_iter: 2", 6)
    assert found == pytest.approx([0, 0.5 * (2 * 0.5), 0.5, 0.3, 0.3, 0.3])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (
            [5, 4, 4, 4, 3, 3, 9, 3, 3, 3, 3],
            [1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01],
        ),
        # The second window is counted from the first drop.
        ([5, 5, 5, 5, 5, 5, 5], [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
    ],
)
def test_plateau_drops_when_the_loss_has_no_new_minimum(losses, expected):
    param = text.parse(
        "base_lr: 1 gamma: 0.1 lr_policy: 'plateau' plateau_winsize: 2 plateau_winsize: 3",
        caffe_pb2.SolverParameter(),
    )
    policy = LearningRate(param)
    for iteration, (loss, rate) in enumerate(zip(losses, expected)):
        # The policy depends only on values that a snapshot keeps.
        again = LearningRate(param)
        again.set_state(policy.state())
        assert policy.at(iteration, loss) == pytest.approx(rate)
        assert again.at(iteration, loss) == pytest.approx(rate)


@pytest.mark.parametrize(
    "fields, message",
    [
        ("lr_policy: 'plateau' gamma: 0.1", "needs a plateau_winsize above 0"),
        ("lr_policy: 'fixed' warmup_type: 'cubic'", "unknown warmup_type 'cubic'; known are lin"),
        ("lr_policy: 'fixed' min_lr: -1", "min_lr must be at least 0, found -1"),
    ],
)
def test_extra_fields_are_checked(fields, message):
    with pytest.raises(UsageError, match=message):
        rates(fields)
