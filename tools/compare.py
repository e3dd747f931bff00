#!/usr/bin/env python3
"""pcaffe's compare: the same as `pcaffe compare`."""

import sys

from pycaffe_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
