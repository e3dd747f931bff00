#!/usr/bin/env python3
"""Caffe's convert_cifar_data: the same as `pcaffe convert_cifar_data`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert_cifar_data", *sys.argv[1:]]))
