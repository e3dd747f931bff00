"""Caffe's message classes under pycaffe's name: ``from caffe.proto import caffe_pb2``."""

from pycaffe_dist.schema import caffe_pb2

__all__ = ["caffe_pb2"]
