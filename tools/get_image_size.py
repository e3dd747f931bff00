#!/usr/bin/env python3
"""SSD's get_image_size: the same as `pcaffe get_image_size`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["get_image_size", *sys.argv[1:]]))
