#!/usr/bin/env python3
"""Caffe's upgrade_net_proto_binary: the same as `pcaffe upgrade_net_proto_binary`."""

import sys

from pycaffe_dist.cli.upgrade_net_proto_binary import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
