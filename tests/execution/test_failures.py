"""When something goes wrong mid-schedule: values are released, the model is as it was, the error says where."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

from remat_lab.errors import ExecutionError
from remat_lab.execution.apply import apply
from remat_lab.execution.calibrate import calibrate
from remat_lab.execution.capture import capture
from remat_lab.execution.execute import execute
from remat_lab.schedule import Schedule

ERRORS = {"value": None}


@torch.library.custom_op("remat_lab_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    if ERRORS["value"] is not None and ERRORS["countdown"] == 0:
        raise ERRORS["value"]
    ERRORS["countdown"] = ERRORS.get("countdown", 0) - 1
    return x * 2


fragile.register_fake(lambda x: torch.empty_like(x))
fragile.register_autograd(lambda ctx, g: g * 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(fragile(self.drop(self.norm(self.first(x))))).square().mean()


def setup(again=False):
    """The net, and a schedule that runs the fragile op once or (``again``) once more in the backward pass."""
    ERRORS.update(value=None, countdown=0)
    net = Net()
    cap = capture(net, torch.randn(8, 16))
    order = list(range(cap.joint.n_ops))
    if again:
        op = cap.joint.op_names.index("fragile")
        order.insert(int(np.flatnonzero(cap.joint.op_backward)[2]), op)
    schedule = Schedule.from_ops(cap.joint, np.array(order))
    execute(cap, schedule, measure=False)
    net.zero_grad()
    return net, cap, schedule


def snapshot(net):
    state = {name: value.clone() for name, value in net.state_dict().items()}
    return state, torch.get_rng_state()


def assert_as_it_was(net, before):
    state, random = before
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def live_tensors():
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def out_of_memory():
    return torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("error", [lambda: ValueError("boom"), out_of_memory], ids=["op", "oom"])
@pytest.mark.parametrize("countdown", [0, 1], ids=["forward", "recomputation"])
def test_an_op_that_raises(error, countdown):
    net, cap, schedule = setup(again=True)
    before, tensors = snapshot(net), live_tensors()
    ERRORS.update(value=error(), countdown=countdown)
    with pytest.raises(ExecutionError, match=r"op 'fragile' at step \d+ of \d+ failed: \w+Error") as caught:
        execute(cap, schedule, measure=False)
    assert caught.value.op == "fragile"
    assert schedule[caught.value.step].name == "fragile"
    assert_as_it_was(net, before)
    ERRORS.update(value=None)
    del caught
    assert live_tensors() == tensors


def test_values_are_released_while_the_error_is_still_held():
    _net, cap, schedule = setup(again=True)
    tensors = live_tensors()
    ERRORS.update(value=ValueError("boom"), countdown=1)
    with pytest.raises(ExecutionError) as caught:
        execute(cap, schedule, measure=False)
    # The failing op's own argument may hang on the error; nothing else does.
    assert live_tensors() <= tensors + 2
    assert caught.value.__cause__ is not None


def test_keyboard_interrupt_passes_through_and_says_where():
    net, cap, schedule = setup()
    before = snapshot(net)
    ERRORS.update(value=KeyboardInterrupt(), countdown=0)
    with pytest.raises(KeyboardInterrupt) as caught:
        execute(cap, schedule, measure=False)
    assert any("interrupted in op 'fragile' at step" in note for note in caught.value.__notes__)
    assert_as_it_was(net, before)


def test_a_failure_while_measuring_changes_nothing():
    net, cap, schedule = setup()
    before = snapshot(net)
    ERRORS.update(value=ValueError("boom"), countdown=0)
    with pytest.raises(ExecutionError):
        execute(cap, schedule)
    assert_as_it_was(net, before)
    ERRORS.update(value=None)
    assert execute(cap, schedule).peak > 0  # and the next run works, profiler included


def test_a_failure_in_the_backward_half_of_a_planned_module():
    net, cap, schedule = setup(again=True)
    planned = apply(cap, schedule)
    loss = planned(cap.inputs[0])
    ERRORS.update(value=out_of_memory(), countdown=0)
    with pytest.raises(ExecutionError, match="fragile"):
        loss.backward()
    assert all(p.grad is None for p in net.parameters())
    ERRORS.update(value=None)
    planned(cap.inputs[0]).backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("call", [execute, apply, calibrate])
@pytest.mark.parametrize("given", [nn.Linear(2, 2), None])
def test_what_is_not_a_captured_model_is_refused(call, given):
    arguments = (given,) if call is calibrate else (given, None)
    with pytest.raises(TypeError, match=r"captured model, got .*rl.capture"):
        call(*arguments)
