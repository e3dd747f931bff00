"""Counts what one training iteration gives a GPU to do: launches, calls of libraries, bytes.

    python benchmarks/gpu_traffic.py --net ResNet-50 --work

Without a GPU: a dry run notes the work and does none of it.  With --gpu the work is done, and only
functions of NumPy are not seen.  Bytes are read and written as if no cache kept anything; those
of cuDNN are its arrays', each once.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from cpu_ours import make_solver
from gpu import GPU_NETS

from pycaffe_dist.gpu.trace import DryGPU, Work

HERE = Path(__file__).parent
KINDS = ("kernel", "product", "library", "array", "copy")


def trace(name: str, gpu: Any, models: Path = HERE.parent / "models") -> list[Work]:
    """Return the work of one iteration of a net, not its first, on a traced GPU."""
    solver = make_solver(GPU_NETS[name], models, gpu, cuda_graph=False)
    solver.step(2)
    gpu.work.clear()
    solver.step(1)
    solver.close()
    return list(gpu.work)


def pretend_cudnn() -> None:
    """Put a front end of cuDNN in place that accepts every graph and computes nothing."""
    front_end = MagicMock(name="cudnn", __version__="none")
    front_end.backend_version.return_value = 0
    front_end.pygraph.return_value.get_workspace_size.return_value = 0
    sys.modules["cudnn"] = front_end


def open_traced(on_gpu: bool, has_cudnn: bool) -> Any:
    """Return a new traced GPU: the first real one, or a dry run."""
    if not on_gpu:
        return DryGPU(has_cudnn)
    from pycaffe_dist.gpu.real import RealGPU
    from pycaffe_dist.gpu.trace import Traced

    class TracedGPU(Traced, RealGPU):
        pass

    return TracedGPU(0)


def print_work(work: list[Work]) -> None:
    """Print each name with its number and its bytes, the most bytes first."""
    count = Counter((each.kind, each.name) for each in work)
    moved: Counter[tuple[str, str]] = Counter()
    for each in work:
        moved[each.kind, each.name] += each.nbytes
    for key, total in moved.most_common():
        print(f"    {key[0]:9}{key[1]:28}{count[key]:6}{total / 1e9:10.3f}")


def main() -> None:
    """Print a line for each net of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=GPU_NETS, action="append", help="only this one")
    parser.add_argument("--work", action="store_true", help="list kernels and calls by name")
    parser.add_argument("--gpu", action="store_true", help="use a real GPU")
    parser.add_argument(
        "--no-cudnn", action="store_true", help="in a dry run, convolve with our own kernels"
    )
    args = parser.parse_args()
    has_cudnn = not args.no_cudnn
    if has_cudnn and not args.gpu:
        pretend_cudnn()
    print(f"{'net':18}{'batch':>6}" + "".join(f"{kind:>9}" for kind in KINDS) + f"{'GB':>10}")
    for name in args.net or GPU_NETS:
        work = trace(name, open_traced(args.gpu, has_cudnn))
        count = Counter(each.kind for each in work)
        gigabytes = sum(each.nbytes for each in work) / 1e9
        line = f"{name:18}{GPU_NETS[name].batch:6}" + "".join(f"{count[kind]:9}" for kind in KINDS)
        print(f"{line}{gigabytes:10.3f}", flush=True)
        if args.work:
            print_work(work)


if __name__ == "__main__":
    main()
