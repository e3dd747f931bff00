"""Under pycaffe's name for them: Caffe's message classes, ``from caffe.proto import caffe_pb2``."""

from pycaffe_dist.schema import caffe_pb2

__all__ = ["caffe_pb2"]
