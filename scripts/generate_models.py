"""Write the prototxts of the published nets to models/.

usage: python scripts/generate_models.py [FOLDER]

They have the published layer names, shapes and hyper-parameters, so that published weights load.
The files are committed: run this after a change to scripts/zoo.  LeNet and the two nets for
CIFAR-10 without sigmoids are written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zoo import imagenet_files, small
from zoo.builder import as_text

MODELS = Path(__file__).resolve().parent.parent / "models"


def main(folder: Path) -> None:
    """Write all files below ``folder``."""
    for name, (comment, message) in (imagenet_files.files() | small.files()).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {comment}  Made by scripts/generate_models.py.\n{as_text(message)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODELS)
