"""Requests of the launcher for other numbers of ranks, and which hostfiles lead to one."""

from __future__ import annotations

import tempfile

import pytest

from pycaffe_dist.launch import environment
from pycaffe_dist.launch.hostfile import Hosts
from pycaffe_dist.launch.resizing import Request, RequestFile, decode


def test_the_first_ranks_on_each_host_stay():
    request = Request(1, {"a": 1, "b": 2})
    assert request.size == 3
    assert request.stay(["a", "a", "b", "c", "b", "b"]) == [True, False, True, False, True, False]
    assert decode(request.encode()).ranks == request.ranks


def test_ranks_find_the_last_request_that_is_not_done(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launcher, rank, other = RequestFile("x.0"), RequestFile("x.0"), RequestFile("x.1")
    assert not rank.has_new() and rank.read() == Request()
    launcher.write({"a": 2})
    launcher.write({"a": 3})
    assert rank.has_new() and not other.has_new()
    rank.done = rank.read()
    assert rank.done == Request(2) and rank.done.ranks == {"a": 3} and not rank.has_new()
    launcher.remove()
    launcher.remove()
    assert not RequestFile("x.0").has_new() and not list(tmp_path.iterdir())
    assert not RequestFile("").has_new()


@pytest.mark.parametrize(
    ("running", "wanted"),
    [
        (["here", "here"], {"here": 3}),
        (["here.domain"], {"here.domain": 3}),
        (["here"] * 4 + ["there"], {"here": 3}),
        (["there"], None),  # nobody would see the request
    ],
)
def test_the_launcher_asks_ranks_on_its_own_host(tmp_path, monkeypatch, running, wanted):
    own = "here.domain" if "here.domain" in running else "here"
    monkeypatch.setattr(environment, "host_name", lambda: own)
    for name in ("here", "localhost"):
        (tmp_path / "hosts").write_text(f"{name} slots=3\n")
        assert Hosts(str(tmp_path / "hosts"), 3, 1).ranks_of_running(running) == wanted


def test_a_host_may_be_new(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "host_name", lambda: "here")
    (tmp_path / "hosts").write_text("here slots=1\nthere slots=2\n")
    wanted = Hosts(str(tmp_path / "hosts"), 2, 1).ranks_of_running(["here", "here"])
    assert wanted == {"here": 1, "there": 2}
    assert Request(1, wanted).join(["here", "here"]) == ["there", "there"]
    assert Request(1, wanted).join(["there", "here"]) == ["there"]
