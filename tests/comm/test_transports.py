"""A process's transports, as the operating system shows them."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest

from pycaffe_dist.comm import transports

MAPS = """7f0000000000-7f0000001000 rw-s 00000000 00:19 7 {}
7f1000000000-7f1000001000 r-xp 00000000 08:01 9 /usr/lib/libucp.so.0
"""


@pytest.mark.parametrize(
    ("segment", "files", "found"),
    [
        ("/dev/shm/sm_segment.node1.1000.c0de0001.0", [], ["shared memory"]),
        ("/dev/shm/somebody_elses", [], []),
        (
            "/memfd:ucx_seg",
            ["/dev/infiniband/uverbs1", "/dev/infiniband/uverbs1", "pipe:[7]"],
            ["shared memory", "InfiniBand (uverbs1)"],
        ),
    ],
)
def test_transports_are_found_from_maps_and_files(segment, files, found):
    maps = MAPS.format(segment)
    assert transports.in_use(maps, files) == found
    assert transports.libraries(maps) == ["UCX"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100090A:C350", "10.9.0.1"),
        ("0000000000000000FFFF00000100090A:C350", "10.9.0.1"),
        ("B80D0120000000000000000001000000:0016", "2001:db8::1"),
    ],
)
def test_addresses_of_linux_tables(text, address):
    assert transports._address(text) == address


def _mpich(kind: int, answer) -> int:
    answer._obj.value = kind == 0
    return 0


@pytest.mark.parametrize(
    ("functions", "switch", "aware"),
    [
        ({"MPIX_Query_cuda_support": lambda: 1}, "", True),
        ({"MPIX_Query_cuda_support": lambda: 0}, "1", False),
        ({"MPIX_GPU_query_support": _mpich}, "", True),
        ({"MPIX_GPU_query_support": lambda kind, answer: 1}, "1", False),
        ({}, "1", True),
        ({}, "0", None),
    ],
)
def test_mpi_is_cuda_aware_if_it_or_its_settings_say_so(monkeypatch, functions, switch, aware):
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", switch)
    assert transports.cuda_aware(SimpleNamespace(**functions)) is aware


def test_a_connection_inside_the_host_is_not_tcp_to_another_host():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        inode = f"socket:[{os.fstat(connection.fileno()).st_ino}]"
        assert transports.in_use("", [inode]) == []
