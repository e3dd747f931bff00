"""Online hard example mining: the loss counts the hardest examples of each batch only."""

import json

import caffe
import numpy as np


class HardExamples(caffe.Layer):
    """Bottoms: probabilities and labels; top: labels, -1 for all but the hardest ``keep``."""

    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception("Need probabilities and labels.")
        self.keep = json.loads(self.param_str)["keep"]
        self.kept = []

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[1].shape)

    def forward(self, bottom, top):
        prob, label = bottom[0].data, bottom[1].data.astype(int)
        loss = -np.log(np.maximum(prob[np.arange(len(label)), label], 1e-9))
        hard = np.argsort(-loss, kind="stable")[: self.keep]
        top[0].data[...] = -1
        top[0].data[hard] = label[hard]
        self.kept.append(len(hard))

    def backward(self, top, propagate_down, bottom):
        pass


class FailsOnRankOne(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        if caffe.solver_rank() == 1:
            raise KeyError("no such record")
