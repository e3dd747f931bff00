#!/usr/bin/env python3
"""Caffe's convert_imageset: the same as `pcaffe convert_imageset`."""

import sys

from pycaffe_dist.cli.convert_imageset import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
