#!/usr/bin/env python3
"""pcaffe's partition_data: the same as `pcaffe partition_data`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["partition_data", *sys.argv[1:]]))
