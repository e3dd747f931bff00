"""Usage: agreeing.py: every operation of a cluster; rank 0 prints what failed, or nothing."""

from __future__ import annotations

import os

import numpy as np
from fake_parameters import parameters, statistics

from pycaffe_dist.calibration.link import link_of
from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.launch import environment
from pycaffe_dist.training.engine import make_engine

# Numbers that take longer to arrive than a barrier does.
UNAWAITED = 1 << 20


def check(cluster: Cluster) -> dict[str, bool]:
    rank, size = cluster.rank, cluster.size
    last = size - 1
    weights = np.full((3, 1000), rank, np.float32)
    message = b"plan of rank %d" % rank
    tenths = np.array([0.1 * (rank + 1), 1.0])
    found = {
        "broadcast": np.all(cluster.broadcast(weights, root=last) == last),
        "broadcast_bytes": cluster.broadcast_bytes(message, last) == b"plan of rank %d" % last,
        "broadcast_bytes, empty": cluster.broadcast_bytes(b"" if rank == 0 else None) == b"",
        "sum": np.array_equal(cluster.sum(np.array([rank, 1])), [size * last // 2, size]),
        "mean": np.allclose(cluster.mean(tenths), [0.05 * (size + 1), 1]),
        "mean of a number": float(cluster.mean(float(rank))) == last / 2,
        "max": np.array_equal(cluster.max(np.array([rank, -rank])), [last, 0]),
        "hosts": len(cluster.hosts) == size and cluster.host == cluster.hosts[rank],
        "local ranks": (cluster.local_rank, cluster.local_size) == (rank, size),
        "threads": cluster.threads == max(1, len(launchers_cores()) // size),
        "link": link_of(cluster).latency > 0 and link_of(cluster).bandwidth > 0,
    }
    agreed = [cluster.agree_max(10 * i if rank == i % size else 0) for i in range(1, 5)]
    found["agree_max"] = agreed == ([0, 10, 20, 30] if size > 1 else [10, 20, 30, 40])
    found["statistics"] = mean_of_statistics(cluster)
    cluster.barrier()
    return found


def launchers_cores() -> set[int]:
    """Return the cores that mpirun may use; it may have bound the ranks to some of them."""
    return environment.cores(os.sched_getaffinity(os.getppid()))


def mean_of_statistics(cluster: Cluster) -> bool:
    """Running means become means over all ranks; parameters with a gradient do not change."""
    engine = make_engine(cluster)
    (weights,) = parameters([(5,)])
    running = [statistics("norm1", (7,)), statistics("norm2", (1,))]
    engine.start([weights, *running])
    for parameter in (weights, *running):
        parameter.blob.data[...] = cluster.rank
    engine.mean_statistics()
    for parameter in running:
        engine.wait(parameter)
    engine.finish()
    middle = (cluster.size - 1) / 2
    return bool(
        np.all(weights.blob.data == cluster.rank)
        and all(np.all(parameter.blob.data == middle) for parameter in running)
    )


def main() -> None:
    with detect() as cluster:
        found = check(cluster)
        failed = [name for name, right in found.items() if not right]
        everywhere = cluster.sum(len(failed))
        print(f"rank {cluster.rank}: {failed or 'all right'}", flush=True)
        # Nobody waits for this exchange; leaving must wait, or it would poll messages after MPI's
        # end.
        cluster.agree_max(np.zeros(UNAWAITED))
    # The cluster is closed; the failure of the others must not be lost.
    if everywhere:
        raise SystemExit(1)


main()
