#!/usr/bin/env python3
"""pcaffe's plot_log: the same as `pcaffe plot_log`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["plot_log", *sys.argv[1:]]))
