"""What the operating system shows of a process's transports."""

from __future__ import annotations

import os
import socket

import pytest

from pycaffe_dist.runtime import transports

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
def test_transports_are_told_from_maps_and_files(segment, files, found):
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


def test_a_connection_within_the_host_is_not_tcp_to_another():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        inode = f"socket:[{os.fstat(connection.fileno()).st_ino}]"
        assert transports.in_use("", [inode]) == []
