"""PyTorch's side of inference.py: runs an exported module, in its own interpreter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from inference_serving import say, serve
from peak_memory import peak_memory


def main() -> None:
    """Serve the net in the folder of the command line."""
    folder, batch, threads, layout = sys.argv[1:]
    torch.set_num_threads(int(threads))
    x = torch.from_numpy(np.load(Path(folder) / f"{batch}.npy"))
    before = peak_memory()
    spec = importlib.util.spec_from_file_location("exported", Path(folder) / "net.py")
    assert spec is not None and spec.loader is not None
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    net = exported.load(str(Path(folder) / "net.safetensors")).eval()
    if layout != "contiguous":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if layout == "bfloat16":  # the blobs, too
        net, x = net.to(torch.bfloat16), x.to(torch.bfloat16)
    with torch.inference_mode():
        try:
            net(x)
        except NotImplementedError as error:  # some layers do not know bfloat16
            say({"error": str(error)})
            return
        serve(before, lambda: next(iter(net(x).values())).float())


if __name__ == "__main__":
    main()
