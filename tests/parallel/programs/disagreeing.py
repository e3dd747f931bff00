"""Usage: disagreeing.py HOW: the ranks' nets differ, or a gradient is announced wrongly."""

from __future__ import annotations

import sys

from fake_parameters import parameters

from pycaffe_dist.runtime.cluster import detect
from pycaffe_dist.runtime.engine import make_engine


def main(how: str) -> None:
    with detect() as cluster:
        engine = make_engine(cluster)
        shapes = [(4, 3), (4,), (2,)]
        if how == "shape" and cluster.rank == 1:
            shapes[1] = (5,)
        if how == "count" and cluster.rank == 1:
            shapes.append((1,))
        nets = parameters(shapes)
        engine.start(nets)
        for parameter in nets:
            engine.gradient_ready(parameter)
        if how == "twice":
            engine.gradient_ready(nets[0])
        for parameter in nets:
            engine.wait(parameter)
        if how == "missing":
            engine.gradient_ready(nets[0])
            engine.wait(nets[0])


main(sys.argv[1])
