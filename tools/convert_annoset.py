#!/usr/bin/env python3
"""SSD's convert_annoset: the same as `pcaffe convert_annoset`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert_annoset", *sys.argv[1:]]))
