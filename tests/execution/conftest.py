"""Fixtures and helpers for tests that run models."""

import copy

import numpy as np
import pytest
import torch

from remat_lab.execution.calibrate import calibrate
from remat_lab.execution.capture import capture
from remat_lab.execution.signature import call_arguments
from remat_lab.schedule import Schedule

from .networks import NETWORKS

#: Options by which a method that searches until its time is up does not.
SHORT = {
    "local-search": {"seconds": 0.2},
    "checkmate": {"time_limit": 1.0, "warm_start": 0.2},
    "checkmate-lp": {"time_limit": 1.0},
    "retention-intervals": {"time_limit": 1.0, "warm_start": 0.2},
    "oracle": {"states": 20_000},
}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small ops gain nothing from threads, and on a busy machine lose much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Calibrations of the tests go to a folder of their own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("REMAT_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


class Case:
    """A network, a twin that runs in eager, and their calibrated capture."""

    def __init__(self, name):
        torch.manual_seed(0)
        self.model, self.inputs, self.loss, targets = NETWORKS[name]()
        self.targets = targets if isinstance(targets, tuple) else (targets,)
        self.twin = copy.deepcopy(self.model)
        self.state = copy.deepcopy(self.model.state_dict())
        self.plain = capture(self.model, self.inputs, self.loss, targets=self.targets)
        self.cap = calibrate(self.plain, k=1)

    def reset(self, seed=1):
        for model in (self.model, self.twin):
            model.train()
            model.load_state_dict(self.state)
            model.zero_grad()
        torch.manual_seed(seed)

    def eager(self):
        """One eager step of the twin from the current random state, which is put back. (loss, end state)"""
        state = torch.get_rng_state()
        loss = eager_loss(self.twin, self.inputs, self.loss, self.targets)
        loss.backward()
        end = torch.get_rng_state()
        torch.set_rng_state(state)
        return loss.detach(), end


def eager_loss(model, inputs, loss, targets):
    args, kwargs = call_arguments(inputs)
    output = model(*args, **kwargs)
    return output if loss is None else loss(output, *targets)


_cases = {}


@pytest.fixture(params=list(NETWORKS))
def case(request):
    return case_of(request.param)


def case_of(name):
    if name not in _cases:
        _cases[name] = Case(name)
    _cases[name].reset()
    return _cases[name]


def assert_same_step(case, loss, eager):
    """Loss, gradients, buffers and random state equal eager's, bit for bit."""
    eager_value, end = eager
    assert torch.equal(loss, eager_value)
    assert torch.equal(torch.get_rng_state(), end)
    for (name, ours), theirs in zip(case.model.named_parameters(), case.twin.parameters()):
        assert torch.equal(ours.grad, theirs.grad), f"gradient of {name} differs"
        assert ours.grad.stride() == theirs.grad.stride(), f"gradient of {name} has other strides"
    for (name, ours), theirs in zip(case.model.named_buffers(), case.twin.buffers()):
        assert torch.equal(ours, theirs), f"buffer {name} differs"


def random_schedule(joint, rng, chance=0.1):
    """Run the plain order, now and then forget forward values, and compute them again when they are missed."""
    writer = {int(v): op for op in range(joint.n_ops) for v in joint.writes.row(op)}
    outputs = set(joint.outputs.tolist())
    live, order = set(), []

    def run(op):
        for value in joint.reads.row(op).tolist():
            if value in writer and value not in live:
                run(writer[value])
        order.append(op)
        live.update(joint.writes.row(op).tolist())

    for op in range(joint.n_ops):
        run(op)
        if len(order) < 2 * joint.n_ops and rng.random() < chance:
            forgettable = [v for v in live if v not in outputs and not joint.op_backward[writer[v]]]
            live.difference_update(v for v in forgettable if rng.random() < 0.3)
    return Schedule.from_ops(joint, np.array(order))
