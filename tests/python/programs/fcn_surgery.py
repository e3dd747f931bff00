"""Turns a classification net into a segmentation net and copies its weights."""

import caffe
import numpy as np
from caffe import layers as L
from caffe import params as P
from caffe.coord_map import crop


def features(n, size, pad=0):
    n.data = L.Input(shape={"dim": [1, 3, size, size]})
    n.conv1 = L.Convolution(
        n.data, kernel_size=3, num_output=8, pad=pad, weight_filler={"type": "xavier"}
    )
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    n.pool1 = L.Pooling(n.relu1, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    return n.pool1


def classifier():
    n = caffe.NetSpec()
    top = features(n, 14)
    n.fc6 = L.InnerProduct(top, num_output=16, weight_filler={"type": "xavier"})
    n.relu6 = L.ReLU(n.fc6, in_place=True)
    n.fc7 = L.InnerProduct(n.relu6, num_output=5, weight_filler={"type": "xavier"})
    return n.to_proto()


def segmenter(size):
    n = caffe.NetSpec()
    top = features(n, size, pad=20)
    n.fc6_conv = L.Convolution(top, kernel_size=6, num_output=16)
    n.relu6 = L.ReLU(n.fc6_conv, in_place=True)
    n.fc7_conv = L.Convolution(n.relu6, kernel_size=1, num_output=5)
    n.upscore = L.Deconvolution(
        n.fc7_conv,
        convolution_param={"num_output": 5, "kernel_size": 4, "stride": 2, "bias_term": False},
        param=[{"lr_mult": 0}],
    )
    n.score = crop(n.upscore, n.data)
    return n.to_proto()


def fill_bilinear(net, layer):
    """Let a Deconvolution layer interpolate each channel on its own."""
    weights = net.params[layer][0].data
    size = weights.shape[-1]
    tent = 1 - np.abs(np.arange(size) - (size - 1) / 2) / (size / 2)
    weights[...] = 0
    for channel in range(len(weights)):
        weights[channel, channel] = np.outer(tent, tent)


for name, proto in (("net.prototxt", classifier()), ("fcn.prototxt", segmenter(30))):
    with open(name, "w") as f:
        f.write(str(proto))

caffe.set_mode_cpu()
net = caffe.Net("net.prototxt", caffe.TEST)
net.save("net.caffemodel")
fcn = caffe.Net("fcn.prototxt", "net.caffemodel", caffe.TEST)

for fc in ("fc6", "fc7"):
    fcn.params[fc + "_conv"][0].data.flat = net.params[fc][0].data.flat
    fcn.params[fc + "_conv"][1].data[...] = net.params[fc][1].data
for layer in [name for name in fcn.params if "up" in name]:
    fill_bilinear(fcn, layer)
fcn.save("fcn.caffemodel")

image = np.random.RandomState(0).rand(3, 30, 30)
fcn.blobs["data"].data[...] = image
fcn.forward()
# The classifier's window at the image's corner is at 10, 10 of the padded map.
net.blobs["data"].data[...] = image[:, :14, :14]
np.testing.assert_allclose(
    fcn.blobs["fc7_conv"].data[0, :, 10, 10], net.forward()["fc7"][0], rtol=1e-4, atol=1e-5
)
assert fcn.blobs["score"].data.shape == (1, 5, 30, 30)
coarse, fine = fcn.blobs["fc7_conv"].data[0, 2], fcn.blobs["upscore"].data[0, 2]
np.testing.assert_allclose(
    fine[21, 21], (coarse[9:11, 9:11] * [[1, 3], [3, 9]]).sum() / 16, rtol=1e-4
)
print("segmented", fcn.blobs["score"].data[0].argmax(axis=0).shape)
