"""Outputs of a captured step stay once made: the caller, autograd and the model have them by then."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remat_lab as rl
from remat_lab.errors import InfeasibleBudget, TooLarge
from remat_lab.execution.measure import meter_for
from remat_lab.joint import CATEGORIES, JointGraph

from .conftest import SHORT
from .networks import NETWORKS


def normed():
    def middle():
        return nn.BatchNorm2d(8), nn.ReLU()

    net = nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1),
        *middle(),
        nn.Conv2d(8, 8, 3, padding=1),
        *middle(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return net, torch.randn(4, 8, 12, 12), F.cross_entropy, (torch.randint(0, 10, (4,)),)


def spectral():
    norm = nn.utils.parametrizations.spectral_norm
    net = nn.Sequential(norm(nn.Linear(16, 32)), nn.ReLU(), norm(nn.Linear(32, 5)))
    return net, torch.randn(8, 16), F.cross_entropy, (torch.randint(0, 5, (8,)),)


NETS = {"normed": normed, "spectral": spectral, "gpt": NETWORKS["gpt"]}


@pytest.fixture(scope="module", params=list(NETS))
def net(request):
    torch.manual_seed(0)
    model, inputs, loss, targets = NETS[request.param]()
    cap = rl.calibrate(rl.capture(model, inputs, loss, targets=targets), k=1, time="paper")
    return cap, model, (() if isinstance(inputs, dict) else (inputs,)), inputs, targets


def step(module, net):
    _, model, args, inputs, targets = net
    more = {"targets": targets} if targets else {}
    model.zero_grad()
    module(*args, **(inputs if isinstance(inputs, dict) else {}), **more).backward()


@pytest.mark.parametrize("method", [m.name for m in rl.methods() if m.view != "chain"])
def test_no_output_is_made_twice_and_a_training_step_peaks_as_predicted(net, method):
    cap, model = net[:2]
    options = SHORT.get(method, {})
    budget = "min"
    if options:  # its own "min" is a search by many searches
        budget = (rl.minimum_budget(cap, "kusumoto-best") + rl.vanilla_peak(cap)) // 2
    try:
        plan = rl.solve(cap, budget, method, **options)
    except (InfeasibleBudget, TooLarge):
        return
    joint, counts = cap.joint, plan.schedule.run_counts
    outputs = set(joint.outputs.tolist())
    for op in range(joint.n_ops):
        written = set(joint.writes.row(op).tolist())
        loss = any(CATEGORIES[joint.value_category[value]] == "output" for value in written)
        assert counts[op] == 1 or not (loss or written <= outputs), f"{joint.op_names[op]} runs again"
    planned = rl.apply(cap, plan, fallback="error")
    step(planned, net)
    model.zero_grad()
    with meter_for("cpu") as meter:
        step(planned, net)
    assert meter.levels.peak == plan.peak


def test_the_runtime_of_dtr_frees_no_output(net):
    cap = net[0]
    frees = rl.solve(cap, "min", "dtr").schedule.actions
    assert not np.isin(cap.joint.outputs, ~frees[frees < 0]).any()


def test_with_room_for_all_dtr_is_the_plain_schedule(net):
    cap = net[0]
    for budget in (None, rl.vanilla_peak(cap)):
        plan = rl.solve(cap, budget, "dtr")
        assert plan.peak == rl.vanilla_peak(cap) and plan.schedule.recomputed_ops == 0


def test_whether_outputs_are_kept_is_said_of_the_graph(net):
    joint = net[0].joint
    assert joint.keeps_outputs and joint.runs_once[joint.op_names.index("loss_gradient")]
    again = JointGraph.from_json(joint.to_json())
    assert again.keeps_outputs and np.array_equal(again.runs_once, joint.runs_once)
    assert joint.with_costs(op_time=joint.op_time).keeps_outputs
    published = rl.ComputationGraph.from_nodes([{"name": "a", "memory": 1}], []).joint
    assert not published.keeps_outputs and not published.runs_once.any()
