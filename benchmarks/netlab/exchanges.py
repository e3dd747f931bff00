"""Times pcaffe's exchanges and PyTorch's DistributedDataParallel, on emulated hosts.

Every host is a network namespace of this machine with one or several ranks, and all share its
cores: only ratios of times in the same column are meaningful.  The ways take turns, each in its own
processes; the median over all iterations except the first few is shown.  "none" sends no messages,
and the ranks drift apart; "alone:allreduce" only sends messages; with "late:allreduce" messages
wait for the end of backward, and the additional time was hidden.  The simulator makes the
predictions, from the times of layers in the same run.

    python benchmarks/netlab/exchanges.py --rate 1gbit --rounds 3 --json exchanges.json
    TORCH_PYTHON=/path/to/python python benchmarks/netlab/exchanges.py

Needs root; says so in one line without.  TORCH_PYTHON is an interpreter with PyTorch, without which
its line is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from nets import UPDATES
from network import HERE, Network, missing

AUTO, ALONE, LATE = "auto", "alone:allreduce", "late:allreduce"
OURS = ("none", "naive", "allreduce", "sufficient_factor", AUTO)
SPECIAL = ("hierarchical", ALONE, LATE)
DDP = "PyTorch DDP"
WARM_UP = 3  # iterations; auto settles on its plan in these and more that are not told


@dataclass
class Found:
    """Seconds of a way on a number of hosts: of iterations, and other predictions and measurements.

    ``predicted`` is the simulator's time of an iteration, ``backward`` the time of all layers.
    """

    seconds: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)

    def add(self, turn: dict[str, Any]) -> None:
        """Add a turn's iterations except the first ones, which warm up."""
        self.seconds += turn["seconds"][WARM_UP:]
        self.predicted.append(turn.get("predicted", 0.0))
        self.backward.append(turn.get("backward", 0.0))

    @property
    def median(self) -> float:
        """The median iteration."""
        return median(self.seconds)


def has_torch(python: str) -> bool:
    """Tell whether an interpreter has PyTorch."""
    tried = [python, "-c", "import torch.distributed"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def run(
    network: Network, net: str, way: str, hosts: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Return a rank's output after the warm-up and the measured iterations."""
    threads = max(1, len(os.sched_getaffinity(0)) // (hosts * options.ranks))
    environment = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    iterations = str(options.iterations + WARM_UP)
    if way == DDP:
        first = network.address(0)
        command = [options.python, str(HERE / "ddp.py"), net, iterations]
        environment |= {"MASTER_ADDR": first, "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "link0"}
    else:
        settings = [f"threads={threads}"]
        command = [sys.executable, str(HERE / "ours.py"), net, way, iterations, *settings]
    printed = network.mpirun(hosts, command, environment, options.ranks)
    found = next(line for line in printed.splitlines() if line.startswith("{"))
    return json.loads(found)


def table(ways: dict[str, dict[int, Found]], hosts: list[int]) -> str:
    """Return medians in milliseconds, and ratios that rate them."""
    lines = [["ms", *(f"{count} hosts" for count in hosts)]]

    def add(name: str, value: Callable[[int], str]) -> None:
        lines.append([name, *(value(count) for count in hosts)])

    for way, found in ways.items():
        add(way, lambda n, found=found: f"{1e3 * found[n].median:.1f}")
        if median(found[hosts[0]].predicted):
            name = f"  predicted for {way}"
            add(name, lambda n, found=found: f"{1e3 * median(found[n].predicted):.1f}")
    single = [way for way in ways if way in ("naive", "allreduce", "sufficient_factor")]
    auto = ways.get(AUTO)
    if auto and single:
        best = {n: min(ways[way][n].median for way in single) for n in hosts}
        add("auto / best single", lambda n: f"{auto[n].median / best[n]:.3f}")
    if auto and DDP in ways:
        add(f"{DDP} / auto", lambda n: f"{ways[DDP][n].median / auto[n].median:.2f}")
    if {LATE, ALONE, "allreduce"} <= set(ways):
        add("allreduce hidden behind backward", lambda n: f"{100 * hidden(ways, n):.0f} %")
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def hidden(ways: dict[str, dict[int, Found]], hosts: int) -> float:
    """Return the hidden share of the part of allreduce that could hide behind backward."""
    fits = min(ways[ALONE][hosts].median, median(ways[LATE][hosts].backward))
    return (ways[LATE][hosts].median - ways["allreduce"][hosts].median) / fits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="1gbit", help="of every link, e.g. 250mbit (%(default)s)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="(2 4)")
    parser.add_argument("--ranks", type=int, default=1, help="on every host (%(default)s)")
    parser.add_argument("--net", choices=UPDATES, action="append", help="one of them (all)")
    parser.add_argument(
        "--way",
        choices=[*OURS, *SPECIAL, DDP],
        action="append",
        help=f"one of them (all but {', '.join(SPECIAL)})",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (%(default)s)")
    parser.add_argument("--iterations", type=int, default=5, help="of each turn (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return
    options.python = os.environ.get("TORCH_PYTHON", sys.executable)
    ways = options.way or [*OURS, DDP]
    if DDP in ways and not has_torch(options.python):
        print(f"{options.python} has no PyTorch: set TORCH_PYTHON to time it, too")
        ways.remove(DDP)
    # A signal must not prevent the removal of the hosts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    nets: dict[str, dict[str, dict[int, Found]]] = {}
    with Network(max(options.hosts), options.rate) as network:
        for net in options.net or UPDATES:
            found = nets[net] = {way: {n: Found() for n in options.hosts} for way in ways}
            for _ in range(options.rounds):
                for hosts in options.hosts:
                    for way in ways:
                        turn = run(network, net, way, hosts, options)
                        found[way][hosts].add(turn)
            print(f"\n{net}, {options.rate}\n{table(found, options.hosts)}", flush=True)
    if options.json:
        plain = {
            net: {way: {n: asdict(of) for n, of in hosts.items()} for way, hosts in ways.items()}
            for net, ways in nets.items()
        }
        options.json.write_text(json.dumps({"rate": options.rate, "nets": plain}, indent=1))


if __name__ == "__main__":
    main()
