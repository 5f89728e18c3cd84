"""Figures and tables for backpropagation through time with little memory (Gruslys et al. 2016).

    python benchmarks/bptt.py memory     forward steps against memory: three strategies, Chen
    python benchmarks/bptt.py length     forward steps against length at fixed memory
    python benchmarks/bptt.py lstm       measured time and memory of an LSTM of 1000 steps
    python benchmarks/bptt.py tables     how long the tables and closed forms take
    python benchmarks/bptt.py all

Figures go to docs/images as PNG and SVG (--out DIR for elsewhere); tables are printed as Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time as clock
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import remat_lab as rl
from remat_lab.solvers import bptt, chen_chains

BLUE, GREEN, ORANGE, GREY = "#0072b2", "#009e73", "#d55e00", "#666666"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=[*FIGURES, "all"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "images")
    parser.add_argument("--steps", type=int, default=1000, help="length T (memory, lstm)")
    parser.add_argument("--batch", type=int, default=32, help="batch of the LSTM")
    parser.add_argument("--size", type=int, default=256, help="hidden size of the LSTM")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (lstm)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in FIGURES if arguments.figure == "all" else [arguments.figure]:
        FIGURES[name](arguments)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    head = list(head)
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |")
    print()


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    plt.close(figure)
    print(f"wrote {path.with_suffix('.png')} and .svg\n")


# -- forward steps against memory ----------------------------------------------------------------------------
def memory(arguments: Any, alpha: int = 5) -> None:
    """Memory in hidden states, an internal state costing alpha of them; 100% is what standard BPTT holds."""
    T = arguments.steps
    most = alpha * T
    units = sorted({int(most * 10 ** (-e / 16)) for e in range(49)} - {0})
    units = [m for m in units if m >= alpha]
    mixed = bptt.msm_table(T, most, alpha)
    # HSM beside its one working internal state, so that every curve counts every tensor.
    curves: dict[str, tuple[str, dict[int, float]]] = {
        "hidden states (HSM)": (BLUE, {m: bptt.hsm_steps(T, m - alpha + 1) / T for m in units}),
        "internal states (ISM)": (GREEN, {m: bptt.ism_steps(T, m // alpha) / T for m in units}),
        "both (MSM)": (ORANGE, {m: int(mixed[m, T]) / T for m in units}),
    }
    chen: dict[int, float] = {}
    for k in range(1, T + 1):
        held = chen_chains.segment_units(T, k, alpha)
        chen[held] = min(chen.get(held, 9.0), (2 * T - -(-T // k)) / T)
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for label, (color, curve) in curves.items():
        axes.plot([100 * m / most for m in curve], list(curve.values()), color=color, label=label)
    best = sorted(chen.items())
    front = [(m, c) for i, (m, c) in enumerate(best) if all(c < other for _, other in best[:i])]
    axes.plot(
        [100 * m / most for m, _ in front], [c for _, c in front], ".", color=GREY, label="Chen, k segments"
    )
    recursive = 100 * (chen_chains.halving_policy(rl.Chain(T)).slots + alpha - 1) / most
    axes.plot([recursive], [chen_chains.halving_steps(T) / T], "x", color=GREY, label="Chen, halving")
    axes.set(xscale="log", xlabel="memory, % of standard backpropagation", ylabel="forward steps per step")
    axes.set_ylim(0.9, 8)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(f"T = {T}, internal state = {alpha} hidden states", fontsize=10)
    save(figure, arguments.out / "bptt-cost-memory")
    rows = []
    for percent in (0.5, 1, 2, 5, 10, 20):
        m = round(most * percent / 100)
        fitting = [c for held, c in front if held <= m]
        rows.append(
            [
                f"{percent}%",
                m,
                f"{bptt.hsm_steps(T, m - alpha + 1) / T:.3f}",
                f"{bptt.ism_steps(T, m // alpha) / T:.3f}",
                f"{int(mixed[m, T]) / T:.3f}",
                f"{min(fitting):.3f}" if fitting else "-",
            ]
        )
    table(["memory", "hidden units", "HSM C/t", "ISM C/t", "MSM C/t", "Chen C/t"], rows)


# -- forward steps against length ------------------------------------------------------------------------------
def length(arguments: Any) -> None:
    """At a fixed number of slots; closed forms, so the lengths may be long."""
    lengths = sorted({int(10 ** (e / 12)) for e in range(12, 61)})
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for m, style in ((10, ":"), (50, "--"), (200, "-")):
        for color, steps, name in ((BLUE, bptt.hsm_steps, "HSM"), (GREEN, bptt.ism_steps, "ISM")):
            cost = [steps(t, m) / t for t in lengths]
            axes.plot(lengths, cost, style, color=color, label=f"{name}, {m} slots")
    halving = [chen_chains.halving_steps(t) / t for t in lengths]
    axes.plot(lengths, halving, color=GREY, lw=1, label="Chen, halving (log2 t slots)")
    axes.set(xscale="log", xlabel="length t", ylabel="forward steps per step")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save(figure, arguments.out / "bptt-cost-length")
    rows = [
        [t, *(f"{f(t, m) / t:.3f}" for m in (10, 50, 200) for f in (bptt.hsm_steps, bptt.ism_steps))]
        for t in (100, 1000, 10_000, 100_000)
    ]
    table(["t", *(f"{s} {m}" for m in (10, 50, 200) for s in ("HSM", "ISM"))], rows)


# -- a real LSTM -----------------------------------------------------------------------------------------------
def lstm(arguments: Any) -> None:
    """Budgets from a quarter to a fiftieth of standard BPTT's activations; parameters' gradients apart throughout.

    Times are processor time (with one thread, what an idle machine's clock would show), medians of three.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    T, batch, size = arguments.steps, arguments.batch, arguments.size
    cell = nn.LSTMCell(size, size)
    chain = rl.Chain.from_rnn(cell, T, inputs=torch.randn(T, batch, size))
    gradients = sum(p.numel() * p.element_size() for p in cell.parameters())
    standard = rl.plain_chain(chain)
    want = [p.grad.clone() for p in cell.parameters()]
    # Both peak once the parameters' gradients are there: the backward pass has begun.
    whole = standard.peak - gradients
    print(f"{chain}\nstandard backpropagation: {whole / 1e6:.1f} MB of activations and their gradients\n")
    plans = []
    for percent in (25, 10, 6, 5, 2):
        plans.append((percent, rl.solve(chain, int(whole * percent / 100) + gradients, "rotor")))
    runs: dict[Any, Callable[[], Any]] = {
        "standard": lambda: rl.plain_chain(chain, measure=False),
        "plain": lambda: rl.execute(chain, measure=False),
    }
    for percent, plan in plans:
        runs[percent] = lambda plan=plan: rl.execute(chain, plan, measure=False)
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(3):  # interleaved, so that a busy moment falls on all alike
        for name, run_once in runs.items():
            started = clock.process_time()
            run_once()
            times[name].append(clock.process_time() - started)
    seconds = {name: statistics.median(t) for name, t in times.items()}
    rows, points = [], []
    for percent, plan in plans:
        cell.zero_grad(set_to_none=True)
        run = rl.execute(chain, plan)
        equal = all(torch.equal(a, p.grad) for a, p in zip(want, cell.parameters()))
        share = 100 * (run.peak - gradients) / whole
        ratio = seconds[percent] / seconds["standard"]
        predicted = 1 + plan.overhead_ratio
        points.append((share, seconds[percent] / seconds["plain"], predicted))
        rows.append(
            [
                f"{percent}%",
                plan.details.forward_steps,
                f"{(plan.peak - gradients) / 1e6:.3f} MB",
                f"{(run.peak - gradients) / 1e6:.3f} MB",
                f"{run.difference:+d} B",
                f"{share:.2f}%",
                f"{predicted:.3f}",
                f"{seconds[percent] / seconds['plain']:.3f}",
                f"{ratio:.3f}",
                "equal" if equal else "differ",
            ]
        )
    head = ["budget", "C", "predicted", "measured", "difference", "of standard"]
    head += [
        "predicted time ratio",
        "measured, to the plain schedule",
        "measured, to standard",
        "gradients' bits",
    ]
    table(head, rows)
    plain = seconds["plain"] / seconds["standard"]
    print(f"standard: {seconds['standard']:.3f} s; the plain schedule, step by step: {plain:.3f} of that\n")
    figure, axes = plt.subplots(figsize=(7, 4.2))
    axes.plot(
        [p[0] for p in points], [p[2] for p in points], "o--", color=GREY, mfc="none", label="predicted"
    )
    axes.plot([p[0] for p in points], [p[1] for p in points], "o-", color=ORANGE, label="measured")
    axes.axhline(1, color=GREY, lw=0.8)
    axes.set(xscale="log", xlabel="measured activation memory, of standard backpropagation's")
    axes.set(ylabel="step time, to the plain schedule's", xticks=[p[0] for p in points])
    axes.set_xticklabels([f"{p[0]:.2g}%" for p in points])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(f"LSTM cell, {T} steps, batch {batch}, size {size}", fontsize=10)
    save(figure, arguments.out / "bptt-lstm")


# -- how long it takes -------------------------------------------------------------------------------------------
def tables(arguments: Any) -> None:
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("HSM table, t = 1,000, m <= 100", lambda: bptt.hsm_table(1000, 100)),
        ("ISM table, t = 1,000, m <= 100", lambda: bptt.ism_table(1000, 100)),
        ("MSM table, t = 1,000, m <= 100, alpha 5", lambda: bptt.msm_table(1000, 100, 5)),
        ("HSM table, t = 10,000, m <= 1,000", lambda: bptt.hsm_table(10_000, 1000)),
        ("ISM table, t = 10,000, m <= 1,000", lambda: bptt.ism_table(10_000, 1000)),
        ("MSM table, t = 10,000, m <= 1,000, alpha 5", lambda: bptt.msm_table(10_000, 1000, 5)),
        ("ISM cost by closed form, t = 100,000, m = 100", lambda: bptt.ism_steps(100_000, 100)),
        ("ISM plan and schedule, t = 100,000, m = 100", lambda: plan_of(100_000, "bptt-ism")),
        ("HSM plan and schedule, t = 100,000, m = 100", lambda: plan_of(100_000, "bptt-hsm")),
    ]
    for make in (bptt.hsm_table, bptt.ism_table):
        make(10, 3)
    bptt.msm_table(10, 10, 5)
    plan_of(10, "bptt-ism")
    plan_of(10, "bptt-hsm")
    rows = []
    for name, make in cases:
        started = clock.perf_counter()
        result = make()
        seconds = clock.perf_counter() - started
        size = f"{result.nbytes / 2**20:.0f} MiB" if hasattr(result, "nbytes") else "-"
        rows.append([name, f"{seconds:.3g} s", size])
    table(["what (warm)", "time", "table"], rows)


def plan_of(steps: int, method: str) -> Any:
    return rl.solve(rl.Chain(steps), 3 if steps < 100 else 100, method, accounting="paper")


FIGURES: dict[str, Callable[[Any], None]] = {
    "memory": memory,
    "length": length,
    "lstm": lstm,
    "tables": tables,
}

if __name__ == "__main__":
    main()
