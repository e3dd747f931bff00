"""Which layers stay in a net, by phase, level and stages."""

import pytest
from nets import parse

from pycaffe_dist.errors import NetError
from pycaffe_dist.net.rules import filter_layers, kept_layers, with_state
from pycaffe_dist.schema import caffe_pb2

RULES = """
layer { name: 'always' type: 'X' }
layer { name: 'train' type: 'X' include { phase: TRAIN } }
layer { name: 'not_test' type: 'X' exclude { phase: TEST } }
layer { name: 'level1' type: 'X' include { min_level: 1 } }
layer { name: 'upto2' type: 'X' include { max_level: 2 } }
layer { name: 'deploy' type: 'X' include { stage: 'deploy' } }
layer { name: 'both' type: 'X' include { stage: 'deploy' stage: 'fast' } }
layer { name: 'not_deploy' type: 'X' include { not_stage: 'deploy' } }
layer { name: 'either' type: 'X' include { phase: TEST } include { stage: 'deploy' } }
layer { name: 'test_and_deploy' type: 'X' include { phase: TEST stage: 'deploy' } }
"""


def kept(phase, level=0, stages=()):
    param = with_state(parse(RULES), phase, level, stages)
    return {layer.name for layer in filter_layers(param, kept_layers(param)).layer}


def test_train_without_stages():
    assert kept(caffe_pb2.TRAIN) == {"always", "train", "not_test", "upto2", "not_deploy"}


def test_test_phase():
    assert kept(caffe_pb2.TEST) == {"always", "upto2", "not_deploy", "either"}


def test_level():
    names = kept(caffe_pb2.TRAIN, level=3)
    assert "level1" in names
    assert "upto2" not in names


def test_one_of_two_stages_is_not_enough():
    names = kept(caffe_pb2.TRAIN, stages=("deploy",))
    assert {"deploy", "either"} <= names
    assert not {"both", "not_deploy", "test_and_deploy"} & names


def test_all_stages():
    names = kept(caffe_pb2.TEST, stages=("fast", "deploy"))
    assert {"both", "test_and_deploy"} <= names


def test_include_and_exclude_together_are_refused():
    param = parse("layer { name: 'x' include { phase: TEST } exclude { phase: TRAIN } }")
    with pytest.raises(NetError, match="layer 'x' has include and exclude rules"):
        kept_layers(param)
