#!/usr/bin/env python3
"""Caffe's extract_features: the same as `pcaffe extract_features`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["extract_features", *sys.argv[1:]]))
