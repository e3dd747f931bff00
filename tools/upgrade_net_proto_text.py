#!/usr/bin/env python3
"""Caffe's upgrade_net_proto_text: the same as `pcaffe upgrade_net_proto_text`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["upgrade_net_proto_text", *sys.argv[1:]]))
