"""``python -m pycaffe_dist`` is ``pcaffe``."""

import sys

from pycaffe_dist.cli.main import main

sys.exit(main())
