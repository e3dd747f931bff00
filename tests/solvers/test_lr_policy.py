"""Learning-rate policies against their formulas."""

import math
from itertools import pairwise

import pytest

from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.lr_policy import LearningRate


def rates(fields: str, iterations: int = 12) -> list[float]:
    policy = LearningRate(
        text.parse(
            f"base_lr: 2 {'' if 'max_iter' in fields else 'max_iter: 10'} {fields}",
            caffe_pb2.SolverParameter(),
        )
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


def test_cosine_falls_from_base_lr_to_min_lr():
    expected = [0.5 + 1.5 * (1 + math.cos(math.pi * min(i, 10) / 10)) / 2 for i in range(12)]
    assert rates("lr_policy: 'cosine' min_lr: 0.5") == pytest.approx(expected)


def test_cosine_begins_after_the_warm_up():
    fields = "lr_policy: 'cosine' warmup_iter: 4 warmup_start_lr: 1"
    expected = [1 + i / 4 for i in range(4)]
    expected += [1 + math.cos(math.pi * i / 6) for i in range(7)] + [0]
    assert rates(fields) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ("restart_iter: 4", [0, 4, 8, 12]),
        ("restart_iter: 3 restart_mult: 2", [0, 3, 9, 21]),
        ("restart_iter: 2 warmup_iter: 3", [3, 5, 7, 9, 11, 13]),
    ],
)
def test_cosine_restarts(fields, begins):
    found = rates(f"lr_policy: 'cosine' {fields}", begins[-1])
    for begin, end in pairwise(begins):
        cycle = [1 + math.cos(math.pi * i / (end - begin)) for i in range(end - begin)]
        assert found[begin:end] == pytest.approx(cycle)


def test_onecycle_rises_and_falls():
    """The values of PyTorch's OneCycleLR for max_lr 2, total_steps 10 and pct_start 0.3."""
    turn = 0.3 * 10 - 1
    up = [2 / 25 + (2 - 2 / 25) * (1 - math.cos(math.pi * i / turn)) / 2 for i in range(3)]
    last = 2 / 25 / 1e4
    down = [
        last + (2 - last) * (1 + math.cos(math.pi * (i - turn) / (9 - turn))) / 2
        for i in range(3, 10)
    ]
    assert rates("lr_policy: 'onecycle'") == pytest.approx([*up, *down, last, last])
    assert up[2] == 2


def test_onecycle_takes_other_shares_and_divisors():
    fields = "lr_policy: 'onecycle' onecycle_rise: %s onecycle_div: 4 onecycle_final_div: 2"
    assert rates(fields % 0, 10)[::9] == pytest.approx([2, 0.25])
    found = rates(fields % 0.6, 10)
    assert (found[0], max(found), found[9]) == pytest.approx((0.5, 2, 0.25))
    assert found.index(max(found)) == 5


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


def test_a_factor_is_reached_gradually():
    param = text.parse(
        "base_lr: 2 lr_policy: 'step' gamma: 0.5 stepsize: 5 min_lr: 0.75",
        caffe_pb2.SolverParameter(),
    )
    policy = LearningRate(param, factor=3, gradually=4)
    assert [policy.at(i) for i in (0, 1, 2, 3, 4, 5, 10)] == [2, 3, 4, 5, 6, 3, 2.25]


@pytest.mark.parametrize(
    "fields, message",
    [
        ("lr_policy: 'plateau' gamma: 0.1", "needs a plateau_winsize above 0"),
        ("lr_policy: 'fixed' warmup_type: 'cubic'", "unknown warmup_type 'cubic'; known are lin"),
        ("lr_policy: 'fixed' min_lr: -1", "min_lr must be at least 0, found -1"),
        ("lr_policy: 'cosine' warmup_iter: 10", "'cosine' needs a max_iter above warmup_iter"),
        ("lr_policy: 'cosine' max_iter: 0", "or a restart_iter, found max_iter 0 and warmup"),
        ("lr_policy: 'cosine' restart_iter: -1", "needs a restart_iter of at least 0"),
        ("lr_policy: 'cosine' restart_mult: 0.5", "restart_mult of at least 1, found 0 and 0.5"),
        ("lr_policy: 'cosine' restart_mult: nan", "restart_mult of at least 1, found 0 and nan"),
        ("lr_policy: 'onecycle' max_iter: 0", "'onecycle' needs a max_iter above 0, found 0"),
        ("lr_policy: 'onecycle' warmup_iter: 3", "has its own warm-up, onecycle_rise"),
        ("lr_policy: 'onecycle' onecycle_rise: 1", "onecycle_rise must be at least 0 and below 1"),
        ("lr_policy: 'onecycle' onecycle_div: 0.5", "onecycle_div must be at least 1, found 0.5"),
    ],
)
def test_extra_fields_are_checked(fields, message):
    with pytest.raises(UsageError, match=message):
        rates(fields)
