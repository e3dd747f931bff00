#!/usr/bin/env python3
"""Caffe's parse_log: the same as `pcaffe parse_log`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["parse_log", *sys.argv[1:]]))
