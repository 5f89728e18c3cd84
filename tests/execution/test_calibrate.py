"""calibrate(): measured workspaces, sizes and times, kept on disk."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from remat_lab.execution import calibrate as module
from remat_lab.execution.calibrate import cache_folder, calibrate, with_time
from remat_lab.execution.capture import capture
from remat_lab.schedule import Schedule
from remat_lab.simulate import simulate

from .conftest import case_of


def test_kernels_workspace_is_seen():
    case = case_of("conv")
    before, after = (simulate(Schedule.vanilla(c.joint)).peak for c in (case.plain, case.cap))
    assert after > before
    written = np.array([case.cap.joint.value_bytes[w].sum() for w in rows(case.cap.joint.writes)])
    assert (case.cap.joint.op_workspace >= written).all()


def rows(csr):
    return [csr.row(i) for i in range(csr.rows)]


def test_times_are_seconds_flops_or_the_papers():
    case = case_of("conv")
    assert case.cap.joint.time_unit == "s" and (case.cap.joint.op_time > 0).all()
    flops = with_time(case.cap, "flop").joint
    assert flops.time_unit == "flop"
    first = flops.op_names.index("convolution")
    assert flops.op_time[first] == 2 * 8 * 32 * 32 * 16 * 3 * 25
    paper = calibrate(case.plain, time="paper").joint
    assert paper.time_unit == "paper" and paper.op_time[first] == 10
    assert np.array_equal(paper.op_workspace, case.cap.joint.op_workspace)


def test_a_second_calibration_reads_the_disk(monkeypatch):
    case = case_of("mlp")
    monkeypatch.setattr(module, "_measure", lambda *_: pytest.fail("measured again"))
    again = calibrate(case.plain)
    assert np.array_equal(again.joint.op_time, case.cap.joint.op_time)


def test_another_thread_count_is_another_calibration():
    keys = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            keys.append(module.environment_key(torch.device("cpu")))
    finally:
        torch.set_num_threads(threads)
    assert keys[0] != keys[1]


def test_a_broken_cache_file_is_measured_over(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_LAB_CACHE", str(tmp_path))
    cap = capture(nn.Linear(4, 4), torch.randn(2, 4), lambda y: y.sum())
    calibrate(cap, k=1)
    (path,) = tmp_path.glob("calibration-*.json")
    path.write_text("{")
    calibrate(cap, k=1)
    assert json.loads(path.read_text())["environment"]["torch"] == torch.__version__


def test_the_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("REMAT_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "remat_lab"


def test_wrong_arguments_are_named():
    cap = case_of("mlp").plain
    with pytest.raises(ValueError, match="'wall'"):
        calibrate(cap, time="wall")
    with pytest.raises(ValueError, match="k must be at least 1"):
        calibrate(cap, k=0)
    with pytest.raises(ValueError, match=r"calibrate\(\) measures"):
        with_time(cap, "measured")


def test_another_model_does_not_change_a_known_models_times(tmp_path, monkeypatch):
    """Two models share ops (the gradient of the loss, at least); a plan made with the first's times stays true."""
    monkeypatch.setenv("REMAT_LAB_CACHE", str(tmp_path))

    def captured(width):
        return capture(nn.Sequential(nn.Linear(8, width)), torch.randn(4, 8), lambda y: y.sum())

    first = captured(3)
    before = calibrate(first, k=1).joint.op_time
    calibrate(captured(5), k=1)
    assert np.array_equal(calibrate(first, k=1).joint.op_time, before)


def test_another_process_gives_the_same_signatures():
    """Else nothing on disk is ever found again: a function's repr, say, holds an address."""
    program = """
import functools, torch
from torch import nn
from remat_lab.execution.calibrate import _name, signatures
from remat_lab.execution.capture import capture

net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(), nn.Flatten(), nn.Dropout(), nn.Linear(144, 4), nn.RReLU())
print(*signatures(capture(net, torch.randn(2, 3, 8, 8), lambda y: y.sum()).storages))
print(_name(functools.partial(capture, [signatures], key=functools.partial(_name, 3))))
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] and " at 0x" not in runs[0]
