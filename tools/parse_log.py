#!/usr/bin/env python3
"""Caffe's parse_log: the same as `pcaffe parse_log`."""

import sys

from pycaffe_dist.cli.parse_log import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
