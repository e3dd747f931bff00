#!/usr/bin/env python3
"""SSD's convert_annoset: the same as `pcaffe convert_annoset`."""

import sys

from pycaffe_dist.cli.convert_annoset import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
