"""Trains with a Python layer that picks the hardest examples."""

import json
import os
import time

import caffe
import h5py
import numpy as np
from caffe import layers as L

BATCH, KEEP = 16, 4


def net(rows):
    n = caffe.NetSpec()
    n.data, n.label = L.HDF5Data(source=rows, batch_size=BATCH, ntop=2)
    n.score = L.InnerProduct(n.data, num_output=3, weight_filler={"type": "xavier"})
    n.prob = L.Softmax(n.score, propagate_down=[False])
    n.hard = L.Python(
        n.prob,
        n.label,
        module="ohem_layers",
        layer="HardExamples",
        param_str=json.dumps({"keep": KEEP}),
        propagate_down=[False, False],
    )
    n.loss = L.SoftmaxWithLoss(
        n.score, n.hard, loss_param={"ignore_label": -1}, propagate_down=[True, False]
    )
    return n.to_proto()


rng = np.random.RandomState(0)
labels = rng.randint(3, size=64)
if caffe.solver_rank() == 0:
    with h5py.File("rows.h5", "w") as f:
        f["data"] = (np.eye(3)[labels] + 0.3 * rng.randn(64, 3)).astype(np.float32)
        f["label"] = labels.astype(np.float32)
    with open("rows.txt", "w") as f:
        f.write("rows.h5\n")
    with open("ohem.prototxt", "w") as f:
        f.write(str(net("rows.txt")))
    with open("ohem_solver.prototxt", "w") as f:
        f.write(
            'train_net: "ohem.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 '
            'random_seed: 1 display: 50 snapshot_prefix: "ohem"'
        )
else:
    # The other ranks wait for the files.
    while not os.path.exists("ohem_solver.prototxt"):
        time.sleep(0.05)
    time.sleep(0.5)

solver = caffe.get_solver("ohem_solver.prototxt")
losses = []
for _ in range(60):
    solver.step(1)
    losses.append(float(solver.net.blobs["loss"].data))
layer = solver.net.layers[list(solver.net._layer_names).index("hard")]
assert set(layer.kept) == {KEEP}, layer.kept
assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses
solver.net.save(f"weights_of_rank_{caffe.solver_rank()}.caffemodel")
print(f"rank {caffe.solver_rank()} of {caffe.solver_count()}: {losses[0]:.3f} -> {losses[-1]:.3f}")
