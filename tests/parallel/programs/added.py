"""Usage: added.py FOLDER EXCHANGE SPECIFICATION: compares the means of an exchange in FOLDER."""

from __future__ import annotations

import sys

import numpy as np

import pycaffe_dist.exchange
from pycaffe_dist.comm.cluster import detect
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.launch import environment


def main(folder: str, *exchanges: str) -> None:
    # Before anything looks for exchanges.
    pycaffe_dist.exchange.__path__.append(folder)
    from exchange_cases import CASES, HOSTS
    from exchanging import Lag, means

    ranks = environment.find().size
    with detect(ClusterSettings(hosts=HOSTS[ranks])) as cluster:
        found = {}
        for exchange in exchanges:
            found |= means(cluster, Lag(0, cluster.rank), exchange, ())
        for name, case in CASES.items():
            for number, (_, size, count) in enumerate(case.means(ranks, 0)):
                one, other = (found[f"{exchange}/{name}/0/{number}"] for exchange in exchanges)
                bound = 2 * np.finfo(case.dtype).eps * (count + 1) * size
                assert np.all(np.abs(one - other) <= bound), (name, number)
        print("agree")


main(*sys.argv[1:])
