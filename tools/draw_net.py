#!/usr/bin/env python3
"""pycaffe's draw_net.py: the same as `pcaffe draw_net`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["draw_net", *sys.argv[1:]]))
