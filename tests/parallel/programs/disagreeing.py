"""Usage: disagreeing.py HOW: flags, solvers, nets or gradients of the ranks differ.

All ranks print how their flags, solvers or nets differ; other differences end the run.
"""

from __future__ import annotations

import sys

from fake_parameters import parameters

from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.config import TrainOptions
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.training.consistency import check_options
from pycaffe_dist.training.engine import make_engine
from pycaffe_dist.training.trainer import make_solver

SOLVER = """
base_lr: 0.01 lr_policy: "fixed" max_iter: %d net_param {
  layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 dim: 3 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param { num_output: %d } }
}
"""


def prepare(cluster: Cluster, how: str) -> None:
    """Prepare training as far as the ranks agree; raises ClusterError."""
    if how == "options":
        check_options(cluster, TrainOptions("solver", check_interval=cluster.rank))
    ours = how if cluster.rank == 1 else ""
    param = caffe_pb2.SolverParameter()
    text.parse(SOLVER % (5 if ours == "solver" else 8, 5 if ours == "net" else 4), param)
    make_solver(param, cluster, exchange="allreduce")


def main(how: str) -> None:
    with detect() as cluster:
        if how in ("options", "solver", "net"):
            try:
                prepare(cluster, how)
            except ClusterError as error:
                print(error)
            return
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
