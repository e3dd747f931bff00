#!/usr/bin/env python3
"""pcaffe's summarize: the same as `pcaffe summarize`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["summarize", *sys.argv[1:]]))
