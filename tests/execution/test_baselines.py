"""Others' ways to recompute, measured by the same instrument."""

import numpy as np
import pytest
import torch

import remat_lab as rl
from remat_lab.execution.baselines import block_names, checkpointed, plain
from remat_lab.execution.execute import execute

from .conftest import assert_same_step, case_of


def test_blocks_are_the_elements_of_lists_of_composite_modules():
    assert block_names(case_of("gpt").model) == ["blocks.0", "blocks.1", "blocks.2"]
    assert block_names(case_of("conv").model) == ["4", "5"]
    assert block_names(case_of("mlp").model) == []


def test_checkpointing_blocks_saves_and_selective_saves_less():
    case = case_of("gpt")
    eager, selective, whole = (
        plain(case.cap).peak,
        checkpointed(case.cap, selective=True).peak,
        checkpointed(case.cap).peak,
    )
    assert whole < selective < eager
    assert all("forward" not in vars(module) for module in case.model.modules())
    assert all(parameter.grad is None for parameter in case.model.parameters())


def test_a_selection_that_selects_nothing_says_so():
    with pytest.raises(ValueError, match="no blocks to checkpoint"):
        checkpointed(case_of("mlp").cap)
    with pytest.raises(ValueError, match="no module 'block'"):
        checkpointed(case_of("mlp").cap, blocks=["block"])


@pytest.mark.parametrize("name", ["gpt_dropout", "conv", "lstm"])
def test_torchs_partitioner_runs_as_a_schedule(name):
    case = case_of(name)
    for fraction in (1.0, 0.5, 0.0):
        plan = rl.solve(case.cap, method="torch-budget", activation_memory_budget=fraction)
        case.reset()
        eager = case.eager()
        run = execute(case.cap, plan)
        assert_same_step(case, run.loss, eager)
        assert run.difference == 0 and run.peak == plan.peak
    assert rl.solve(case.cap, method="torch-min-cut").details == {"activation_memory_budget": 1.0}


def test_lowering_torchs_budget_raises_the_real_peak_and_lowering_ours_does_not():
    """pytorch 197838: the budget bounds an estimate of what is saved, not the peak."""
    case = case_of("gpt_dropout")
    theirs = [
        execute(case.cap, rl.solve(case.cap, method="torch-budget", activation_memory_budget=f)).peak
        for f in (1.0, 0.5, 0.0)
    ]
    assert theirs[1] < theirs[0] and theirs[2] > theirs[1]
    front = rl.frontier(case.cap, "kusumoto-approx")
    ours = [execute(case.cap, front.plan(i)).peak for i in np.linspace(0, len(front) - 1, 4).astype(int)]
    assert ours == sorted(ours)


def test_the_partitioner_needs_a_captured_model():
    with pytest.raises(TypeError, match="plans a captured model"):
        rl.solve(case_of("mlp").cap.graph, method="torch-min-cut")
    with pytest.raises(ValueError, match="between 0 and 1"):
        rl.solve(case_of("mlp").cap, method="torch-budget", activation_memory_budget=2.0)
    with pytest.raises(rl.InfeasibleBudget):
        rl.solve(case_of("mlp").cap, 10, "torch-budget")


def test_eager_reports_a_peak_and_a_time():
    run = plain(case_of("conv").cap, repeats=3)
    assert run.method == "eager" and run.peak > 0 and run.seconds > 0 and run.recomputed_ops == 0
    assert torch.isfinite(run.loss)
    with pytest.raises(ValueError, match="no schedule"):
        run.difference  # noqa: B018
