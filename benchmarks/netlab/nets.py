"""The nets that exchanges.py trains, as solvers of pcaffe; ddp.py makes them in PyTorch."""

from __future__ import annotations

# Constant data: the kernels' times do not depend on it, and no rank spends time on reading.
DATA = """
layer { name: 'data' type: 'DummyData' top: 'data' top: 'label' dummy_data_param {
  shape { %s } data_filler { type: 'constant' value: 0.5 }
  shape { dim: %d } data_filler { type: 'constant' value: 0 } } }
"""
INNER_PRODUCT = """
layer { name: '%s' type: 'InnerProduct' bottom: '%s' top: '%s'
  inner_product_param { num_output: %d weight_filler { type: 'xavier' } } }
"""
RELU = "layer { name: 'relu_%s' type: 'ReLU' bottom: '%s' top: '%s' }\n"
CONVOLUTION = """
layer { name: '%s' type: 'Convolution' bottom: '%s' top: '%s' convolution_param {
  num_output: %d pad: 2 kernel_size: 5 weight_filler { type: 'gaussian' std: 0.01 } } }
"""
POOLING = """
layer { name: '%s' type: 'Pooling' bottom: '%s' top: '%s'
  pooling_param { pool: %s kernel_size: 3 stride: 2 } }
"""
LOSS = "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: '%s' bottom: 'label' top: 'loss' }\n"
SOLVER = """
base_lr: 0.001 momentum: %g weight_decay: %g lr_policy: 'fixed' max_iter: 1000000
random_seed: 1 display: 0 snapshot_after_train: false net_param { %s }
"""


def inner_products(batch: int, widths: tuple[int, ...]) -> str:
    """Return inner products of these widths, with rectifiers between."""
    inputs, *outputs = widths
    text = DATA % (f"dim: {batch} dim: {inputs}", batch)
    bottom = "data"
    for number, width in enumerate(outputs, 6):
        name = f"fc{number}"
        text += INNER_PRODUCT % (name, bottom, name, width)
        if number - 5 < len(outputs):
            text += RELU % (name, name, name)
        bottom = name
    return text + LOSS % bottom


def cifar10_quick(batch: int) -> str:
    """Return Caffe's CIFAR-10 quick."""
    text = DATA % (f"dim: {batch} dim: 3 dim: 32 dim: 32", batch)
    text += CONVOLUTION % ("conv1", "data", "conv1", 32)
    text += POOLING % ("pool1", "conv1", "pool1", "MAX")
    text += RELU % ("pool1", "pool1", "pool1")
    for number, outputs in ((2, 32), (3, 64)):
        conv, pool = f"conv{number}", f"pool{number}"
        text += CONVOLUTION % (conv, f"pool{number - 1}", conv, outputs)
        text += RELU % (conv, conv, conv)
        text += POOLING % (pool, conv, pool, "AVE")
    text += INNER_PRODUCT % ("ip1", "pool3", "ip1", 64)
    return text + INNER_PRODUCT % ("ip2", "ip1", "ip2", 10) + LOSS % "ip2"


# Batch and widths.  fc6-fc8 are CaffeNet's with 4096 inputs in place of 9216: 151 MB of weights.
INNER_PRODUCTS = {
    "fc6-fc8": (32, (4096, 4096, 4096, 1000)),
    "plain_fc": (32, (3072, 4096, 4096, 10)),
}
CIFAR_BATCH = 100
# Momentum and weight decay.  Without, PyTorch has no history; ours has, for Caffe's snapshots.
CAFFE, PLAIN = (0.9, 0.0005), (0.0, 0.0)
UPDATES = {"fc6-fc8": CAFFE, "plain_fc": PLAIN, "cifar10_quick": CAFFE}


def solver(name: str) -> str:
    """Return the solver of a net as text."""
    if name in INNER_PRODUCTS:
        net = inner_products(*INNER_PRODUCTS[name])
    else:
        net = cifar10_quick(CIFAR_BATCH)
    return SOLVER % (*UPDATES[name], net)
