#!/usr/bin/env python3
"""pycaffe's draw_net.py: the same as `pcaffe draw_net`."""

import sys

from pycaffe_dist.cli.draw_net import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
