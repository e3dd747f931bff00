#!/usr/bin/env python3
"""Caffe's resize_and_crop_images: the same as `pcaffe resize_and_crop_images`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["resize_and_crop_images", *sys.argv[1:]]))
