"""Buffers whose new contents the forward pass reads: what reads them runs after they are made."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remat_lab as rl
from remat_lab.errors import InfeasibleBudget, TooLarge

from .conftest import SHORT


class Average(nn.Module):
    """A running average, updated in place and subtracted."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 5)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x):
        h = self.up(x).tanh()
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return self.down((h - self.average).relu())


class Scaled(nn.Module):
    """Divided by the largest value seen so far."""

    def __init__(self):
        super().__init__()
        self.up, self.middle, self.down = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        h = self.up(x).tanh()
        with torch.no_grad():
            self.largest.copy_(torch.maximum(self.largest, h.abs().max()))
        return self.down(self.middle(h / self.largest).relu())


def spectral(norm):
    return nn.Sequential(norm(nn.Linear(16, 32)), nn.ReLU(), norm(nn.Linear(32, 5)))


NETS = {
    "running average": Average,
    "running maximum": Scaled,
    "spectral norm": lambda: spectral(nn.utils.parametrizations.spectral_norm),
    "spectral norm, old form": lambda: spectral(nn.utils.spectral_norm),
}


def make(name):
    torch.manual_seed(0)
    return NETS[name]()


@pytest.fixture(scope="module", params=list(NETS))
def net(request):
    """(capture, twin's gradients, twin's buffers after one eager step, the model, its state)."""
    torch.manual_seed(0)
    x, labels = torch.randn(8, 16), torch.randint(0, 5, (8,))
    model, twin = make(request.param), make(request.param)
    state = copy.deepcopy(dict(model.state_dict()))
    cap = rl.calibrate(rl.capture(model, x, F.cross_entropy, targets=labels), k=1, time="paper")
    F.cross_entropy(twin(x), labels).backward()
    return cap, model, state, twin


def plans(cap, method):
    options = SHORT.get(method, {})
    yield rl.solve(cap, None, method, **options)
    vanilla = rl.vanilla_peak(cap)
    if not options:
        least = rl.solve(cap, "min", method)
        yield least
        yield rl.solve(cap, (least.peak + vanilla) // 2, method)
        return
    try:  # its "min" is a search by many searches
        yield rl.solve(cap, (rl.minimum_budget(cap, "chen") + vanilla) // 2, method, **options)
    except (InfeasibleBudget, TooLarge):
        pass


@pytest.mark.parametrize("method", [m.name for m in rl.methods() if m.view != "chain"])
def test_every_method_plans_them_and_the_numbers_are_eagers(net, method):
    cap, model, state, twin = net
    for plan in plans(cap, method):
        model.load_state_dict(state)
        model.zero_grad()
        run = rl.execute(cap, plan)
        assert run.difference == 0 and run.peak == plan.peak
        for (name, ours), theirs in zip(model.named_parameters(), twin.parameters()):
            assert torch.equal(ours.grad, theirs.grad), f"gradient of {name} differs"
        for (name, ours), theirs in zip(model.named_buffers(), twin.buffers()):
            assert torch.equal(ours, theirs), f"buffer {name} differs"


def test_a_buffer_nothing_reads_is_no_node():
    """As ever: a batch norm's count of batches and running statistics are made beside the graph's nodes."""
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    cap = rl.capture(net, torch.randn(8, 16), F.cross_entropy, targets=torch.randint(0, 5, (8,)))
    joint = cap.joint
    alone = np.flatnonzero(~joint.op_backward & (joint.graph.node_of_op < 0))
    assert [joint.op_types[op] for op in alone] == ["add"]


def test_layers_hold_the_ops_that_make_them():
    cap = rl.capture(make("running average"), torch.randn(8, 16), lambda y: y.sum())
    forward = ~cap.joint.op_backward
    for graph in (cap.graph, cap.layers, cap.joint.graph):
        assert (graph.node_of_op[forward] >= 0).all()
