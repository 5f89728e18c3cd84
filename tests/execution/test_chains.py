"""Chains of real modules: gradients, random state, buffers, memory and training against plain backpropagation."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import remat_lab as rl
from remat_lab.execution.chain_run import ChainRun
from remat_lab.execution.measure import meter_for
from remat_lab.solvers import bptt

METHODS = ("bptt-hsm", "bptt-ism", "bptt-msm", "revolve", "rotor", "chen-sqrt", "chen-recursive")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the workspace of some kernels depends on it
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


class Noisy(nn.Module):
    """A cell with dropout inside, two tensors of state, and an output of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRUCell(6, 10), nn.GRUCell(10, 10)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(10, 4)

    def forward(self, x, state):
        a = self.first(x, state[0])
        b = self.second(self.drop(a), state[1])
        return self.out(self.drop(b)), (a, b)


def recurrent(kind: str, steps: int = 40) -> rl.Chain:
    x = torch.randn(steps, 8, 12)
    if kind == "lstm every":
        targets = torch.randint(0, 5, (steps, 8))
        head = nn.Sequential(nn.Linear(24, 5), nn.LogSoftmax(-1))
        loss = HeadLoss(head)
        return rl.Chain.from_rnn(
            nn.LSTMCell(12, 24), steps, inputs=x, targets=targets, loss=loss, loss_at="every"
        )
    if kind == "lstm end":
        return rl.Chain.from_rnn(nn.LSTMCell(12, 24), steps, inputs=x)
    if kind == "gru":
        return rl.Chain.from_rnn(nn.GRUCell(12, 24), steps, inputs=x)
    if kind == "plain":
        return rl.Chain.from_rnn(nn.RNNCell(12, 24), steps, inputs=x, loss_at="every")
    if kind == "layers":
        return rl.Chain.from_rnn(nn.LSTM(12, 16, num_layers=2), steps, inputs=torch.randn(steps, 3, 8, 12))
    assert kind == "noisy"
    state = (torch.zeros(8, 10), torch.zeros(8, 10))
    targets = torch.randint(0, 4, (steps, 8))
    return rl.Chain.from_rnn(
        Noisy(),
        steps,
        inputs=torch.randn(steps, 8, 6),
        targets=targets,
        state=state,
        loss=nn.CrossEntropyLoss(),
        loss_at="every",
    )


class HeadLoss(nn.Module):
    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, output, target):
        return nn.functional.nll_loss(self.head(output), target)


def blocks() -> nn.Sequential:
    def block(i: int, o: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    layers = [block(3, 12), *[block(12, 12) for _ in range(4)], block(12, 24, 2)]
    layers += [*[block(24, 24) for _ in range(3)], nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 10))


def conv_chain() -> rl.Chain:
    return rl.Chain.from_sequential(
        blocks(), torch.randn(8, 3, 24, 24), loss=nn.CrossEntropyLoss(), targets=torch.randint(0, 10, (8,))
    )


def make(kind: str) -> rl.Chain:
    return conv_chain() if kind == "conv" else recurrent(kind)


def left_behind(chain: rl.Chain, step) -> tuple:
    """Loss, gradients, buffers and random state after a step from a known start."""
    module = chain.stages.module
    module.zero_grad(set_to_none=True)
    buffers = [b.clone() for b in module.buffers()]
    torch.manual_seed(7)
    run = step()
    found = (
        run.loss,
        [None if p.grad is None else p.grad.clone() for p in module.parameters()],
        [b.clone() for b in module.buffers()],
        torch.get_rng_state(),
    )
    with torch.no_grad():
        for buffer, old in zip(module.buffers(), buffers):
            buffer.copy_(old)
    return found


def assert_equal(got, want, bits: bool = True):
    same = torch.equal if bits else lambda a, b: torch.allclose(a, b, rtol=1e-5, atol=1e-7)
    assert torch.equal(got[0], want[0])
    for a, b in zip(got[1], want[1], strict=True):
        assert (a is None) == (b is None) and (a is None or same(a, b))
    assert all(torch.equal(a, b) for a, b in zip(got[2], want[2], strict=True))
    assert torch.equal(got[3], want[3])


KINDS = ["lstm every", "lstm end", "gru", "plain", "layers", "noisy", "conv"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_leaves_what_plain_backpropagation_leaves(kind):
    """Loss, gradients, buffers and random state, bit for bit.

    "layers" takes several time steps in each step of the chain, so each step sums its own use of a weight
    first: another order of addition, another last bit.
    """
    chain = make(kind)
    want = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    plans = [None]
    for method in METHODS:
        least = rl.minimum_budget(chain, method) if method != "chen-recursive" else None
        plans.append(rl.solve(chain, least, method))
        if least is not None:
            plans.append(rl.solve(chain, (least + rl.vanilla_peak(chain)) // 2, method))
    assert any(plan.schedule.recomputed_ops > chain.steps for plan in plans[1:])
    for plan in plans:
        got = left_behind(chain, lambda plan=plan: rl.execute(chain, plan, measure=False))
        assert_equal(got, want, bits=kind != "layers")


@pytest.mark.parametrize("kind", ["lstm every", "lstm end", "gru", "plain", "conv"])
def test_predicted_and_measured_peaks_agree(kind):
    """To the byte, but for buffers' clones.

    Only a step that runs again works on clones of its buffers, and may hold them in its internal state; the
    prediction takes any internal state to hold them.
    """
    below = 0
    if kind == "conv":
        chain = conv_chain()
        below = sum(buffer.nbytes for buffer in chain.stages.module.buffers())
    else:
        x = torch.randn(24, 16, 64)
        cell = {"l": nn.LSTMCell, "g": nn.GRUCell, "p": nn.RNNCell}[kind[0]](64, 128)
        chain = rl.Chain.from_rnn(cell, 24, inputs=x, loss_at="every" if "every" in kind else "end")
    for method in ("vanilla", "bptt-hsm", "bptt-ism", "rotor", "chen-sqrt", "chen-recursive"):
        least = rl.minimum_budget(chain, method)
        budget = int(least + 0.3 * max(0, rl.vanilla_peak(chain) - least))
        run = rl.execute(chain, rl.solve(chain, budget, method))
        assert -below <= run.difference <= 0, (method, run)
        assert abs(run.difference) <= 0.001 * run.predicted.peak


class Counting(nn.Module):
    """A cell whose output, dropout and moving statistics may all be had; a state in two parts."""

    def __init__(self, drop: float = 0.0, moves: bool = False):
        super().__init__()
        self.read, self.turn, self.out = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.drop, self.moves = nn.Dropout(drop), moves
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, state):
        h, c = state
        c = self.drop((self.read(x) + self.turn(h) - self.mean).tanh()) + c * 0.5
        if self.moves:
            with torch.no_grad():
                self.mean = self.mean * 0.9 + c.mean(0) * 0.1
                self.calls.add_(1)
        h = c.sigmoid()
        return self.out(h), (h, c)


def counting_chain(steps: int, drop: float, moves: bool, loss_at: str) -> rl.Chain:
    torch.manual_seed(0)
    targets = torch.randn(steps, 3, 4)
    return rl.Chain.from_rnn(
        Counting(drop, moves),
        steps,
        inputs=torch.randn(steps, 3, 6),
        targets=targets if loss_at == "every" else targets[0],
        state=(torch.zeros(3, 12), torch.zeros(3, 12)),
        loss=nn.functional.mse_loss,  # on the CPU, its one number lies in a storage as large as the output
        loss_at=loss_at,
    )


@pytest.mark.parametrize("loss_at", ["every", "end"])
@pytest.mark.parametrize("moves", [False, True])
def test_no_step_holds_more_than_the_chain_says(moves, loss_at):
    """However many steps: losses, moving buffers and random states of single steps do not gather."""
    for steps in (9, 25):
        chain = counting_chain(steps, 0.2 if moves else 0.0, moves, loss_at)
        assert not any(b.any() for b in chain.stages.cell.buffers())  # measuring moves nothing
        want = left_behind(chain, lambda chain=chain: rl.plain_chain(chain, measure=False))
        for method in ("vanilla", "revolve", "bptt-msm"):
            plan = rl.solve(chain, "min", method)
            runs = {}

            def step(chain=chain, plan=plan, runs=runs):
                runs["one"] = rl.execute(chain, plan)
                return runs["one"]

            assert_equal(left_behind(chain, step), want)
            run = runs["one"]
            if method == "vanilla" and moves:  # no step runs again, so no hidden state has buffers
                assert run.peak <= plan.peak
            else:
                assert run.difference == 0, (steps, method, run)
            net, meter = rl.apply_chain(chain, plan), meter_for("cpu")
            net()[0].backward()
            net.zero_grad()
            with meter:
                loss, state = net()
                loss.backward()
            handed_out = sum(x.nbytes for x in state)
            assert meter.levels.peak <= plan.peak + handed_out
            with torch.no_grad():
                for b in chain.stages.cell.buffers():
                    b.zero_()


def test_the_loss_and_its_gradient_are_counted_at_the_last_step():
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(5)])
    chain = rl.Chain.from_sequential(
        model, torch.randn(8, 16), loss=nn.functional.mse_loss, targets=torch.randn(8, 16)
    )
    run = rl.execute(chain, rl.solve(chain, None, "vanilla"))
    assert run.difference == 0
    backward = np.flatnonzero(run.schedule.actions > chain.seed_op)
    assert np.array_equal(run.during[backward], run.predicted.during[backward])


def test_a_loss_with_statistics_of_its_own_moves_them_once():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(24, affine=False)

        def forward(self, output):
            return self.norm(output).square().mean() + output.mean()

    chain = rl.Chain.from_rnn(
        nn.GRUCell(12, 24), 20, inputs=torch.randn(20, 8, 12), loss=Centred(), loss_at="every"
    )
    want = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    plan = rl.solve(chain, "min", "revolve")
    assert_equal(left_behind(chain, lambda: rl.execute(chain, plan)), want)
    assert rl.execute(chain, plan).peak <= plan.peak


@pytest.mark.slow
def test_a_thousand_steps_in_six_percent_of_the_memory():
    """The headline on a real LSTM; the parameters' gradients apart, in both measurements."""
    chain = rl.Chain.from_rnn(nn.LSTMCell(32, 64), 1000, inputs=torch.randn(1000, 8, 32))
    parameters = sum(4 * p.numel() for p in chain.stages.module.parameters())
    standard = rl.plain_chain(chain)
    want = [p.grad for p in chain.stages.module.parameters()]
    chain.stages.module.zero_grad(set_to_none=True)
    plan = rl.solve(chain, int(0.06 * (standard.peak - parameters)) + parameters, "rotor")
    run = rl.execute(chain, plan)
    assert run.peak - parameters <= 0.06 * (standard.peak - parameters)
    assert run.difference == 0
    assert plan.details.forward_steps < 2000
    assert torch.equal(run.loss, standard.loss)
    assert all(torch.equal(a, p.grad) for a, p in zip(want, chain.stages.module.parameters()))


@pytest.mark.parametrize("method", ["bptt-hsm", "bptt-ism", "bptt-msm"])
@pytest.mark.parametrize("m", [2, 3, 6])
def test_the_executor_holds_no_more_than_m_and_runs_c_steps(method, m):
    """Counted while it runs, before each backward step: all that is pushed is there then."""
    chain = rl.Chain.from_rnn(nn.GRUCell(3, 4), 50, inputs=torch.randn(50, 2, 3))
    assert chain.uniform
    alpha = chain.alpha if method == "bptt-msm" else 1
    plan = rl.solve(rl.Chain(50, internal=alpha), m * alpha, method, accounting="paper")
    cost = {
        "bptt-hsm": bptt.hsm_steps(50, m),
        "bptt-ism": bptt.ism_steps(50, m),
        "bptt-msm": bptt.msm_table(50, m * alpha, alpha)[m * alpha, 50],
    }[method]
    calls: list[int] = []
    handle = chain.stages.cell.register_forward_hook(lambda *_: calls.append(1))
    run = ChainRun(chain, chain.stages, plan.schedule, chain.call)
    run.advance()
    handle.remove()
    assert len(calls) == cost == plan.details.forward_steps
    backward = np.isin(plan.schedule.actions, [chain.backward_op(t) for t in range(1, 51)])
    hidden, internal = run.held[np.flatnonzero(backward) - 1].T
    if method == "bptt-hsm":
        assert internal.max() == 1 and hidden.max() + 1 == m  # the working internal state is free; h_0 is not
    else:
        assert (hidden + alpha * internal).max() <= m * alpha


def test_dropout_masks_are_those_of_the_first_run():
    chain = recurrent("noisy")
    assert chain.stages.draws
    want = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    again = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    assert torch.equal(want[0], again[0])
    torch.manual_seed(8)
    assert not torch.equal(rl.plain_chain(chain, measure=False).loss, want[0])


def test_modules_that_share_memory_are_one_stage():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    chain = rl.Chain.from_sequential(model, torch.randn(2, 3, 8, 8))
    assert chain.steps == 2
    want = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    plan = rl.solve(chain, None, "chen-recursive")
    assert_equal(left_behind(chain, lambda: rl.execute(chain, plan)), want)


def test_gradients_add_to_what_is_there_and_reach_the_initial_state():
    state = torch.zeros(8, 24, requires_grad=True)
    chain = rl.Chain.from_rnn(nn.GRUCell(12, 24), 20, inputs=torch.randn(20, 8, 12), state=state)
    plan = rl.solve(chain, 3, "bptt-ism", accounting="paper")
    rl.execute(chain, plan)
    once = [x.grad.clone() for x in (state, *chain.stages.cell.parameters())]
    rl.execute(chain, plan)
    for x, g in zip((state, *chain.stages.cell.parameters()), once):
        assert torch.equal(x.grad, g + g)
    state.grad = None
    rl.plain_chain(chain)
    assert torch.equal(state.grad, once[0])


# -- training ------------------------------------------------------------------------------------------------
def text() -> torch.Tensor:
    """A text of our own making, as numbers: counting, in words."""
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    line = ". ".join(" ".join(words[int(d)] for d in str(n)) for n in range(400))
    letters = sorted(set(line))
    return torch.tensor([letters.index(c) for c in line])


class Characters(nn.Module):
    """An LSTM cell that reads letters."""

    def __init__(self, letters: int, size: int):
        super().__init__()
        self.embed, self.cell = nn.Embedding(letters, 16), nn.LSTMCell(16, size)

    def forward(self, letter, state):
        return self.cell(self.embed(letter), state)


def train(chain, step, windows: int = 12) -> list[float]:
    """Truncated backpropagation through time over one long text: the state goes on, detached."""
    batch, steps = 4, chain.steps
    data = text()
    data = data[: len(data) // batch * batch].view(batch, -1).t()
    module = chain.stages.module
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    state, losses = None, []
    for w in range(windows):
        length = steps if w % 4 else steps - 7  # a shorter piece now and then
        x, y = data[w * steps : w * steps + length], data[w * steps + 1 : w * steps + 1 + length]
        optimizer.zero_grad()
        loss, state = step(x, y, state)
        (loss / length).backward()
        optimizer.step()
        losses.append(loss.item() / length)
    return losses


def character_chain(steps: int = 60) -> rl.Chain:
    torch.manual_seed(3)
    letters = int(text().max()) + 1
    head = HeadLoss(nn.Sequential(nn.Linear(32, letters), nn.LogSoftmax(-1)))
    data = text()[: 4 * steps].view(4, steps).t()
    state = (torch.zeros(4, 32), torch.zeros(4, 32))
    return rl.Chain.from_rnn(
        Characters(letters, 32), steps, inputs=data, targets=data, state=state, loss=head, loss_at="every"
    )


def standard(chain):
    def step(x, y, state):
        hidden = chain.call.initial if state is None else state
        total = None
        for t in range(len(x)):
            hidden = chain.stages.cell(x[t], tuple(hidden))
            loss = chain.stages.loss(hidden[0], y[t])
            total = loss if total is None else total + loss
        return total, tuple(h.detach() for h in hidden)

    return step


@pytest.mark.parametrize("method", ["bptt-ism", "rotor"])
def test_the_loss_curve_of_a_character_model_is_the_standard_one(method):
    chain = character_chain()
    want = train(chain, standard(chain))
    again = character_chain()
    plan = rl.solve(again, "40%", method)
    net = rl.apply_chain(again, plan)
    got = train(again, net)
    assert got == want
    assert want[-1] < 0.9 * want[0]
    assert all(
        torch.equal(a, b) for a, b in zip(again.stages.module.parameters(), chain.stages.module.parameters())
    )


def test_the_trained_module_is_an_ordinary_one():
    chain = character_chain()
    net = rl.apply_chain(chain, rl.solve(chain, 5, "bptt-ism", accounting="paper"))
    assert len(list(net.parameters())) == 1 + 4 + 2
    x = text()[: 4 * 60].view(4, 60).t()
    with torch.no_grad():
        quiet, _ = net(x, x)
    loss, state = net(x, x)
    assert torch.equal(loss, quiet) and not state[0].requires_grad
    hooked = []
    next(net.parameters()).register_hook(hooked.append)
    (0.5 * loss).backward()
    assert len(hooked) == 1  # once, with the whole gradient
    halved = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x, x)[0].backward()
    assert all(torch.allclose(2 * a, p.grad) for a, p in zip(halved, net.parameters()))
    conv = conv_chain()
    model = rl.apply_chain(conv, rl.solve(conv, rl.minimum_budget(conv, "rotor"), "rotor"))
    model(torch.randn(4, 3, 24, 24), torch.randint(0, 10, (4,))).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("kind", ["lstm end", "conv"])
def test_a_training_step_holds_the_plans_memory_and_what_is_handed_out(kind):
    chain = make(kind)
    plan = rl.solve(chain, rl.minimum_budget(chain, "rotor"), "rotor")
    net = rl.apply_chain(chain, plan)
    out = net(chain.call.inputs, chain.call.targets)
    (out if kind == "conv" else out[0]).backward()
    handed_out = 0 if kind == "conv" else sum(x.nbytes for x in out[1])
    del out
    net.zero_grad()
    meter = meter_for("cpu")
    with meter:
        out = net(chain.call.inputs, chain.call.targets)
        (out if kind == "conv" else out[0]).backward()
    assert meter.levels.peak == plan.peak + handed_out


def maps() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(8, 5))


def planned(model: nn.Sequential, method: str = "revolve") -> tuple[rl.Chain, nn.Module]:
    chain = rl.Chain.from_sequential(
        model, torch.randn(4, 8), loss=nn.functional.cross_entropy, targets=torch.tensor([0, 1, 2, 3])
    )
    return chain, rl.apply_chain(chain, rl.solve(chain, "min", method))


class Scaled(nn.Module):
    """Reads a buffer that it does not change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        return x * self.scale


def test_what_the_backward_reads_must_be_what_the_forward_read():
    model = maps()
    model[3] = Scaled()
    net = planned(model)[1]
    x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    changes = {
        "'4.weight' was modified": lambda: model[4].weight.mul_(2),
        "'3.scale' was modified": lambda: model[3].scale.mul_(2),
        "'the inputs' was modified": lambda: x.mul_(2),
        r"train\(\) or eval\(\)": lambda: model.eval(),
    }
    for message, change in changes.items():
        loss = net(x, y)
        with torch.no_grad():
            change()
        with pytest.raises(rl.ExecutionError, match=message):
            loss.backward()
        assert all(p.grad is None for p in model.parameters())
        model.train()
    loss = net(x, y)
    old, model[4].weight = model[4].weight, nn.Parameter(torch.zeros(8, 8))
    loss.backward()  # a parameter put in place of another is the next step's
    assert old.grad is not None and model[4].weight is not old and model[4].weight.grad is None
    want = nn.functional.cross_entropy(model(x), y)
    assert torch.equal(net(x, y), want)
    net(x, y).backward()
    assert model[4].weight.grad is not None
    # Statistics that steps move are copied for the steps that run again: a second forward may move them on.
    moving = conv_chain()
    net = rl.apply_chain(moving, rl.solve(moving, "min", "rotor"))
    first, second = net(), net()
    (first + second).backward()


def test_a_module_changed_after_measuring_is_noticed():
    model = maps()
    chain, net = planned(model)
    old, model[12] = model[12], nn.Linear(8, 5)
    for use in (net, lambda: rl.execute(chain, None), lambda: rl.plain_chain(chain)):
        with pytest.raises(
            ValueError, match=r"module '12' of the Sequential was replaced.*measure the chain again"
        ):
            use()
    model[12] = old
    net().backward()
    model.append(nn.Tanh())
    with pytest.raises(ValueError, match="module '13' of the Sequential was added"):
        net()
    chain = recurrent("lstm every", 4)
    chain.stages.loss.head[0] = nn.Linear(24, 5)
    with pytest.raises(ValueError, match=r"module 'loss\.head\.0' of the LSTMCell was replaced"):
        rl.execute(chain, None)


class Awkward(nn.Module):
    """A cell with names that a wrapper might use itself."""

    input_size = 3

    def __init__(self):
        super().__init__()
        self.module, self.loss, self.model = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4))
        self.module.module = nn.Linear(4, 4)

    def forward(self, x, state=None):
        x = self.module.module(self.module(x)) * self.weight
        return x if state is None else x + self.loss(self.model(state))


@pytest.mark.parametrize("kind", ["sequential", "cell", "awkward"])
def test_checkpoints_pass_between_a_chain_and_its_model(kind):
    def made() -> tuple[nn.Module, nn.Module]:
        if kind == "sequential":
            model = blocks()
            chain = rl.Chain.from_sequential(model, torch.randn(8, 3, 24, 24))
        else:
            model = Awkward() if kind == "awkward" else nn.GRUCell(3, 4)
            head = HeadLoss(nn.Linear(4, 2))
            targets = torch.zeros(5, 1, dtype=torch.int64)
            chain = rl.Chain.from_rnn(model, 5, loss=head, targets=targets, loss_at="every")
        return model, rl.apply_chain(chain, rl.solve(chain, None, "chen-recursive"))

    (model, net), (other, again) = made(), made()
    saved = net.state_dict()
    losses = set(saved) - set(model.state_dict())
    assert set(model.state_dict()) <= set(saved)
    want = {"sequential": set(), "cell": {"loss.head.weight", "loss.head.bias"}}
    assert losses == want.get(kind, {"loss_.head.weight", "loss_.head.bias"})
    assert all(torch.equal(saved[key], value) for key, value in model.state_dict().items())
    other.load_state_dict({key: value for key, value in saved.items() if key not in losses})
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))
    missing, unexpected = made()[1].load_state_dict(model.state_dict(), strict=False)
    assert len(missing) == len(losses) and not unexpected
    model, net = made()
    again.load_state_dict(net.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), net.parameters(), strict=True))
    outer, target = (nn.ModuleDict({"net": made()[1], "rest": nn.Linear(2, 2)}) for _ in range(2))
    assert {f"net.{key}" for key in saved} | {"rest.weight", "rest.bias"} == set(outer.state_dict())
    target.load_state_dict(outer.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(outer.parameters(), target.parameters(), strict=True))
    lacking = {**outer.state_dict(), "net.nothing": torch.zeros(1)}
    name = f"net.{next(iter(model.state_dict()))}"
    del lacking[name]
    missing, unexpected = target.load_state_dict(lacking, strict=False)
    assert (missing, unexpected) == ([name], ["net.nothing"])
    doubled = copy.deepcopy(net)
    doubled.load_state_dict(saved)
    loss = doubled() if kind == "sequential" else doubled()[0]
    loss.backward()
    assert all(p.grad is not None for p in doubled.parameters())
    assert all(p.grad is None for p in net.parameters())


def test_a_call_beyond_what_was_measured_warns_once():
    chain, net = planned(maps())
    y = torch.tensor([0, 1, 2, 3])
    with pytest.warns(
        UserWarning, match=r"planned for \(4, 8\) float32 on cpu, got \(8, 8\).*budget is not kept"
    ):
        net(torch.randn(8, 8), torch.cat([y, y])).backward()
    with (
        pytest.warns(UserWarning, match="autocast off, it is torch.bfloat16"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        net(torch.randn(4, 8), y).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(torch.randn(8, 8), torch.cat([y, y])).backward()  # the same reason
        net(torch.randn(2, 8), y[:2]).backward()
        with torch.no_grad():
            net(torch.randn(9, 8), torch.cat([y, y, y[:1]]))
    recurrent_chain = rl.Chain.from_rnn(nn.GRUCell(3, 4), 6, batch=2)
    net = rl.apply_chain(recurrent_chain, rl.solve(recurrent_chain, "min", "chen-sqrt"))
    with pytest.warns(UserWarning, match=r"got \(3, 4\)"):
        net(torch.randn(6, 3, 3))
    with pytest.raises(rl.InfeasibleBudget, match="a sequence of 60 steps: chen-sqrt cannot fit"):
        net(torch.randn(60, 2, 3))
    with pytest.raises(TypeError, match="plan must be a Plan"):
        rl.apply_chain(chain, None)


@pytest.mark.parametrize("recurrent_one", [False, True])
def test_a_chain_measured_in_eval_mode_trains_as_eager_does(recurrent_one):
    """What draws or moves in training mode only is replayed all the same."""
    if recurrent_one:
        cell = Noisy().eval()
        state = (torch.zeros(8, 10), torch.zeros(8, 10))
        chain = rl.Chain.from_rnn(cell, 12, inputs=torch.randn(12, 8, 6), state=state, loss_at="every")
    else:
        chain = rl.Chain.from_sequential(blocks().eval(), torch.randn(8, 3, 24, 24))
    plan = rl.solve(chain, "min", "revolve")
    chain.stages.model.train()
    want = left_behind(chain, lambda: rl.plain_chain(chain, measure=False))
    assert_equal(left_behind(chain, lambda: rl.execute(chain, plan)), want)
    with pytest.warns(UserWarning, match="planned for other modes"):
        rl.apply_chain(chain, plan)()


# -- saying no -----------------------------------------------------------------------------------------------
class InPlace(nn.Module):
    input_size = 3

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x, state=None):
        return self.map(x) if state is None else state.mul_(0.5) + self.map(x)


def test_wrong_models_and_plans_name_the_culprit():
    with pytest.raises(rl.CaptureError, match="in place"):
        rl.Chain.from_rnn(InPlace(), 5, batch=2)
    with pytest.raises(rl.CaptureError, match="first module"):
        rl.Chain.from_sequential(nn.Sequential(nn.ReLU(inplace=True)), torch.randn(3))
    with pytest.raises(rl.CaptureError, match="one number"):
        rl.Chain.from_sequential(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3), loss=lambda y: y)
    with pytest.raises(TypeError, match=r"nn\.Sequential"):
        rl.Chain.from_sequential(nn.Linear(3, 3), torch.randn(3))
    with pytest.raises(ValueError, match="loss_at"):
        rl.Chain.from_rnn(nn.GRUCell(3, 4), 5, loss_at="x")
    with pytest.raises(ValueError, match="inputs holds 4 steps"):
        rl.Chain.from_rnn(nn.GRUCell(3, 4), 5, inputs=torch.randn(4, 1, 3))
    chain = rl.Chain.from_rnn(nn.GRUCell(3, 4), 5)
    with pytest.raises(ValueError, match="solve for this chain"):
        rl.execute(chain, rl.solve(rl.Chain(4), 2, "bptt-ism", accounting="paper"))
    with pytest.raises(TypeError, match="from_sequential or Chain"):
        rl.execute(rl.Chain(4), None)


def test_what_fails_while_measuring_is_named():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("too hot")

    class Maps(nn.Module):
        def forward(self, x):
            return {"a": x}

    class Doubled(nn.Sequential):
        def forward(self, x):
            return super().forward(super().forward(x))

    x = torch.randn(2, 3)
    cases = {
        r"stage 2, module '1' \(Linear\): RuntimeError: mat1": [nn.Linear(3, 4), nn.Linear(5, 4)],
        r"stage 2, module '1' \(Fails\): RuntimeError: too hot": [nn.Linear(3, 4), Fails()],
        r"stage 2, module '1' \(Maps\): .*got dict": [nn.Linear(3, 4), Maps(), nn.Tanh()],
    }
    for message, layers in cases.items():
        with pytest.raises(rl.CaptureError, match=message) as refused:
            rl.Chain.from_sequential(nn.Sequential(*layers), x)
        assert refused.value.__cause__ is not None
    with pytest.raises(rl.CaptureError, match=r"the inputs: .*got NoneType"):
        rl.Chain.from_sequential(nn.Sequential(nn.Linear(3, 4)), None)
    with pytest.raises(rl.CaptureError, match="the loss of step 1: ZeroDivisionError"):
        rl.Chain.from_sequential(nn.Sequential(nn.Linear(3, 4)), x, loss=lambda y: 1 / 0)
    with pytest.raises(rl.CaptureError, match="Doubled has a forward of its own"):
        rl.Chain.from_sequential(Doubled(nn.Linear(3, 3)), x)
    with pytest.raises(rl.CaptureError, match=r"step 1 \(GRUCell\): .*input_size"):
        rl.Chain.from_rnn(nn.GRUCell(3, 4), 3, inputs=torch.randn(3, 1, 5))
    inputs = [torch.randn(1, 3), torch.randn(1, 3), torch.randn(1, 5)]
    with pytest.raises(rl.CaptureError, match=r"step 3 \(GRUCell\): .*input_size"):
        rl.Chain.from_rnn(nn.GRUCell(3, 4), 3, inputs=inputs)


def test_a_failing_step_leaves_the_model_as_it_was():
    class Fails(nn.GRUCell):
        calls = -1000

        def forward(self, *args):
            self.calls += 1
            if self.calls == 8:
                raise RuntimeError("too hot")
            return super().forward(*args)

    cell = Fails(3, 4)
    chain = rl.Chain.from_rnn(cell, 6)
    own = list(cell.parameters())
    cell.calls = 0
    with pytest.raises(rl.ExecutionError, match="too hot") as refused:
        rl.execute(chain, rl.solve(chain, 2, "bptt-ism", accounting="paper"), measure=False)
    assert refused.value.op is not None and refused.value.op in refused.value.args[0]
    assert all(a is b for a, b in zip(cell.parameters(), own)) and own[0].grad is None
