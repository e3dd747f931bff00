"""Forward and backward of a layer under test."""

from __future__ import annotations

import numpy as np


def run(harness, seed=3):
    """Run both passes with random top diffs; return tops, bottom diffs and parameter diffs."""
    tops = harness.forward()
    give_top_diffs(harness, seed)
    propagated = harness.backward()
    diffs = [blob.diff.copy() for blob, done in zip(harness.bottom, propagated) if done]
    return tops, diffs, [blob.diff.copy() for blob in harness.layer.blobs]


def give_top_diffs(harness, seed):
    rng = np.random.default_rng(seed)
    for blob, weight in zip(harness.top, harness.layer.loss_weights):
        if harness.layer.is_loss:
            harness.weigh(blob, weight)
        else:
            blob.diff[...] = rng.standard_normal(blob.shape)
