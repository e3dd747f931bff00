"""Trains a siamese net on pairs and plots its two-dimensional features."""

import sys

import matplotlib
import numpy as np

matplotlib.use("Agg")
import caffe
import matplotlib.pyplot as plt
from caffe import layers as L

CLASSES, PAIRS = 4, 400


def branch(n, bottom, suffix):
    def named(name):
        return [{"name": name + "_w", "lr_mult": 1}, {"name": name + "_b", "lr_mult": 2}]

    filler = {"type": "xavier"}
    n["ip1" + suffix] = L.InnerProduct(
        bottom, num_output=20, param=named("ip1"), weight_filler=filler
    )
    n["relu1" + suffix] = L.ReLU(n["ip1" + suffix], in_place=True)
    n["feat" + suffix] = L.InnerProduct(
        n["relu1" + suffix], num_output=2, param=named("feat"), weight_filler=filler
    )
    return n["feat" + suffix]


n = caffe.NetSpec()
n.pair_data, n.sim = L.MemoryData(batch_size=40, channels=2, height=8, width=8, ntop=2)
n.data, n.data_p = L.Slice(n.pair_data, slice_dim=1, slice_point=1, ntop=2)
n.loss = L.ContrastiveLoss(branch(n, n.data, ""), branch(n, n.data_p, "_p"), n.sim, margin=1)
with open("siamese.prototxt", "w") as f:
    f.write(str(n.to_proto()))
with open("solver.prototxt", "w") as f:
    f.write(
        'train_net: "siamese.prototxt" base_lr: 0.02 momentum: 0.9 lr_policy: "inv" gamma: 0.0001 '
        "power: 0.75 weight_decay: 0.0 max_iter: 400 random_seed: 3 display: 100 "
        'snapshot_prefix: "siamese"'
    )

rng = np.random.RandomState(0)
patterns = rng.rand(CLASSES, 8, 8)
labels = rng.randint(CLASSES, size=(PAIRS, 2))
pairs = (patterns[labels] + 0.1 * rng.randn(PAIRS, 2, 8, 8)).astype(np.float32)
same = (labels[:, 0] == labels[:, 1]).astype(np.float32)

solver = caffe.SGDSolver("solver.prototxt")
solver.net.set_input_arrays(pairs, same)
solver.step(1)
first = float(solver.net.blobs["loss"].data)
solver.solve()
print("loss", first, "->", float(solver.net.blobs["loss"].data))

n = caffe.NetSpec()
n.data = L.Input(shape={"dim": [100, 1, 8, 8]})
branch(n, n.data, "")
with open("features.prototxt", "w") as f:
    f.write(str(n.to_proto()))
net = caffe.Net("features.prototxt", "siamese_iter_400.caffemodel", caffe.TEST)
out = net.forward_all(data=pairs[:, :1])
feat = out["feat"]

f = plt.figure(figsize=(5, 5))
for i in range(CLASSES):
    own = feat[labels[:, 0] == i]
    plt.plot(own[:, 0].flatten(), own[:, 1].flatten(), ".", label=str(i))
plt.legend()
plt.grid()
plt.savefig(sys.argv[1])

centres = np.array([feat[labels[:, 0] == i].mean(axis=0) for i in range(CLASSES)])
within = max(feat[labels[:, 0] == i].std(axis=0).max() for i in range(CLASSES))
between = min(np.linalg.norm(a - b) for i, a in enumerate(centres) for b in centres[:i])
print(f"within {within:.3f} between {between:.3f}")
assert between > 4 * within
