"""Emulates hosts by network namespaces of this machine, on a switch, with links of a given rate."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
PREFIX = "pcaffe-lab"
SUBNET = "10.87.0"
NAMES = Path("/etc/netns")
# The size of a packet buffer: small ones shape short messages accurately, large ones need less
# processor time, which limits fast links here.
SMALL_BYTES, LARGE_BYTES, FAST_GBITS = 16 << 10, 64 << 10, 2.0
QUEUE_BYTES = 4 << 20
MPIRUN = (
    "--allow-run-as-root --bind-to none --map-by slot --prtemca prte_if_include link0 "
    "--mca btl_tcp_if_include link0 --mca pml ob1 --mca btl self,sm,tcp --mca osc ^ucx"
)


def missing() -> str:
    """Return why there can be no emulated network here; empty if there can."""
    if os.geteuid() != 0:
        return "emulated networks need root"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"emulated networks need the program '{tool}'"
    tried = subprocess.run(["ip", "netns", "add", f"{PREFIX}-try"], capture_output=True, text=True)
    if tried.returncode:
        return f"this machine allows no network namespaces: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"{PREFIX}-try"], check=True)
    return ""


def bits(rate: str) -> float:
    """Return the bits per second of a rate such as "250mbit"; raises SystemExit."""
    found = re.fullmatch(r"([\d.]+)([mg])bit", rate)
    if not found:
        raise SystemExit(f"a rate is a number and mbit or gbit, not '{rate}'")
    return float(found[1]) * {"m": 1e6, "g": 1e9}[found[2]]


class Network:
    """A number of hosts, inside a ``with``; every link has ``rate`` in both directions."""

    def __init__(self, hosts: int, rate: str):
        self.hosts = [f"{PREFIX}-{number}" for number in range(1, hosts + 1)]
        self._switch = f"{PREFIX}-switch"
        self._bits = bits(rate)

    def __enter__(self) -> Network:
        self._remove()  # the hosts of a killed run
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")
        addresses = {host: self.address(number) for number, host in enumerate(self.hosts)}
        table = "".join(f"{address} {host}\n" for host, address in addresses.items())
        for number, (host, address) in enumerate(addresses.items(), 1):
            _ip("netns", "add", host)
            folder = NAMES / host
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
            port = f"port{number}"
            pair = ("type", "veth", "peer", "name", "link0", "netns", host)
            _ip("-n", self._switch, "link", "add", port, *pair)
            _ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "link0", "up")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "link0")
            self._limit(host, "link0")
            self._limit(self._switch, port)

    def _limit(self, namespace: str, device: str) -> None:
        """Limit a device's rate of sending, about one packet at a time."""
        packet = LARGE_BYTES if self._bits > FAST_GBITS * 1e9 else SMALL_BYTES
        _ip("-n", namespace, "link", "set", device, "gso_max_size", str(packet))
        bucket = ("rate", f"{self._bits:.0f}bit", "burst", f"{packet + 4096}b")
        queue = ("limit", f"{QUEUE_BYTES}b")
        _run(
            "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *bucket, *queue
        )

    def _remove(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for name in re.findall(rf"(?m)^{PREFIX}-\S+", listed.stdout):
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(NAMES / name, ignore_errors=True)
        if NAMES.is_dir() and not any(NAMES.iterdir()):
            NAMES.rmdir()

    def address(self, number: int) -> str:
        """Return the address of a host, counted from 0."""
        return f"{SUBNET}.{number + 1}"

    def mpirun(
        self, hosts: int, command: Sequence[str], environment: dict[str, str], ranks: int = 1
    ) -> str:
        """Run a command on the first ``hosts`` hosts, ``ranks`` on each; return its output.

        Raises SystemExit with the end of the output when it fails.
        """
        chosen = self.hosts[:hosts]
        listed = ",".join(f"{host}:{ranks}" for host in chosen)
        agent = ["--prtemca", "plm_ssh_agent", str(HERE / "enter_host.sh")]
        launch = ["mpirun", *MPIRUN.split(), *agent, "--host", listed]
        launch += ["-n", str(hosts * ranks), *command]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(HERE / "enter_host.sh"), chosen[0], "exec", *launch],
            env={**os.environ, "PATH": path, "OPENBLAS_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
