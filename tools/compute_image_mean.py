#!/usr/bin/env python3
"""Caffe's compute_image_mean: the same as `pcaffe compute_image_mean`."""

import sys

from pycaffe_dist.cli.compute_image_mean import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
