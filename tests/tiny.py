"""A tiny solver, built from text, for tests."""

from __future__ import annotations

from pathlib import Path

from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 }
  data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'drop' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'drop' top: 'ip'
  inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }
"""


def tiny_param(folder: Path, fields: str = ""):
    """Return a SolverParameter whose snapshots have the prefix ``tiny`` in a folder.

    ``fields`` replace those that it has.
    """
    if "momentum" not in fields:
        fields += " momentum: 0.9"
    param = text.parse(
        f"net_param {{ {NET} }} base_lr: 0.05 lr_policy: 'fixed' max_iter: 8 "
        f"random_seed: 3 snapshot_prefix: '{folder}/tiny'",
        caffe_pb2.SolverParameter(),
    )
    param.MergeFrom(text.parse(fields, caffe_pb2.SolverParameter()))
    return param


def tiny_solver(folder: Path, fields: str = "", **options) -> Solver:
    """Return a solver of `tiny_param`."""
    return Solver(tiny_param(folder, fields), **options)
