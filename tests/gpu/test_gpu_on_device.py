"""How on_device.py treats its steps' results and time, missing tools, and carried wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import device_steps
import on_device
import pytest


def python(name, code, limit=20.0):
    return on_device.Step(name, limit, ["-c", code])


def test_a_slow_step_and_its_children_are_ended_and_the_others_run(tmp_path, capsys):
    report = on_device.Report(tmp_path, 1)
    child = "import subprocess, sys; print('began', flush=True); "
    child += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    report.run(python("slow", child, 1.0))
    report.run(python("bad", "raise SystemExit('2 failed')"))
    report.run(python("good", "print('5 passed')"))
    report.run(python("tool", f"print('there is none'); raise SystemExit({on_device.LACKS})"))
    assert report.sum_up() == 1
    rows = [json.loads(line) for line in (tmp_path / "part1.jsonl").read_text().splitlines()]
    assert [(row["step"], row["result"]) for row in rows] == [
        ("slow", "FAILED"),
        ("bad", "FAILED"),
        ("good", "ok"),
        ("tool", "left out"),
    ]
    words = [row["words"] for row in rows]
    assert words == ["not done after 1 s; began", "2 failed", "5 passed", "there is none"]
    assert rows[0]["seconds"] < 20
    assert "===== good" in (tmp_path / "part1.log").read_text()
    assert "steps: 1 ok, 2 FAILED, 1 left out" in capsys.readouterr().out


@pytest.mark.long
def test_steps_end_with_their_parts_time(tmp_path):
    report = on_device.Report(tmp_path, 2, seconds=on_device.LEAST_SECONDS + 1)
    report.run(python("long", "import time; time.sleep(60)"))
    report.run(python("late", "print('it ran')"))
    assert [(line[0], line[1]) for line in report.lines] == [
        ("long", "FAILED"),
        ("late", "left out"),
    ]
    assert report.lines[1][2] == "no time is left"


def test_what_a_step_writes_is_in_its_result(tmp_path):
    file = tmp_path / "times.json"
    code = f"open({str(file)!r}, 'w').write('[1.5]')"
    on_device.Report(tmp_path, 1).run(on_device.Step("times", 20.0, ["-c", code], writes=file))
    assert json.loads((tmp_path / "part1.jsonl").read_text())["measured"] == [1.5]


def test_every_step_names_files_that_exist():
    parts = on_device.parts()
    assert list(parts) == [1, 2, 3]
    for step in (step for steps in parts.values() for step in steps):
        paths = [word for word in step.command if word.endswith(".py")]
        assert paths, step
        for path in paths:
            assert (on_device.ROOT / path).exists(), step
        if str(on_device.FOLDER / "device_steps.py") in step.command:
            assert step.command[1] in device_steps.STEPS


def test_carried_wheels_of_this_python_are_unpacked_once(tmp_path, monkeypatch):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    (tmp_path / "wheels").mkdir()
    for name, kind in (("mine", f"{tag}-{tag}-any"), ("other", "cp39-cp39-any")):
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-1-{kind}.whl", "w") as archive:
            archive.writestr(f"{name}_of_pcaffe.py", "value = 7")
    (tmp_path / "mnist").mkdir()
    for name in ("PYTHONPATH", "MNIST_MIRROR", "PYTHON", "PYTHONUNBUFFERED", "PCAFFE_CUDNN_PLANS"):
        monkeypatch.setenv(name, "")
    on_device.prepare(tmp_path)
    on_device.prepare(tmp_path)
    code = "import mine_of_pcaffe, pycaffe_dist; print(mine_of_pcaffe.value)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.stdout == "7\n", done.stderr
    assert os.environ["MNIST_MIRROR"] == str(tmp_path / "mnist")
    assert not list(tmp_path.glob("site-*/other*"))


def test_without_a_gpu_it_says_so_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PCAFFE_EMULATE_GPU", "x")
    done = subprocess.run(
        [sys.executable, on_device.__file__, f"--out={tmp_path}"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no test on a GPU was run: PCAFFE_EMULATE_GPU must be a number" in done.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_without_compute_sanitizer_it_says_which_errors_are_not_checked(tool, monkeypatch, capsys):
    monkeypatch.setattr(device_steps, "find_tool", lambda *names: None)
    with pytest.raises(SystemExit) as end:
        device_steps.watch(tool)
    assert end.value.code == on_device.LACKS
    assert f"{tool} was NOT run" in capsys.readouterr().out


def test_compute_sanitizer_is_found_beside_cuda(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    program.chmod(0o755)
    assert device_steps.find_tool("compute-sanitizer") == str(program)
