"""A budget whose measured peak rises as it falls: python benchmarks/torch_budget.py

On a small GPT-2 and a small BERT (transformers, random weights): torch's activation memory budget, per-block and
selective ``torch.utils.checkpoint``, and our methods at every one of torch's measured peaks. Writes
benchmarks/results/torch_budget.csv and torch_budget.png. Recomputation is counted in FLOPs, so that the figures are
the same on every machine.
"""

from __future__ import annotations

import csv
import itertools
import sys

from _rows import RESULTS, Bench

import remat_lab as rl
from remat_lab.execution.baselines import block_names, checkpointed, plain
from remat_lab.torch_methods import FRACTIONS

OURS = ["chen", "kusumoto-approx", "kusumoto-best"]


def measure(name: str) -> list[dict]:
    bench = Bench(name, k=1)
    cap = bench.cap = bench.cap.with_time("flop")
    rows = []

    def add(method: str, setting: str, peak: int, overhead: float | None) -> None:
        rows.append(
            {"network": name, "method": method, "setting": setting, "peak": peak, "overhead": overhead}
        )
        share = "" if overhead is None else f"{overhead:7.1%} recomputed"
        print(f"{name:<19}{method:<22}{setting:>8}{peak / 2**20:9.2f} MiB  {share}", flush=True)

    add("eager", "", plain(cap).peak, 0.0)
    # Checkpointing a block runs its whole forward again.
    blocks = tuple(f"{block}." for block in block_names(cap.model))
    again = [i for i in range(cap.joint.n_ops) if cap.joint.op_modules[i].startswith(blocks)]
    forward = [i for i in again if not cap.joint.op_backward[i]]
    add(
        "checkpoint",
        "blocks",
        checkpointed(cap).peak,
        cap.joint.op_time[forward].sum() / cap.joint.plain_time,
    )
    add("checkpoint selective", "blocks", checkpointed(cap, selective=True).peak, None)
    for fraction in FRACTIONS:
        plan = rl.solve(cap, method="torch-budget", activation_memory_budget=fraction)
        row = bench.run(plan)
        assert row.right and row.difference == 0, row
        add("torch-budget", f"{fraction:.1f}", row.measured, row.overhead)
    theirs = [row for row in rows if row["method"] == "torch-budget"]
    known = [method for method in OURS if method in rl.methods().names]
    others = list(rows)
    for method in known:
        least = rl.minimum_budget(cap, method)
        for budget in sorted({least, *(row["peak"] for row in others if row["peak"] >= least)}):
            row = bench.run(rl.solve(cap, budget, method))
            assert row.right and row.measured <= budget, row
            add(method, "min" if budget == least else rl.format_bytes(budget), row.measured, row.overhead)
    ours = [row for row in rows if row["method"] in known]
    beaten = [
        t for t in theirs if any(o["peak"] <= t["peak"] and o["overhead"] <= t["overhead"] for o in ours)
    ]
    rising = [b["peak"] > a["peak"] for a, b in itertools.pairwise(theirs)]
    (blockwise,) = [row for row in rows if row["method"] == "checkpoint"]
    fitting = [o for o in ours if o["overhead"] <= blockwise["overhead"]]
    print(f"   per-block checkpoint: {blockwise['peak']:,} B; ours at no more recomputation: "
          f"{min(o['peak'] for o in fitting):,} B")  # fmt: skip
    print(f"   torch's measured peak rises {sum(rising)} times as its budget falls; {len(beaten)} of its "
          f"{len(theirs)} budgets are matched or beaten in both peak and recomputation")  # fmt: skip
    return rows


COLOURS = {
    "eager": "#777777",
    "checkpoint": "#000000",
    "torch-budget": "#D55E00",
    "chen": "#56B4E9",
    "kusumoto-approx": "#009E73",
    "kusumoto-best": "#0072B2",
}


def picture(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(5 * len(names), 4.3), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names):
        mine = [row for row in rows if row["network"] == name]
        for method in dict.fromkeys(row["method"] for row in mine):
            points = [row for row in mine if row["method"] == method]
            if points[0]["overhead"] is None:
                axis.axhline(points[0]["peak"] / 2**20, ls=":", lw=1, color="0.5")
                axis.annotate(method, (axis.get_xlim()[1], points[0]["peak"] / 2**20), fontsize=7, ha="right")
                continue
            style = "o-" if method == "torch-budget" else "."
            colour = COLOURS.get(method)
            axis.plot(
                [100 * p["overhead"] for p in points],
                [p["peak"] / 2**20 for p in points],
                style,
                color=colour,
                label=method,
            )
        axis.set(title=name, xlabel="recomputed, % of a plain step's FLOPs", ylabel="measured peak, MiB")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.savefig(RESULTS / "torch_budget.png", dpi=150)


def main(names: list[str]) -> int:
    rows = [row for name in names for row in measure(name)]
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "torch_budget.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    picture(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["gpt2-small-random", "bert-base-random"]))
