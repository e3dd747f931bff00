#!/usr/bin/env python3
"""pcaffe's compare: the same as `pcaffe compare`."""

import sys

from pycaffe_dist.cli.compare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
