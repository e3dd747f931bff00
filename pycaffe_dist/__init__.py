"""pcaffe: train Caffe's nets on one machine or many."""

__version__ = "0.1.0"
