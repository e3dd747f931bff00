#!/usr/bin/env python3
"""Caffe's convert_imageset: the same as `pcaffe convert_imageset`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert_imageset", *sys.argv[1:]]))
