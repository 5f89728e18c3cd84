"""capture(): what is in the graph, without running the model."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remat_lab.errors import CaptureError, ExecutionError
from remat_lab.execution.capture import capture
from remat_lab.execution.execute import execute
from remat_lab.joint import CATEGORIES
from remat_lab.plan import solve
from remat_lab.schedule import Schedule
from remat_lab.simulate import simulate


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        h = self.drop(self.relu(self.norm(self.conv(x))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(h + 1, 1), 1))


@pytest.fixture(scope="module")
def conv():
    images, labels = torch.randn(2, 3, 8, 8), torch.tensor([1, 2])
    return capture(ConvNet(), images, F.cross_entropy, targets=labels)


def values(joint, category):
    which = np.flatnonzero(joint.value_category == CATEGORIES.index(category))
    return {joint.value_names[v]: int(joint.value_bytes[v]) for v in which.tolist()}


def test_values_are_named_and_categorized(conv):
    assert values(conv.joint, "parameter") == {
        "conv.weight": 864,
        "conv.bias": 32,
        "norm.weight": 32,
        "norm.bias": 32,
        "head.weight": 128,
        "head.bias": 16,
    }
    assert values(conv.joint, "input") == {"input 0": 1536, "target 0": 16}
    assert sorted(values(conv.joint, "parameter gradient").values()) == [16, 32, 32, 32, 128, 864]
    assert list(values(conv.joint, "output").values()) == [4]


def test_ops_know_their_module_forward_and_backward(conv):
    where = dict(zip(conv.joint.op_names, conv.joint.op_modules))
    assert where["convolution"] == where["convolution_backward"] == "conv"
    assert where["addmm"] == where["mm"] == "head"


def test_dropout_is_the_kernels_eager_runs(conv):
    kinds = set(conv.joint.op_types)
    assert "bernoulli" in kinds and "native_dropout" not in kinds


def test_layers_have_one_node_per_primary_output(conv):
    layers = conv.layers
    assert list(layers.ops) == [
        "conv2d",
        "batch_norm",
        "relu",
        "dropout",
        "add",
        "adaptive_avg_pool2d",
        "flatten",
        "linear",
        "cross_entropy",
    ]
    assert layers.memory.tolist() == [4096, 4096, 4096, 4096, 4096, 64, 64, 32, 4]
    assert layers.time.tolist() == [10.0] + [1.0] * 8
    assert layers.joint is conv.joint
    assert simulate(Schedule.vanilla(layers.joint)).peak > 0


def test_a_model_on_the_meta_device_is_captured_without_allocating():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
        x = torch.empty(1 << 24, 4096)  # 256 GiB
    cap = capture(net, x, lambda y: y.sum())
    assert cap.joint.value_bytes.max() == (1 << 24) * 4096 * 4
    assert all(p.is_meta for p in net.parameters())


def test_capture_leaves_model_and_random_state_alone():
    net, x = ConvNet(), torch.randn(2, 3, 8, 8)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    capture(net, x, lambda y: y.sum())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not net._forward_hooks and all(p.grad is None for p in net.parameters())


def test_tied_weights_are_one_value():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    cap = capture(Tied(), torch.tensor([1, 2, 3]), lambda y: y.square().sum())
    assert len(values(cap.joint, "parameter")) == 1
    assert len(values(cap.joint, "parameter gradient")) == 1


class Branch(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.linear, self.step = nn.Linear(4, 4), step

    def forward(self, x):
        return self.step(self.linear(x))


@pytest.mark.parametrize(
    "step, words",
    [
        (lambda h: h if h.sum() > 0 else -h, ["reads a number", "_local_scalar_dense"]),
        (lambda h: h[h > 0], ["shape depends on data"]),
        (lambda h: h[h.nonzero()[:, 0]], ["nonzero", "shape depends on data"]),
        (lambda h: h * float(h.sum()), ["reads a number"]),
    ],
)
def test_data_dependent_constructs_are_refused_by_name(step, words):
    with pytest.raises(CaptureError) as caught:
        capture(Branch(step), torch.randn(3, 4), lambda y: y.sum())
    assert all(word in str(caught.value) for word in words)


def test_a_model_that_avoids_data_under_a_compiler_is_captured_that_way_and_says_so():
    def step(h):
        if not torch.compiler.is_compiling() and bool((h > 0).all()):
            return h
        return torch.where(h > 0, h, -h)

    model, x = Branch(step), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="Branch chooses its path by data.*torch.compile"):
        cap = capture(model, x, lambda y: y.sum())
    run = execute(cap)
    loss = model(x).sum()
    assert torch.equal(run.loss, loss) and not torch.compiler.is_compiling()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(ours, model.parameters()))


def test_a_transformers_model_takes_an_attention_mask():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **size, bos_token_id=0, eos_token_id=0, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
        )
    )
    ids, mask = torch.randint(0, 30, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[1, :3] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    with pytest.warns(UserWarning, match="GPT2LMHeadModel chooses its path by data"):
        cap = capture(model, batch)
    run = execute(cap)
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(run.loss, loss)
    for mine, theirs in zip(ours, model.parameters()):
        torch.testing.assert_close(mine, theirs.grad)


def test_a_wrong_shape_is_one_error_and_no_log(caplog):
    with pytest.raises(CaptureError, match=r"in module '0'.*\[3, 9\] X \[8, 4\]"):
        capture(nn.Sequential(nn.Linear(8, 4)), torch.randn(3, 9), lambda y: y.sum())
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_batch_norms_backward_needs_no_running_statistics(conv):
    joint = conv.joint
    backward = [op for op in range(joint.n_ops) if "batch_norm_backward" in joint.op_types[op]]
    buffers = {i for i, c in enumerate(joint.value_category) if CATEGORIES[c] == "buffer"}
    assert backward and not any(buffers & set(joint.reads.row(op).tolist()) for op in backward)


def test_what_cannot_be_differentiated_is_refused_with_advice():
    net, x = nn.Linear(4, 4), torch.randn(3, 4)
    with pytest.raises(CaptureError, match=r"shape \(3, 4\).*pass loss="):
        capture(net, x)
    with pytest.raises(CaptureError, match="returned a float"):
        capture(net, x, lambda y: 1.0)
    with pytest.raises(CaptureError, match="every parameter is frozen"):
        capture(nn.Linear(4, 4).requires_grad_(False), x, lambda y: y.sum())
    with pytest.raises(CaptureError, match="dict without a loss"):
        capture(Branch(lambda h: {"logits": h}), x)
    with pytest.raises(CaptureError, match="Embedding '0' makes sparse gradients"):
        capture(nn.Sequential(nn.Embedding(5, 4, sparse=True)), torch.tensor([1]), lambda y: y.sum())
    with pytest.raises(CaptureError, match="momentum=None"):
        capture(nn.Sequential(nn.BatchNorm1d(4, momentum=None)), x, lambda y: y.sum())
    with pytest.raises(CaptureError, match=r"torch\.sparse"):
        capture(net, x.to_sparse(), lambda y: y.sum())
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        capture(lambda x: x, x)
    with pytest.raises(ValueError, match="targets="):
        capture(net, x, targets=x)


def parity(make, steps=3, shape=(3, 4), method="kusumoto-exact"):
    """Loss, gradients and buffers of the plain and the smallest plan against eager, for some steps."""
    x = torch.randn(shape)
    for planned in (False, True):
        model, eager = make(), make()
        cap = capture(model, x, loss=lambda y: y.square().sum())
        net = cap.apply(solve(cap, "min", method=method) if planned else None, fallback="error")
        for _ in range(steps):
            batch = torch.randn(shape)
            for m in (model, eager):
                m.zero_grad()
            loss, expected = net(batch), eager(batch).square().sum()
            assert torch.equal(loss, expected)
            loss.backward()
            expected.backward()
            for mine, theirs in zip(model.parameters(), eager.parameters()):
                assert torch.equal(mine.grad, theirs.grad)
            for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
                assert torch.equal(mine, theirs)


def stateful(step):
    """A maker of models with buffers ``slow``, ``fast``, ``count``, that call ``step(self, h, x)``."""

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)
            self.register_buffer("slow", torch.ones(4))
            self.register_buffer("fast", torch.zeros(4))
            self.register_buffer("held", torch.zeros(3, 4))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            return step(self, self.linear(x), x)

    return Stateful


def test_a_buffer_updated_in_place_may_be_read_by_what_follows():
    def step(self, h, x):
        self.held.add_(h.detach())
        self.slow.mul_(x.mean())
        return (h * self.held + self.slow).cos()

    parity(stateful(step))


TABLES = {}


class Keeper(nn.Module):
    """Keeps what it can lay hands on: an activation, a table made once, counters, a history, a cached function."""

    shared = {}

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.last, self.table, self.steps, self.history = nn.Linear(4, 4), None, None, 0, []
        self.helper = Helper()

    def forward(self, x):
        self.steps += 1
        if self.table is None:
            self.table = torch.arange(4.0).cos()
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(4), persistent=False)
        self.last = self.linear(x * self.table * self.mask * self.helper.scale() * ramp(4))
        self.history.append(self.last)
        self.shared["last"] = Keeper.newest = TABLES["last"] = self.last
        return self.last


class Helper:
    made = None

    def scale(self):
        if self.made is None:
            self.made = torch.full((4,), 2.0)
        return self.made


@functools.lru_cache
def ramp(n):
    return torch.arange(float(n))


def test_capture_leaves_what_forward_keeps_as_it_was():
    model = Keeper()
    before, history = dict(vars(model)), model.history
    capture(model, torch.randn(3, 4), lambda y: y.sum())
    assert vars(model) == before and model.history is history and not history and not model._buffers
    assert not TABLES and not Keeper.shared and not hasattr(Keeper, "newest") and model.helper.made is None
    copy.deepcopy(model)
    assert type(ramp(4)) is torch.Tensor
    with pytest.raises(CaptureError):
        capture(model, torch.randn(3, 5), lambda y: y.sum())
    assert vars(model) == before
    model(torch.randn(3, 4)).sum().backward()
    TABLES.clear()


def test_a_model_that_keeps_things_trains_as_planned():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.table = nn.Linear(4, 4), None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0).cos()
            return self.linear(x * self.table)

    parity(Cached)


def swaps(self, h, x):
    y = h * self.slow + self.fast
    self.slow, self.fast = self.fast, self.slow
    return y


def averages(self, h, x):
    y = h * self.slow * h  # backward reads the old one
    self.slow = (0.9 * self.slow + 0.1 * h.detach().mean(0)).clone()
    self.count = self.count + 1
    return y


def remembers(self, h, x):
    y = (h * self.held).cos() + self.held
    self.held = y.detach()
    self.slow = self.slow[:]
    self.fast = self.slow.flip(0)
    return y + self.fast


def both(self, h, x):
    y = h * self.slow
    self.slow = self.slow + 1
    self.slow.mul_(0.5)
    self.fast.add_(self.slow)
    self.held = x
    return y + self.fast


@pytest.mark.parametrize("step", [swaps, averages, remembers, both])
def test_a_buffer_assigned_in_forward_is_updated(step):
    parity(stateful(step))


def test_an_assigned_buffer_is_updated_by_execute():
    model, eager, x = stateful(averages)(), stateful(averages)(), torch.randn(3, 4)
    execute(capture(model, x, lambda y: y.sum()))
    eager(x)
    assert torch.equal(model.slow, eager.slow) and model.count == 1


@pytest.mark.parametrize(
    "step, words",
    [
        (lambda self, h, x: setattr(self, "slow", h.detach()), "'slow' of Stateful.*another shape.*in place"),
        (lambda self, h, x: setattr(self, "count", self.slow), "'count'.*another shape, dtype"),
        (lambda self, h, x: setattr(self, "slow", None), "'slow'"),
        (lambda self, h, x: setattr(self, "slow", self.linear.bias), "a parameter to the buffer 'slow'"),
        (lambda self, h, x: setattr(self, "new", nn.Linear(4, 4)), "Linear 'new'.*run the model once"),
    ],
)
def test_an_assignment_that_cannot_be_followed_is_refused_by_name(step, words):
    def forward(self, h, x):
        step(self, h, x)
        return h

    with pytest.raises(CaptureError, match=words):
        capture(stateful(forward)(), torch.randn(3, 4), lambda y: y.sum())


@pytest.mark.parametrize(
    "op",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda a: torch.linalg.solve(a, torch.ones(4)) + torch.linalg.inv(a),
    ],
)
def test_linear_algebra_that_checks_itself_is_captured_and_checks_when_it_runs(op):
    class Solver(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)
            self.register_buffer("ridge", torch.eye(4))

        def forward(self, x):
            h = self.linear(x)
            return op(h.T @ h + self.ridge).cos()

    parity(Solver)
    model, x = Solver(), torch.randn(3, 4)
    net = capture(model, x, lambda y: y.sum()).calibrate(k=1).apply()
    with torch.no_grad():
        for tensor in (*model.parameters(), model.ridge):
            tensor.zero_()
    with pytest.raises((ExecutionError, torch.linalg.LinAlgError), match="linalg"):
        net(x)


def planned():
    return capture(nn.Linear(4, 4), torch.randn(3, 4), lambda y: y.sum()).apply()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: nn.Sequential(nn.LazyLinear(4)), "LazyLinear '0'.*run the model once"),
        (lambda: nn.DataParallel(nn.Linear(4, 4)), r"DataParallel spreads.*\.module"),
        (
            lambda: nn.Sequential(torch.jit.trace(nn.Linear(4, 4), torch.ones(3, 4))),
            "'0' is compiled TorchScript",
        ),
        (planned, r"PlannedModule follows a plan already: capture the model itself, its \.model"),
        (lambda: nn.Sequential(nn.Linear(4, 4), planned()), "PlannedModule '1' follows a plan"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_modules_that_cannot_be_captured_are_refused_by_name(make, words):
    with pytest.raises(CaptureError, match=words):
        capture(make(), torch.randn(3, 4), lambda y: y.sum())


def test_an_embedding_with_a_greatest_norm_is_refused_by_name():
    net = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 4))
    with pytest.raises(CaptureError, match=r"Embedding '0' changes its weight.*max_norm=None"):
        capture(net, torch.tensor([1, 2]), lambda y: y.sum())


class Clamped(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_a_parameter_changed_in_forward_is_refused_by_name():
    with pytest.raises(CaptureError, match=r"changes the parameter '0\.weight' in place"):
        capture(nn.Sequential(Clamped(4, 4)), torch.randn(3, 4), lambda y: y.sum())


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda h: h * random.random(), "Python's random numbers in module 'layer'.*torch's"),
        (lambda h: h * float(np.random.rand()), "numpy's random numbers in module 'layer'"),
    ],
)
def test_random_numbers_that_are_not_torchs_are_refused_and_put_back(draw, words):
    model = nn.Sequential()
    model.add_module("layer", Branch(draw))
    states = random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(CaptureError, match=words):
        capture(model, torch.randn(3, 4), lambda y: y.sum())
    assert random.getstate() == states[0] and np.array_equal(np.random.get_state()[1], states[1])
    with pytest.raises(CaptureError, match="random numbers:"):  # in the loss
        capture(nn.Linear(4, 4), torch.randn(3, 4), lambda y: draw(y).sum())


def reentrant(h):
    return torch.utils.checkpoint.checkpoint(torch.cos, h, use_reentrant=True)


@pytest.mark.parametrize(
    "step, words",
    [
        (lambda h: h * float(h.detach().numpy().sum()), "takes a tensor to numpy"),
        (reentrant, r"pass use_reentrant=False"),
        (lambda h: h * h.sum().item(), r"reads a number.*validate_args=False"),
        (lambda h: torch.sparse.mm(torch.eye(3).to_sparse(), h), "layout torch.sparse_coo"),
    ],
)
def test_constructs_that_cannot_be_traced_are_refused_with_advice(step, words):
    with pytest.raises(CaptureError, match=words):
        capture(Branch(step), torch.randn(3, 4), lambda y: y.sum())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of importing the compiler
def test_a_compiled_model_is_captured_as_it_runs_in_eager():
    inner = nn.Linear(4, 4)
    compiled = torch.compile(nn.Sequential(nn.Tanh(), torch.compile(inner)))
    in_place = nn.Linear(4, 4)
    in_place.compile()
    for model in (compiled, in_place):
        cap = capture(model, torch.randn(3, 4), lambda y: y.sum())
        assert "addmm" in cap.joint.op_types
        execute(cap)
        assert all(p.grad is not None for p in model.parameters())
    assert in_place._compiled_call_impl is not None and compiled.forward is not compiled._orig_mod


class Plain(nn.Module):
    """Reads a tensor that is no buffer, and keeps its output in it if asked to."""

    def __init__(self, keep):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale, self.held, self.keep = nn.Linear(4, 4), torch.ones(4), torch.ones(3, 4), keep

    def forward(self, x):
        h = self.linear(x) * self.scale
        self.keep(self, h)
        return h


def test_a_tensor_of_the_models_own_is_one_named_value():
    cap = capture(Plain(lambda self, h: setattr(self, "held", h)), torch.randn(3, 4), lambda y: y.sum())
    assert values(cap.joint, "buffer") == {"scale": 16} and cap.joint.value_names.count("scale") == 1
    execute(cap)


@pytest.mark.parametrize(
    "keep, words",
    [
        (lambda self, h: setattr(self, "scale", h.detach().mean(0)), "'scale' of Plain.*make it a buffer"),
        (lambda self, h: self.held.add_(h.detach()), "make it a buffer"),
        (
            lambda self, h: setattr(self.linear.bias, "data", h[0].detach()),
            r"\.data of 'bias' of Linear 'linear'",
        ),
    ],
)
def test_a_tensor_whose_change_a_plan_would_miss_is_refused(keep, words):
    model = Plain(keep)
    with pytest.raises(CaptureError, match=words):
        capture(model, torch.randn(3, 4), lambda y: y.sum())
    assert torch.equal(model.held, torch.ones(3, 4))
