#!/usr/bin/env python3
"""Caffe's convert_mnist_siamese_data: the same as `pcaffe convert_mnist_siamese_data`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert_mnist_siamese_data", *sys.argv[1:]]))
