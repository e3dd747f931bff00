"""The simulated iteration against cases worked out by hand, in seconds."""

from __future__ import annotations

import pytest

from pycaffe_dist.comm.measured import Contention
from pycaffe_dist.config import Overlap
from pycaffe_dist.planning.simulation import Transfer, Update, simulate

FORWARD, BACKWARD = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]


def near(total: float, computing: float, waiting: float, wire: float) -> object:
    return pytest.approx((total, computing, waiting, wire))


def times(*arguments, **options) -> tuple[float, ...]:
    found = simulate(FORWARD, BACKWARD, *arguments, **options)
    return found.total, found.computing, found.waiting, found.wire


def test_one_rank_only_computes():
    assert times([], [Update(2), Update(1)]) == near(24, 24, 0, 0)
    assert times([], [Update(2), Update(1)], passes=3) == near(3 * 21 + 3, 66, 0, 0)


def test_a_transfer_that_fits_behind_backward_costs_nothing():
    # Ready at 6 + 6 = 12, arrives at 12 + 7 + 1 = 20, and backward ends at 21.
    assert times([Transfer(2, 2, 7, 1)], [Update(1, (0,))]) == near(22, 22, 0, 7)


def test_messages_slow_down_the_computing_meanwhile():
    each = Contention(per_message=0.5)
    hidden = Transfer(2, 2, 7, 1, messages=2)
    # Backward of layers 1 and 0 takes 2·0.5 more.
    assert times([hidden], [Update(1, (0,))], contention=each) == near(23, 23, 0, 7)
    # A waiting rank has a free core: ready at 21, arrives at 26.
    late = Transfer(0, None, 4, 1, messages=2)
    assert times([late], [Update(1, (0,))], contention=each) == near(27, 22, 5, 4)


def test_the_iteration_waits_for_transfers_longer_than_backward():
    # Ready at 12, arrives at 12 + 10 + 1 = 23, which is 2 after the end of backward.
    assert times([Transfer(2, 2, 10, 1)], [Update(1, (0,))]) == near(24, 22, 2, 10)


def test_the_wire_carries_one_transfer_after_the_other_and_latency_overlaps():
    # The first holds the wire from 12 to 20, so the second, ready at 17, from 20 to 24; the
    # third, ready at 21, from 24 to 25.  They arrive at 23, 27 and 28.
    transfers = [Transfer(2, 2, 8, 3), Transfer(1, 1, 4, 3), Transfer(0, 0, 1, 3)]
    updates = [Update(1, (0,)), Update(1, (1,)), Update(1, (2,))]
    # 21, waits to 23, 24, waits to 27, 28, is there, 29.
    assert times(transfers, updates) == near(29, 24, 5, 13)


def test_a_transfer_that_is_ready_later_does_not_hold_up_one_that_is_ready():
    transfers = [Transfer(0, 0, 5, 0), Transfer(2, 2, 2, 0)]
    # The second leaves at 12 and arrives at 14; the first leaves at 21.
    assert times(transfers, [Update(0, (1,)), Update(0, (0,))]) == near(26, 21, 5, 7)


def test_after_backward_nothing_is_hidden():
    transfers = [Transfer(2, None, 3, 1), Transfer(0, None, 2, 1)]
    # Both are ready at 21, and arrive at 25 and 27.
    assert times(transfers, [Update(1, (0,)), Update(1, (1,))]) == near(28, 23, 5, 5)


def test_factors_save_a_product_in_backward_and_cost_a_larger_one():
    # Layer 2 takes 6 - 4 = 2: ready at 8, arrives at 10, backward ends at 17; then 4·3 of product.
    transfer = Transfer(2, 2, 2, 0, finish=12, saved=4)
    assert times([transfer], [Update(1, (0,))]) == near(30, 30, 0, 2)


def test_a_product_is_computed_while_others_are_on_the_wire():
    # The first arrives at 13; its product takes from 21 to 26, and the second arrives at 27.
    transfers = [Transfer(2, 2, 1, 0, finish=5), Transfer(0, 0, 6, 0)]
    assert times(transfers, [Update(0, (0,)), Update(0, (1,))]) == near(27, 26, 1, 7)


def test_parameters_that_travel_together_finish_once():
    transfer = Transfer(2, 2, 1, 0, finish=2)
    assert times([transfer], [Update(1, (0,)), Update(1, (0,))]) == near(25, 25, 0, 1)


def test_a_parameter_in_slices_waits_for_all_of_them():
    transfers = [Transfer(0, 0, 2, 0), Transfer(0, 0, 2, 0)]
    assert times(transfers, [Update(1, (0, 1))]) == near(26, 22, 4, 4)


def test_computing_and_messages_slow_each_other_down():
    # Layer 2 ends at 12.  From then on both go at half their rates: 8 of wire take 16, until 28,
    # in which 8 of the 9 are computed; the last one ends at 29.
    found = times(
        [Transfer(2, 2, 8, 0)], [Update(1, (0,))], contention=Contention(computing=0.5, wire=0.5)
    )
    assert found == near(30, 30, 0, 8)


def test_a_transfer_longer_than_backward_may_overlap_the_next_forward():
    # Layer 2's gradient arrives 2 after the end of backward at 21; the next forward needs it at 24.
    transfers, updates = [Transfer(2, 2, 11, 0)], [Update(1, (0,), layer=2)]
    assert times(transfers, updates) == near(24, 22, 2, 11)
    assert times(transfers, updates, overlap=Overlap.FORWARD) == near(22, 22, 0, 11)


def test_the_next_forward_waits_for_its_own_layer_only():
    # The first holds the wire from 17 to 23, and backward ends at 21.  The most urgent one is there
    # at 25, layers 0 and 1 end at 28, the other one arrives at 33: 30 from end to end of backward.
    def total(urgent: int) -> float:
        transfers = [
            Transfer(1, 1, 6, 0),
            Transfer(2, 0, 8, 0, priority=2),
            Transfer(0, 0, 2, 0, priority=urgent),
        ]
        updates = [Update(0, (0,), 1), Update(0, (1,), 2), Update(0, (2,), 0)]
        return times(transfers, updates, overlap=Overlap.FORWARD)[0]

    assert total(urgent=0) == pytest.approx(30)
    # In backward order the first layer waits until 33.
    assert total(urgent=2) == pytest.approx(33)
