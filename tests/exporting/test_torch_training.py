"""A training goes on in PyTorch, if it is installed, with equal losses."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

import pycaffe_dist as caffe
from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting import export_net
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.lr_policy import LearningRate

NET = """
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 8 dim: 2 dim: 6 dim: 6 } shape { dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  param { name: "w" lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "again" type: "Convolution" bottom: "conv" top: "again"
  param { name: "w" lr_mult: 1 }
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "again" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
  loss_weight: 0.5 }
"""
ITERATIONS = 20
SOLVERS = {
    "SGD": 'momentum: 0.9 base_lr: 0.05 lr_policy: "step" gamma: 0.5 stepsize: 7',
    "Nesterov": 'momentum: 0.9 base_lr: 0.05 lr_policy: "inv" gamma: 0.01 power: 0.75',
    "AdaGrad": 'base_lr: 0.05 lr_policy: "fixed" delta: 1e-6',
    "RMSProp": 'base_lr: 0.01 lr_policy: "poly" max_iter: 30 power: 2 rms_decay: 0.9 delta: 1e-6',
    "AdaDelta": 'momentum: 0.95 base_lr: 1 lr_policy: "multistep" stepvalue: 5 gamma: 0.5'
    " delta: 1e-6",
    "Adam": 'momentum: 0.9 momentum2: 0.999 base_lr: 0.01 lr_policy: "exp" gamma: 0.95'
    " clip_gradients: 0.5",
    "AdamW": 'base_lr: 0.01 lr_policy: "cosine" max_iter: 18 warmup_iter: 3 min_lr: 0.001'
    " clip_gradients: 0.5",
    "Lion": 'momentum2: 0.95 base_lr: 0.003 lr_policy: "onecycle" max_iter: 16',
}
RATES = [
    'lr_policy: "cosine" restart_iter: 4 restart_mult: 2 min_lr: 0.01',
    'lr_policy: "cosine" restart_iter: 6',
    'lr_policy: "cosine" max_iter: 30 warmup_iter: 5 warmup_start_lr: 0.1 warmup_type: "quadratic"',
    'lr_policy: "onecycle" max_iter: 30 onecycle_rise: 0.2 onecycle_div: 10',
    'lr_policy: "onecycle" max_iter: 30 onecycle_rise: 0 onecycle_final_div: 3',
    'lr_policy: "multistep" stepvalue: 3 stepvalue: 20 gamma: 0.3 warmup_iter: 5',
]


@pytest.mark.parametrize(
    "fields, what",
    [
        ('lr_policy: "plateau"', "lr_policy 'plateau'"),
        ('lr_policy: "multifixed"', "lr_policy 'multifixed'"),
        ('lr_policy: "fixed" larc_policy: "clip"', "larc_policy 'clip'"),
        ('type: "AdamW" lr_policy: "fixed" regularization_type: "L1"', "with AdamW, 'L1'"),
    ],
)
def test_updates_that_cannot_be_expressed_are_refused(tmp_path, fields, what):
    (tmp_path / "net.prototxt").write_text(NET)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    message = text_format.Parse(fields, caffe_pb2.SolverParameter(base_lr=1))
    with pytest.raises(NetError, match=f"{what} cannot be expressed in PyTorch"):
        export_net(net._net, str(tmp_path / "net.py"), "torch", Options(solver=message))
    assert not (tmp_path / "net.py").exists()


@pytest.mark.parametrize("fields", RATES)
def test_rates_are_equal(tmp_path, fields):
    pytest.importorskip("torch")
    (tmp_path / "net.prototxt").write_text(NET)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    message = text_format.Parse(f"base_lr: 0.25 {fields}", caffe_pb2.SolverParameter())
    export_net(net._net, str(tmp_path / "net.py"), "torch", Options(solver=message))
    namespace = {"__name__": "net"}
    exec((tmp_path / "net.py").read_text(), namespace)
    ours = LearningRate(message)
    for iteration in range(35):
        expected = pytest.approx(ours.at(iteration), rel=1e-6)
        assert 0.25 * namespace["rate"](iteration) == expected


@pytest.mark.parametrize("method", SOLVERS)
def test_losses_are_equal_over_20_iterations(tmp_path, method):
    torch = pytest.importorskip("torch")
    (tmp_path / "net.prototxt").write_text(NET)
    text = f'{SOLVERS[method]} type: "{method}" weight_decay: 0.01 random_seed: 1'
    (tmp_path / "solver.prototxt").write_text(
        f'{text} train_net: "{tmp_path}/net.prototxt" snapshot_prefix: "{tmp_path}/x"'
    )
    solver = caffe.get_solver(str(tmp_path / "solver.prototxt"))
    message = text_format.Parse(text, caffe_pb2.SolverParameter())
    export_net(solver.net._net, str(tmp_path / "net.py"), "torch", Options(solver=message))
    namespace = {"__name__": "net", "__file__": str(tmp_path / "net.py")}
    exec((tmp_path / "net.py").read_text(), namespace)
    net = namespace["load"]()
    optimizer = namespace["optimizer"](net.train())
    schedule = namespace["schedule"](optimizer)
    rng = np.random.default_rng(0)
    for _ in range(ITERATIONS):
        data = rng.standard_normal((8, 2, 6, 6), np.float32)
        label = rng.integers(0, 3, 8).astype(np.float32)
        solver.net.blobs["data"].data[...], solver.net.blobs["label"].data[...] = data, label
        solver.step(1)
        optimizer.zero_grad()
        outputs = net(torch.tensor(data), torch.tensor(label))
        net.total_loss(outputs).backward()
        optimizer.step()
        schedule.step()
        np.testing.assert_allclose(
            float(outputs["loss"].detach()), float(solver.net.blobs["loss"].data), rtol=1e-4
        )
