"""What people report about recomputation, each symptom a test of what is right here."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remat_lab as rl
from remat_lab.explain import floor
from remat_lab.solvers.canonical import schedule_keeping

from .conftest import case_of
from .networks import NETWORKS


def segmented(cap, segments):
    """Equal segments of layers, boundaries kept: what checkpoint_sequential does."""
    graph = cap.graph
    segment = np.arange(len(graph)) * segments // len(graph)
    kept = np.array(
        [any(segment[w] > segment[v] for w in graph.successors.row(v).tolist()) for v in range(len(graph))]
    )
    return schedule_keeping(graph, segment, kept | (segment == segments - 1))


@pytest.fixture(scope="module")
def deep():
    """16 x (Linear + Tanh) at a batch where activations dwarf parameters."""
    layers = [layer for _ in range(16) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return rl.calibrate(rl.capture(nn.Sequential(*layers), torch.randn(2048, 8), lambda y: y.sum()), k=1)


def test_checkpointing_every_linear_leaves_the_peak_where_it_was(deep):
    """pytorch 78731: the stage's input is all that was kept anyway."""
    unit = 2048 * 8 * 4
    peaks = {segments: rl.execute(deep, segmented(deep, segments)) for segments in (1, 2, 4, 8, 16)}
    in_units = {segments: run.peak / unit for segments, run in peaks.items()}
    assert all(run.difference == 0 for run in peaks.values())
    assert in_units[4] < in_units[2] < in_units[1]
    assert in_units[4] < in_units[8] <= in_units[16]
    each = rl.execute(deep, segmented(deep, 16))
    assert each.peak >= 0.9 * peaks[1].peak


def test_every_planner_beats_or_equals_every_equal_split(deep):
    """pytorch 68423: 1,1,1,1,5 saves nothing, three segments are best."""
    splits = [rl.simulate(segmented(deep, segments)).peak for segments in range(1, 17)]
    for method in ("chen", "kusumoto-approx"):
        assert rl.minimum_budget(deep, method) <= min(splits)


def test_explain_says_why_a_strategy_does_not_help(deep):
    joint = deep.joint
    first = int(np.flatnonzero(~joint.op_backward)[0])
    order = np.insert(np.arange(joint.n_ops), first + 1, first)  # again at once: its value was there anyway
    schedule = rl.Schedule.from_ops(joint, order)
    assert schedule.recomputed_ops == 1 and rl.simulate(schedule).peak == rl.vanilla_peak(deep)
    assert "saves nothing" in str(deep.explain(schedule))
    assert "recomputes nothing" in str(deep.explain(rl.solve(deep, None, "vanilla")))


def test_a_product_that_needs_the_sum_keeps_it():
    """returnn 1552: recomputing a + b alone is useless, its value is kept for the product."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.randn(1000)) for _ in range(3))

        def forward(self):
            return ((self.a + self.b) * self.c).sum()

    cap = rl.calibrate(rl.capture(Product(), ()), k=1)
    for method in ("chen", "kusumoto-approx"):
        plan = rl.solve(cap, "min", method)
        assert plan.schedule.recomputed_ops == 0
        assert rl.execute(cap, plan).peak == rl.vanilla_peak(cap)


def test_a_u_net_gets_a_plan_that_saves():
    """cybertronai 11 and 29: articulation points are worse than plain, or there are none."""
    cap = case_of("unet").cap
    plan = rl.solve(cap, "min", "kusumoto-approx")
    assert rl.execute(cap, plan).peak == plan.peak < rl.vanilla_peak(cap)


def test_a_plan_saved_and_loaded_measures_the_same(tmp_path):
    """cybertronai 18: a found plan fed back by hand runs out of memory."""
    cap = case_of("conv").cap
    plan = rl.solve(cap, "min", "kusumoto-approx")
    plan.save(tmp_path / "plan.json")
    again = rl.Plan.load(tmp_path / "plan.json", cap)
    assert again.schedule == plan.schedule
    assert rl.execute(cap, again).peak == rl.execute(cap, plan).peak == plan.peak


def test_the_peak_of_a_wide_block_is_named():
    """Megatron 1300, 3221: the peak moves into the recomputation of one wide block."""
    net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2048), nn.Tanh(), nn.Linear(2048, 4))
    cap = rl.calibrate(rl.capture(net, torch.randn(256, 32), lambda y: y.sum()), k=1)
    peak = rl.simulate(rl.solve(cap, "min", "chen")).explain_peak()
    assert peak.op.startswith(("tanh", "addmm", "mm")) and peak.module in ("2", "3", "4")
    assert peak.module in str(peak) and peak.op in str(peak)
    assert sum(v.bytes for v in (*peak.needed, *peak.waiting, *peak.gradients)) + peak.workspace >= peak.bytes


def test_a_plan_that_recomputes_nothing_says_so():
    """DeepSpeed 5704, 3779: a flag is set and nothing is recomputed."""
    cap = case_of("mlp").cap
    run = rl.execute(cap, rl.solve(cap, None, "kusumoto-approx"))
    assert run.recomputed_ops == 0 and "recomputes nothing" in repr(run)
    assert rl.execute(cap, rl.solve(cap, "min", "chen")).note == ""


def test_live_bytes_and_process_memory_are_shown_apart():
    """MONeT 4: measured numbers from the process or the driver do not move."""
    cap = case_of("gpt").cap
    plain, least = rl.execute(cap), rl.execute(cap, rl.solve(cap, "min", "chen"))
    assert least.peak < 0.7 * plain.peak
    assert least.process_bytes >= plain.process_bytes > 10 * plain.peak


def test_an_ample_budget_recomputes_nothing():
    """ColossalAI 1521: free ops are recomputed although memory is ample."""
    cap = case_of("conv").cap
    for method in ("chen", "kusumoto-approx"):
        plan = rl.solve(cap, "1 GB", method)
        assert plan.schedule.recomputed_ops == 0
        assert plan.peak <= rl.vanilla_peak(cap)


def test_below_the_least_budget_the_error_names_it_and_the_binding_op_can_be_asked():
    """checkmate 144, MegEngine 482: infeasible, or ignored."""
    cap = case_of("conv").cap
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.solve(cap, 1000, "chen")
    assert caught.value.minimum == rl.minimum_budget(cap, "chen")
    bound = floor(cap)
    assert 0 < bound.bytes <= caught.value.minimum
    assert bound.op in cap.joint.op_names and bound.op in str(cap.explain())


def test_a_gpu_and_an_optimizer_make_an_activation_budget():
    """ColossalAI 2279: the budget must know about parameters and optimizer state."""
    cap = case_of("gpt").cap
    trainable = sum(p.nbytes for p in case_of("gpt").model.parameters())
    whole = rl.activation_budget(cap, gpu="10 MB", optimizer="sgd")
    assert whole == 10_000_000 - cap.joint.baseline
    assert rl.activation_budget(cap, gpu="10 MB", optimizer="adam") == whole - 2 * trainable
    assert rl.activation_budget(cap, gpu="10 MB", optimizer="sgd", reserve="1 MB") == whole - 1_000_000
    with pytest.raises(rl.InfeasibleBudget, match="before any activation") as caught:
        rl.activation_budget(cap, gpu="500 kB")
    assert rl.activation_budget(cap, gpu=caught.value.minimum) > 0
    with pytest.raises(ValueError, match="'lion'"):
        rl.activation_budget(cap, optimizer="lion")


def test_a_layer_used_a_hundred_times_is_counted_once():
    """torchinfo 149, 144, 187: a Linear used many times counted over and over."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            for _ in range(100):
                x = torch.tanh(self.linear(x))
            return x.sum()

    cap = rl.calibrate(rl.capture(Loop(), torch.randn(4, 16)), k=1)
    explained = cap.explain()
    assert explained.baseline["parameter"] == 16 * 16 * 4 + 16 * 4
    assert rl.execute(cap).difference == 0


def test_memory_is_estimated_before_anything_runs():
    """pytorch rfcs 108: the breakdown is by category and module, and capture allocates nothing."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
        x = torch.empty(512, 3, 512, 512)
    explained = rl.capture(net, x, lambda y: y.square().mean()).explain()
    assert explained.peak.bytes > 100e9
    assert set(explained.peak.by_module) >= {"1", "2"}
    assert "GB" in str(explained)


def test_in_place_ops_give_eagers_values():
    """pytorch 119590: in-place ops give wrong values when a region is recomputed."""

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            h = self.a(x)
            h.mul_(2).add_(1)
            h[:, :2] += 1
            return self.b(h).relu_().square().mean()

    net, x = InPlace(), torch.randn(16, 8)
    net(x).backward()
    want = [p.grad.clone() for p in net.parameters()]
    cap = rl.capture(net, x)
    for segments in (1, 2, 3):
        net.zero_grad()
        rl.execute(cap, segmented(cap, segments), verify=True)
        assert all(torch.equal(p.grad, w) for p, w in zip(net.parameters(), want))


def test_a_shared_weight_under_autocast_is_right():
    """pytorch 193338: a shared weight under autocast fails when recomputed."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(torch.tanh(self.linear(torch.tanh(self.linear(x))))).float().square().mean()

    net, x = Shared(), torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        cap = rl.capture(net, x)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # one cast per use, as captured
        loss = net(x)
    loss.backward()
    want = [p.grad.clone() for p in net.parameters()]
    for segments in (1, 2, 4):
        net.zero_grad()
        run = rl.execute(cap, segmented(cap, segments))
        assert torch.equal(run.loss, loss.detach())
        assert all(torch.equal(p.grad, w) for p, w in zip(net.parameters(), want))


def test_the_last_segment_is_not_recomputed(deep):
    """pytorch 81448: the last op of a region is recomputed for nothing."""
    schedule = segmented(deep, 4)
    forward = np.flatnonzero(~deep.joint.op_backward)
    last = forward[-len(forward) // 4 :]
    assert (schedule.run_counts[last] == 1).all()


def test_batch_norm_statistics_move_once():
    """pytorch 96136: checkpointing a batch norm updates its statistics twice."""
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    cap = rl.capture(net, torch.randn(32, 8), lambda y: F.mse_loss(y, torch.zeros_like(y)))
    run = rl.execute(cap, segmented(cap, 2))
    assert run.recomputed_ops > 0 and net[1].num_batches_tracked == 1


@pytest.mark.slow
def test_a_budget_is_kept_by_the_measured_peak_100_times():
    """pytorch 197871: an answer over its budget. Here: 100 random networks, budgets and methods."""
    draw = random.Random(0)
    methods = ["chen", "kusumoto-approx", "torch-budget"]
    # Saving the generator's state takes five kilobytes: networks large enough that ops take more.
    names = [name for name in NETWORKS if name not in ("cells", "gru")]
    for _ in range(100):
        cap = case_of(draw.choice(names)).cap
        method = draw.choice(methods)
        least, most = rl.minimum_budget(cap, method), rl.vanilla_peak(cap)
        budget = draw.randint(least, max(least, most))
        plan = rl.solve(cap, budget, method)
        run = rl.execute(cap, plan)
        assert run.peak <= budget and run.peak == plan.peak, (cap, method, budget)
