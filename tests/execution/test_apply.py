"""apply(): an ordinary training loop that follows a plan."""

import copy
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remat_lab.errors import ExecutionError, InvalidSchedule
from remat_lab.execution.apply import apply
from remat_lab.execution.calibrate import calibrate
from remat_lab.execution.capture import capture
from remat_lab.execution.execute import execute
from remat_lab.execution.measure import meter_for
from remat_lab.schedule import Schedule
from remat_lab.simulate import simulate

from . import ddp_worker
from .conftest import assert_same_step, case_of, eager_loss, random_schedule
from .test_capture import ConvNet


def schedules(case):
    return [None, random_schedule(case.cap.joint, np.random.default_rng(5))]


def call(net, case):
    if isinstance(case.inputs, dict):
        return net(**case.inputs)
    return net(case.inputs, targets=case.targets) if case.targets else net(case.inputs)


def test_a_planned_step_equals_eager_bit_for_bit(case):
    for schedule in schedules(case):
        case.reset()
        eager = case.eager()
        loss = call(apply(case.cap, schedule, fallback="error"), case)
        loss.backward()
        assert_same_step(case, loss.detach(), eager)


@pytest.mark.parametrize("name", ["conv", "gpt_dropout"])
def test_five_optimizer_steps_follow_eager_exactly(name):
    case = case_of(name)
    net = apply(case.cap, schedules(case)[1], fallback="error")
    ours = torch.optim.Adam(net.parameters(), lr=1e-2)
    theirs = torch.optim.Adam(case.twin.parameters(), lr=1e-2)
    for _ in range(5):
        state = torch.get_rng_state()
        eager = eager_loss(case.twin, case.inputs, case.loss, case.targets)
        theirs.zero_grad()
        eager.backward()
        theirs.step()
        torch.set_rng_state(state)
        loss = call(net, case)
        ours.zero_grad()
        loss.backward()
        ours.step()
        assert torch.equal(loss, eager)
    for a, b in zip(case.model.state_dict().values(), case.twin.state_dict().values()):
        assert torch.equal(a, b)


def test_gradient_accumulation_and_two_forwards_before_one_backward():
    case = case_of("conv")
    net = apply(case.cap, schedules(case)[1], fallback="error")
    other = torch.randn_like(case.inputs)
    for model, compute in ((case.model, net), (case.twin, None)):
        if compute is None:

            def compute(x, targets):
                return case.loss(case.twin(x), *targets)

        first, second = compute(case.inputs, targets=case.targets), compute(other, targets=case.targets)
        (first / 2 + second / 2).backward()
        (compute(case.inputs, targets=case.targets) * 3).backward()
        del model
    for ours, theirs in zip(case.model.parameters(), case.twin.parameters()):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(case.model.buffers(), case.twin.buffers()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["mlp", "conv", "gpt", "lstm", "unet"])
def test_the_measured_peak_of_a_training_step_is_the_predicted_one(name):
    case = case_of(name)
    schedule = schedules(case)[1]
    net = apply(case.cap, schedule, fallback="error")
    call(net, case).backward()
    case.model.zero_grad()
    meter = meter_for("cpu")
    with meter:
        call(net, case).backward()
    assert meter.levels.peak == simulate(schedule).peak


def test_state_dict_round_trips_with_the_model():
    case = case_of("conv")
    net = apply(case.cap)
    assert set(net.state_dict()) == set(case.model.state_dict())
    state = {name: torch.full_like(value, 2) for name, value in case.model.state_dict().items()}
    net.load_state_dict(state)
    assert all((value == 2).all() for value in case.model.state_dict().values())
    case.twin.load_state_dict(net.state_dict())
    holder = nn.ModuleDict({"net": net})
    assert set(holder.state_dict()) == {f"net.{name}" for name in state}
    holder.load_state_dict(holder.state_dict())


def test_a_call_that_was_not_planned_for_runs_in_eager_and_says_so_once():
    case = case_of("conv")
    small, labels = case.inputs[:4].clone(), case.targets[0][:4]
    net = apply(case.cap)
    with pytest.warns(UserWarning, match=r"without a plan, since input 0 has shape \(4, 3, 32, 32\)"):
        loss = net(small, targets=labels)
    assert torch.equal(loss, case.loss(case.twin(small), labels))
    net(small, targets=labels)  # a second time in silence: warnings are errors here
    apply(case.cap, fallback="silent")(small, targets=labels)
    with pytest.raises(ValueError, match="the plan was made for"):
        apply(case.cap, fallback="error")(small, targets=labels)
    with pytest.raises(ValueError, match=r"autocast is torch\.bfloat16, the plan was made with it off"):
        with torch.autocast("cpu", torch.bfloat16):
            apply(case.cap, fallback="error")(case.inputs, targets=case.targets)
    with pytest.raises(ValueError, match="'loud'"):
        apply(case.cap, fallback="loud")


def test_in_eval_mode_or_without_gradients_the_model_just_runs():
    case = case_of("conv")
    net = apply(case.cap, fallback="error")
    with torch.no_grad():
        assert not net(case.inputs[:2], targets=case.targets[0][:2]).requires_grad
    net.eval()
    case.twin.load_state_dict(case.model.state_dict())
    case.twin.eval()
    assert torch.equal(
        net(case.inputs, targets=case.targets), case.loss(case.twin(case.inputs), *case.targets)
    )
    net.train()


def test_parameters_changed_before_backward_are_an_error_not_a_wrong_gradient():
    case = case_of("mlp")
    net = apply(case.cap)
    loss = call(net, case)
    with torch.no_grad():
        case.model[0].weight.mul_(2)
    with pytest.raises(ExecutionError, match=r"'0\.weight' was modified in place"):
        loss.backward()


def test_a_second_backward_is_refused():
    loss = call(apply(case_of("mlp").cap), case_of("mlp"))
    loss.backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="a second time"):
        loss.backward()


def recomputing_batch_norms(cap):
    """The plain order, with every batch norm run again before anything in backward reads it."""
    joint = cap.joint
    forward = [op for op in range(joint.n_ops) if not joint.op_backward[op]]
    backward = [op for op in range(joint.n_ops) if joint.op_backward[op]]
    gradient = cap.storages.loss_gradient
    again = [op for op in forward if "batch_norm" in joint.op_types[op]]
    order = [*forward, gradient, *again, *(op for op in backward if op != gradient)]
    return Schedule.from_ops(joint, np.array(order))


def test_recomputed_batch_norms_read_the_old_statistics_and_hold_no_more():
    case = case_of("conv")
    schedule = recomputing_batch_norms(case.cap)
    assert schedule.recomputed_ops > 0
    net = apply(case.cap, schedule, fallback="error")
    for _ in range(2):
        eager = case.eager()
        case.model.zero_grad()
        meter = meter_for("cpu")
        with meter:
            loss = call(net, case)
            loss.backward()
        assert meter.levels.peak == simulate(schedule).peak
        assert_same_step(case, loss.detach(), eager)
        del loss  # or it would go while the next step is measured
        case.reset()


def test_two_forwards_before_their_backwards_keep_their_own_statistics():
    case = case_of("conv")
    case.reset()
    net = apply(case.cap, recomputing_batch_norms(case.cap), fallback="error")
    first, second = call(net, case), call(net, case)
    second.backward()
    first.backward()
    losses = [eager_loss(case.twin, case.inputs, case.loss, case.targets) for _ in range(2)]
    losses[1].backward()
    losses[0].backward()
    assert torch.equal(first, losses[0]) and torch.equal(second, losses[1])
    for ours, theirs in zip(case.model.parameters(), case.twin.parameters()):
        assert torch.equal(ours.grad, theirs.grad)
    for (name, ours), theirs in zip(case.model.named_buffers(), case.twin.buffers()):
        assert torch.equal(ours, theirs), name
    case.reset()


def test_no_plan_asks_for_the_gradient_of_a_loss_it_does_not_have():
    case = case_of("mlp")
    joint = case.cap.joint
    order = list(range(joint.n_ops))
    gradient = case.cap.storages.loss_gradient
    assert order.index(gradient) == int(np.flatnonzero(joint.op_backward)[0])
    loss = int(joint.writers.row(int(joint.reads.row(gradient)[0]))[0])
    order.remove(loss)
    order.insert(order.index(gradient) + 1, loss)
    with pytest.raises(InvalidSchedule, match="'loss_gradient' reads"):
        apply(case.cap, Schedule.from_ops(joint, np.array(order)))


def test_live_bytes_are_flat_over_steps_without_garbage_collection():
    """Tensors that stay alive through a reference cycle grow until the collector runs."""
    case = case_of("conv")
    net = apply(case.cap, schedules(case)[1])
    call(net, case).backward()
    levels = []
    gc.collect()
    gc.disable()
    try:
        meter = meter_for("cpu")
        with meter:
            for _ in range(5):
                case.model.zero_grad()
                call(net, case).backward()
                meter.mark()
            loss = call(net, case)  # and one whose backward never comes
            del loss
            meter.mark()
        levels = meter.levels.after[:6].tolist()
    finally:
        gc.enable()
    assert len(set(levels)) == 1


def test_values_are_released_when_backward_never_comes():
    case = case_of("mlp")
    loss = call(apply(case.cap), case)
    interpreter = weakref.ref(loss.grad_fn.interpreter)
    del loss
    assert interpreter() is None


def test_autocast_to_bfloat16():
    torch.manual_seed(0)
    model, x, y = ConvNet(), torch.randn(4, 3, 16, 16), torch.randint(0, 4, (4,))
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        cap = capture(model, x, F.cross_entropy, targets=y)
    cap = calibrate(cap, k=1)
    schedule = random_schedule(cap.joint, np.random.default_rng(0))
    net = apply(cap, schedule, fallback="error")
    for _ in range(2):
        state = torch.get_rng_state()
        with torch.autocast("cpu", torch.bfloat16):
            eager = F.cross_entropy(twin(x), y)
        eager.backward()
        torch.set_rng_state(state)
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x, targets=y)
        loss.backward()
        assert torch.equal(loss, eager)
        for ours, theirs in zip(model.parameters(), twin.parameters()):
            assert torch.equal(ours.grad, theirs.grad)
    assert "bfloat16" in cap.autocast


def test_frozen_parameters_get_no_gradient():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    model[2].requires_grad_(False)
    model[0].bias.requires_grad_(False)
    twin, x = copy.deepcopy(model), torch.randn(4, 8)
    cap = capture(model, x, lambda y: y.square().mean())
    net = apply(cap, random_schedule(cap.joint, np.random.default_rng(0), 0.5), fallback="error")
    net(x).backward()
    twin(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
    model[2].requires_grad_(True)
    with pytest.raises(ValueError, match=r"2\.weight has requires_grad=True"):
        net(x)


def test_inputs_that_require_gradients_get_them():
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    before = x * 1
    cap = capture(model, before.detach().requires_grad_(), lambda y: y.square().sum())
    apply(cap, fallback="error")(before).backward()
    ours = x.grad.clone()
    x.grad = None
    model(x * 1).square().sum().backward()
    assert torch.equal(ours, x.grad)


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(6, 4)

        def forward(self, x, pair, scale=1.0, *, flag=None):
            u, v = pair
            return {"sum": self.a(x) + self.b(u) * scale, "extra": [v * 2, self.a(v)]}

    def loss(out, target):
        return (out["sum"] - target).square().mean() + out["extra"][1].sum()

    model = Two()
    x, u, v, target = torch.randn(3, 4), torch.randn(3, 6), torch.randn(3, 4), torch.randn(3, 4)
    cap = capture(model, (x, (u, v), 0.5), loss, targets=target)
    assert cap.input_names == ["input 0", "input 1[0]", "input 1[1]", "target 0"]
    net = apply(cap, fallback="error")
    net(x, (u, v), 0.5, targets=target).backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss(model(x, (u, v), 0.5), target).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(ours, model.parameters()))
    with pytest.raises(ValueError, match="other arguments"):
        net(x, (u, v), 0.7, targets=target)


def test_distributed_data_parallel_over_two_processes(tmp_path):
    here = pathlib.Path(ddp_worker.__file__)
    result = tmp_path / "result.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(here), str(rank), "2", str(tmp_path / "meeting"), str(result)],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors.decode()
    found = torch.load(result)
    assert found["recomputed"] > 0
    assert found["same"] and all(ours == theirs for ours, theirs in found["losses"])
    planned, eager = found["peaks"]
    assert planned <= found["budget"] < eager
    model, (images, labels) = ddp_worker.network(), ddp_worker.batch()
    F.cross_entropy(model(images), labels).backward()
    for ours, whole in zip(found["first"], model.parameters()):
        torch.testing.assert_close(ours, whole.grad)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at it itself
def test_a_compiler_around_it_leaves_it_alone():
    case = case_of("mlp")
    net = apply(case.cap, schedules(case)[1], fallback="error")
    eager = case.eager()

    @torch.compile(backend="eager")
    def step(x):
        return net(x * 1, targets=case.targets) * 1

    loss = step(case.inputs)
    loss.backward()
    assert_same_step(case, loss.detach(), eager)


# -- a model that is not as it was captured ----------------------------------------------------------------------
def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, 5),
        nn.Tanh(),
        nn.Linear(5, 3),
    )


def planned(model, fallback="error"):
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    cap = capture(model, x, F.cross_entropy, targets=y)
    return cap, apply(cap, random_schedule(cap.joint, np.random.default_rng(0)), fallback=fallback), x, y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).tanh())[:, :3]


def eval_norm(model):
    model[1].eval()


def other_activation(model):
    model[2] = nn.ReLU()


def no_bias(model):
    model[4] = nn.Linear(8, 5, bias=False)


def wrapped(model):
    model[4] = nn.Sequential(nn.Linear(8, 5))


def longer(model):
    model.append(nn.Linear(3, 3))


def transposed(model):
    model[0].weight = nn.Parameter(torch.randn(6, 8).t())


def untied(model):
    model.two.weight = nn.Parameter(model.one.weight.detach().clone())


@pytest.mark.parametrize(
    "make, change, says",
    [
        (small, eval_norm, "module '1' is in eval mode, the plan was made with it in train mode"),
        (small, other_activation, "module '2' is a ReLU, it was a Tanh"),
        (small, no_bias, "4.bias is gone"),
        (small, wrapped, "module '4' is a Sequential, it was a Linear"),
        (small, longer, "module '7' is new"),
        (small, transposed, r"0.weight has strides \(1, 8\), the plan was made for \(6, 1\)"),
        (Tied, untied, "two.weight is no longer tied to one.weight"),
    ],
)
def test_a_change_of_the_model_is_noticed(make, change, says):
    model = make()
    cap, net, x, y = planned(model)
    net(x, targets=y).backward()
    change(model)
    with pytest.raises(ValueError, match=says):
        net(x, targets=y)
    net.fallback = "warn"
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match=says):
        loss = net(x, targets=y)
    torch.manual_seed(3)
    assert torch.equal(loss, F.cross_entropy(twin(x), y))
    if change is not eval_norm:  # a run of its own follows the capture's modes
        with pytest.raises(ValueError, match=says.split(", the plan")[0]):
            execute(cap)


def test_parts_in_eval_mode_stay_so():
    model = small()
    model[1].eval()
    _, net, x, y = planned(model)
    assert net.training and not model[1].training and model[3].training
    mean = model[1].running_mean.clone()
    net(x, targets=y).backward()
    assert torch.equal(model[1].running_mean, mean)


def test_a_second_derivative_is_refused():
    _, net, x, y = planned(small())
    with pytest.raises(ExecutionError, match="second derivative would silently be zero"):
        torch.autograd.grad(net(x, targets=y), list(net.parameters()), create_graph=True)


def test_a_deep_copy_trains_by_itself():
    model = small()
    _, net, x, y = planned(model)
    other = copy.deepcopy(net)
    assert other.schedule is net.schedule and other.model is not model and other.cap is not net.cap
    for module in (net, other):
        torch.manual_seed(1)
        module(x, targets=y).backward()
    for a, b in zip(model.parameters(), other.model.parameters()):
        assert a is not b and torch.equal(a.grad, b.grad)
    for a, b in zip(model.buffers(), other.model.buffers()):
        assert a is not b and torch.equal(a, b)


def test_buffers_are_the_models_and_an_average_of_the_weights_can_be_kept():
    model = small()
    _, net, x, y = planned(model)
    assert [id(b) for b in net.buffers()] == [id(b) for b in model.buffers()]
    average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    net(x, targets=y).backward()
    average.update_parameters(net)
    assert all(torch.equal(a, b) for a, b in zip(average.module.parameters(), net.parameters()))


class Named(nn.Module):
    """Children that are called as the planned module's own are."""

    def __init__(self):
        super().__init__()
        self.model, self.loss = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.loss(self.model(x))


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, output, target):
        return F.cross_entropy(output, target) * self.weight + self.bias


@pytest.mark.parametrize("loss", [F.cross_entropy, Weighted()])
def test_state_dicts_pass_between_models_whose_children_are_called_model_and_loss(loss):
    model, x, y = Named(), torch.randn(4, 6), torch.randint(0, 3, (4,))
    net = apply(capture(model, x, loss, targets=y))
    state = {name: torch.full_like(value, 2) for name, value in net.state_dict().items()}
    assert set(model.state_dict()) <= set(state) | {"loss.weight", "loss.bias"}
    net.load_state_dict(state)
    assert all((value == 2).all() for value in net.state_dict().values())
    if loss is F.cross_entropy:
        net.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
        assert all((value == 1).all() for value in model.state_dict().values())
        model.load_state_dict(net.state_dict())


def test_targets_may_follow_the_models_arguments():
    _, net, x, y = planned(small())
    losses = []
    for call in (lambda: net(x, y), lambda: net(x, targets=y)):
        torch.manual_seed(2)
        losses.append(call())
    assert torch.equal(*losses)


def test_what_cannot_be_pickled_says_what_to_save():
    _, net, _, _ = planned(small())
    for thing in (net, net.cap):
        with pytest.raises(TypeError, match=r"save model.state_dict\(\) and the plan"):
            pickle.dumps(thing)
