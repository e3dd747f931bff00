"""ONNX Runtime's and OpenCV's side of inference.py: runs an ONNX file, in its own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from inference_serving import say, serve
from peak_memory import peak_memory


def onnxruntime_run(path: str, threads: int, x: np.ndarray) -> Callable[[], np.ndarray]:
    """Return a function that runs the model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})[0]


def opencv_run(path: str, threads: int, x: np.ndarray) -> Callable[[], np.ndarray]:
    """Return a function that runs the model in OpenCV's dnn."""
    import cv2

    cv2.setNumThreads(threads)
    net = cv2.dnn.readNetFromONNX(path)

    def forward() -> np.ndarray:
        net.setInput(x)
        return net.forward()

    return forward


RUNNERS = {"onnxruntime": ("onnxruntime", onnxruntime_run), "opencv": ("cv2", opencv_run)}


def main() -> None:
    """Serve the net in the folder of the command line."""
    folder, batch, threads, which = sys.argv[1:]
    module, make = RUNNERS[which]
    try:
        __import__(module)
        x = np.load(Path(folder) / f"{batch}.npy")
        before = peak_memory()
        forward = make(str(Path(folder) / "net.onnx"), int(threads), x)
        forward()
    except Exception as error:  # told, and the other frameworks go on
        say({"error": str(error).strip().splitlines()[-1]})
        return
    serve(before, forward)


if __name__ == "__main__":
    main()
