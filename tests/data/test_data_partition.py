"""Shards: P ranks together see the stream that one rank sees."""

from __future__ import annotations

import itertools

import pytest

from pycaffe_dist.data.partition import Place, Shard, continued, share
from pycaffe_dist.errors import UsageError


def _records(shard: Shard, batch: int, size: int) -> list[int]:
    first = shard.first_record(batch, size)
    return [first + i * shard.step for i in range(size)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_record_shards_together_give_one_large_batch(ranks):
    for batch in range(4):
        together = sorted(
            r for rank in range(ranks) for r in _records(Shard(rank, ranks), batch, 5)
        )
        assert together == _records(Shard(), batch, 5 * ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_share_a_batch_that_they_cannot_divide(ranks):
    shards = [Shard(rank, ranks, together=7) for rank in range(ranks)]
    for batch in range(4):
        shared = [_records(s, batch, share(7, s.rank, ranks)) for s in shards]
        assert sorted(itertools.chain(*shared)) == _records(Shard(), batch, 7)
    assert sum(shard.weight for shard in shards) == pytest.approx(ranks)


def test_a_run_goes_on_with_other_shares_at_the_first_unread_record():
    shares = [share(7, rank, 3) for rank in range(3)]
    three = [Shard(rank, 3, together=7) for rank in range(3)]
    places = [Place.of(shard, 4, size) for shard, size in zip(three, shares)]
    assert {place.next_record for place in places} == {28}
    assert continued(three[1], shares[1], places) == (three[1], 4)
    assert continued(Shard(1, 2, together=7), 3, places) == (Shard(1, 2, origin=28, together=7), 0)
    assert continued(Shard(1, 3, together=8), 3, places)[0].origin == 28


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_batch_shards_take_the_batches_in_turn(ranks):
    for number in range(9):
        shard = Shard(number % ranks, ranks, "batch")
        assert _records(shard, number // ranks, 5) == _records(Shard(), number, 5)


@pytest.mark.parametrize("arguments", [(2, 2), (-1, 2), (0, 0), (0, 1, "row")])
def test_impossible_shards_are_refused(arguments):
    with pytest.raises(UsageError, match="found"):
        Shard(*arguments)


def test_a_rank_with_its_own_part_resumes_at_the_same_record():
    """If four ranks share a data set, its record 12 is record 3 of a part."""
    assert Shard(rank=2, size=4, origin=12).alone() == Shard(rank=0, size=1, origin=3)
