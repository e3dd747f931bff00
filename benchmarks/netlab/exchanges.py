"""Times pcaffe's exchanges beside PyTorch's DistributedDataParallel, on emulated hosts.

Every host is a network namespace of this machine with one rank on it, and all share its cores: what
counts are ratios of times in the same column.  The ways take turns, each in processes of its own;
of every way the median over all of its iterations but the first few is shown.  "none" leaves out
the messages, and lets the ranks drift apart.

    python benchmarks/netlab/exchanges.py --rate 1gbit --rounds 3 --json exchanges.json
    TORCH_PYTHON=/path/to/python python benchmarks/netlab/exchanges.py

Needs root; says so in one line without.  TORCH_PYTHON is an interpreter with PyTorch, without which
its line is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from nets import NETS
from network import HERE, Network, missing

OURS = ("none", "naive", "allreduce", "sufficient_factor", "auto")
DDP = "PyTorch DDP"
WARM_UP = 3  # iterations; auto settles on its plan meanwhile

Times = dict[str, dict[str, list[float]]]


def has_torch(python: str) -> bool:
    """Tell whether an interpreter has PyTorch."""
    tried = [python, "-c", "import torch.distributed"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def run(network: Network, net: str, way: str, hosts: int, count: int, python: str) -> list[float]:
    """Return the seconds of ``count`` iterations after those that warm up."""
    threads = max(1, len(os.sched_getaffinity(0)) // hosts)
    environment = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    iterations = str(count + WARM_UP)
    if way == DDP:
        first = network.address(0)
        command = [python, str(HERE / "ddp.py"), net, iterations]
        environment |= {"MASTER_ADDR": first, "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "link0"}
    else:
        settings = [f"threads={threads}"]
        command = [sys.executable, str(HERE / "ours.py"), net, way, iterations, *settings]
    printed = network.mpirun(hosts, command, environment)
    found = next(line for line in printed.splitlines() if line.startswith("{"))
    return json.loads(found)["seconds"][WARM_UP:]


def table(times: Times, hosts: list[int]) -> str:
    """Return medians in milliseconds, and the ratios that say how good they are."""
    lines = [["ms", *(f"{count} hosts" for count in hosts)]]
    medians = {
        way: {count: median(by_hosts[str(count)]) for count in hosts}
        for way, by_hosts in times.items()
    }
    lines += [
        [way, *(f"{1e3 * of_way[count]:.1f}" for count in hosts)] for way, of_way in medians.items()
    ]
    single = [way for way in medians if way not in ("none", "auto", DDP)]
    best = {count: min(medians[way][count] for way in single) for count in hosts}
    lines.append(["auto / best single", *(f"{medians['auto'][n] / best[n]:.3f}" for n in hosts)])
    if DDP in medians:
        lines.append(
            [f"{DDP} / auto", *(f"{medians[DDP][n] / medians['auto'][n]:.2f}" for n in hosts)]
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="1gbit", help="of every link, e.g. 250mbit (%(default)s)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="(2 4)")
    parser.add_argument("--net", choices=NETS, action="append", help="one of them (all)")
    parser.add_argument("--way", choices=[*OURS, DDP], action="append", help="one of them (all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (%(default)s)")
    parser.add_argument("--iterations", type=int, default=5, help="of each turn (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    ways = options.way or [*OURS, DDP]
    if DDP in ways and not has_torch(python):
        print(f"{python} has no PyTorch: set TORCH_PYTHON to time it, too")
        ways.remove(DDP)
    found: dict[str, Times] = {}
    with Network(max(options.hosts), options.rate) as network:
        for net in options.net or NETS:
            times = found[net] = {way: {str(count): [] for count in options.hosts} for way in ways}
            for _ in range(options.rounds):
                for count in options.hosts:
                    for way in ways:
                        seconds = run(network, net, way, count, options.iterations, python)
                        times[way][str(count)] += seconds
            print(f"\n{net}, {options.rate}\n{table(times, options.hosts)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rate": options.rate, "seconds": found}, indent=1))


if __name__ == "__main__":
    main()
