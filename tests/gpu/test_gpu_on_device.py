"""How `make test-gpu` treats its steps' results, and missing tools and data."""

from __future__ import annotations

import sys

import on_device
import pytest


def test_a_failing_and_a_slow_step_leave_the_others_to_run(capsys):
    report = on_device.Report()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    report.step("slow", lambda: on_device.run(command, 0.2))
    report.step("bad", lambda: (on_device.FAILED, "2 failed"))
    report.step("good", lambda: (on_device.OK, "5 passed"))
    report.add("tool", on_device.LEFT_OUT, "there is none")
    assert report.sum_up() == 1
    summary = capsys.readouterr().out.split("\n\n")[1]
    assert [line.split()[0] for line in summary.splitlines()] == ["slow", "bad", "tool", "steps:"]
    assert "not done after" in summary
    assert summary.endswith("steps: 1 ok, 2 FAILED, 1 left out\n")


def test_words_choose_steps(monkeypatch, capsys):
    monkeypatch.setattr(on_device, "compute_sanitizer", lambda: None)
    report = on_device.Report(("kernels", "race"))
    for name in ("gpu_kernels_update", "gpu_layers"):
        report.step(name, lambda: (on_device.OK, ""))
    on_device.watched(report)
    assert [line[0] for line in report.lines] == ["gpu_kernels_update", "racecheck"]


def test_a_step_that_is_left_out_is_no_failure(capsys):
    report = on_device.Report()
    report.step("net", lambda: on_device.accuracy("s.prototxt", "data/none_lmdb", "get.sh", 0.9))
    assert report.sum_up() == 0
    assert "there is no data/none_lmdb; get.sh make it" in capsys.readouterr().out


def test_without_compute_sanitizer_it_says_which_errors_are_not_checked(monkeypatch, capsys):
    monkeypatch.setattr(on_device, "compute_sanitizer", lambda: None)
    on_device.watched(on_device.Report())
    assert capsys.readouterr().out.count("NOT looked for") == len(on_device.TOOLS)


def test_compute_sanitizer_is_found_beside_cuda(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    program.chmod(0o755)
    assert on_device.compute_sanitizer() == str(program)


@pytest.mark.parametrize(("code", "result"), [("assert True", "ok"), ("assert False", "FAILED")])
def test_a_file_of_tests_is_a_step(tmp_path, monkeypatch, code, result, capsys):
    monkeypatch.setattr(on_device, "ROOT", tmp_path)
    path = tmp_path / "test_it.py"
    path.write_text(f"def test_it():\n    {code}\n")
    found, words = on_device.tests(path)
    assert found == result
    assert words.startswith("1 passed" if result == "ok" else "1 failed")
