"""pcaffe's side of inference.py: runs a deploy net, in its own process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cpu_ours import layer_times
from inference_serving import serve
from peak_memory import peak_memory

import pycaffe_dist as caffe
from pycaffe_dist.kernels.filling import clear
from pycaffe_dist.layers import layer_types
from pycaffe_dist.threads import set_threads


def main() -> None:
    """Serve the net in the folder of the command line, with all blobs or only its outputs."""
    folder, batch, threads, kept = sys.argv[1:]
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    set_threads(int(threads))
    layer_types()
    clear(np.zeros(1, np.float32))  # loads the rest of the compiler, which the net does not own
    x = np.load(Path(folder) / f"{batch}.npy")
    before = peak_memory()
    files = str(Path(folder) / f"{batch}.prototxt"), str(Path(folder) / "net.caffemodel")
    more = {
        "keep_blobs": kept == "all",
        "precision": "bfloat16" if kept == "bfloat16" else "float32",
    }
    net = caffe.Net(files[0], caffe.TEST, weights=files[1], **more)
    name, output = net.inputs[0], net.outputs[0]

    def forward() -> np.ndarray:
        return net.forward(**{name: x})[output]

    def other(line: str) -> Any:
        return layer_times(net._net, forward, int(line.split()[1]))

    serve(before, forward, other)


if __name__ == "__main__":
    main()
