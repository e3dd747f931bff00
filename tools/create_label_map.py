#!/usr/bin/env python3
"""SSD's create_label_map: the same as `pcaffe create_label_map`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["create_label_map", *sys.argv[1:]]))
