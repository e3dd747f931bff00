#!/usr/bin/env python3
"""Caffe's compute_image_mean: the same as `pcaffe compute_image_mean`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compute_image_mean", *sys.argv[1:]]))
