"""A process's environment names its launcher; ranks divide the cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pycaffe_dist.comm.cluster import LocalCluster, detect
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.launch import environment as launcher

VARIABLES = [*launcher._SIZE_VARIABLES, *launcher._RANK_VARIABLES, "OMPI_LIBDIR_LOC"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable in [name for name in os.environ if name.startswith("OMPI_MCA_")]:
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "1"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "16", "PMIX_RANK": "3"}, 16),
        ({"PMI_SIZE": "4"}, 4),
        ({"MV2_COMM_WORLD_SIZE": "2"}, 2),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}, 0),
        ({"PMIX_RANK": "0"}, 0),
    ],
)
def test_launchers_are_found(monkeypatch, environment, size):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launcher.find().size == size


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, 2),
        # Slurm's srun may have started the daemons of mpirun, which start the ranks.
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "1"}, 3),
    ],
)
def test_the_rank_is_known_before_mpi_starts(monkeypatch, environment, rank):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launcher.rank() == rank


@pytest.mark.parametrize(
    "environment",
    [
        {},
        # A job script, and one task of srun, are no MPI jobs.
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
)
def test_an_ordinary_process_has_none(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launcher.find() is None
    assert isinstance(detect(), LocalCluster)


def test_a_local_run_never_imports_mpi():
    program = (
        "import sys; from pycaffe_dist.training.engine import make_engine;"
        "from pycaffe_dist.comm.cluster import detect;"
        "cluster = detect(); make_engine(cluster); cluster.close();"
        "print(sorted(name for name in ('mpi4py', 'numba') if name in sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"


def test_a_launcher_without_mpi4py_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ClusterError, match=r"Open MPI's mpirun started this .* pip install"):
        detect()


def test_open_mpi_is_set_up_unless_the_user_did(monkeypatch):
    environment = {
        "OMPI_MCA_mpi_yield_when_idle": "0",
        "OMPI_LIBDIR_LOC": "/opt/cluster/openmpi/lib",
    }
    monkeypatch.setattr(os, "environ", environment)
    launcher.prepare_mpi()
    assert environment["OMPI_MCA_mpi_yield_when_idle"] == "0"
    assert "OMPI_MCA_btl" not in environment
    environment["OMPI_LIBDIR_LOC"] = f"{sys.prefix}/lib"
    launcher.prepare_mpi()
    assert environment["OMPI_MCA_btl"] == "^ofi"


@pytest.mark.parametrize(
    ("mine", "of_all", "threads"),
    [
        ({0, 1, 2, 3}, [{0, 1, 2, 3}], 4),
        ({0, 1, 2, 3}, [{0, 1, 2, 3}] * 2, 2),
        ({0, 1, 2, 3}, [{0, 1, 2, 3}] * 3, 1),
        ({0, 1}, [{0, 1}] * 16, 1),
        ({4, 5}, [{0, 1}, {2, 3}, {4, 5}], 2),
        ({0, 1, 2, 3}, [{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5}], 2),
        (set(range(6)), [set(range(6))] * 6, 1),
    ],
)
def test_ranks_divide_the_cores_that_they_may_use(mine, of_all, threads):
    assert launcher.share_of_cores(mine, of_all) == threads


def test_hardware_threads_of_one_core_count_once(monkeypatch):
    monkeypatch.setattr(launcher, "_first_sibling", lambda cpu: cpu % 4)
    assert launcher.cores(range(8)) == {0, 1, 2, 3}


def test_the_mean_of_a_local_cluster_is_its_own_value():
    with LocalCluster() as cluster:
        assert (cluster.rank, cluster.size, cluster.hosts) == (0, 1, (cluster.host,))
        assert cluster.threads >= 1
        assert cluster.broadcast_bytes(b"plan") == b"plan"
        assert float(cluster.mean(2.5)) == 2.5
        assert cluster.agree_max(2) == 2
        cluster.barrier()


def test_a_local_cluster_lets_errors_through():
    with pytest.raises(ValueError, match="as it was"), LocalCluster():
        raise ValueError("as it was")
