"""Usage: drifting.py: some ranks' weights drift apart from the others', which a check finds."""

from __future__ import annotations

from fake_parameters import parameters, statistics

from pycaffe_dist.comm.cluster import detect
from pycaffe_dist.training.consistency import check_equal


def main() -> None:
    with detect() as cluster:
        weights = parameters([(300, 40), (40,), (7,)])
        running = statistics("norm", (5,))
        running.blob.data[...] = cluster.rank  # each rank has its own
        compared = [weights[0], running, *weights[1:]]
        for parameter in weights:
            parameter.blob.data[...] = 0.1
        check_equal(cluster, compared, "at first")
        print("equal", flush=True)
        if cluster.rank in (1, 3):
            weights[2 - cluster.rank // 2].blob.data[3] += 1e-8
        check_equal(cluster, compared, "after iteration 7")


main()
