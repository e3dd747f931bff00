#!/usr/bin/env python3
"""Caffe's convert_mnist_siamese_data: the same as `pcaffe convert_mnist_siamese_data`."""

import sys

from pycaffe_dist.cli.convert_mnist_siamese_data import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
