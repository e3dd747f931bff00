#!/usr/bin/env python3
"""pcaffe's partition_data: the same as `pcaffe partition_data`."""

import sys

from pycaffe_dist.cli.partition_data import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
