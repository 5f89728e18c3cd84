"""What the executor costs, and whether predicted time ratios hold: python benchmarks/executor_time.py [network]

The vanilla plan's step against eager's, and each plan's measured step ratio against its predicted one. Runs are
interleaved and the median counts, since a shared machine drifts. Set OMP_NUM_THREADS to what you calibrate with.
"""

from __future__ import annotations

import statistics
import sys
import time

from _rows import Bench

import remat_lab as rl
from remat_lab.execution.execute import execute


def medians(actions: dict, repeats: int = 11) -> dict[str, float]:
    """Median seconds of each, run in turn so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def main(name: str) -> int:
    bench = Bench(name, k=7)
    cap, module = bench.cap, bench.cap.loss_module
    arguments = cap.signature.rebuild(cap.inputs)

    def eager() -> None:
        module.zero_grad()
        module(*arguments).backward()

    def planned(plan: rl.Plan):
        def step() -> None:
            module.zero_grad()
            execute(cap, plan, measure=False)

        return step

    plans = {"vanilla": rl.solve(cap, method="vanilla")}
    for method in ("chen", "kusumoto-approx"):
        for budget in bench.budgets(method):
            plans[f"{method} {rl.format_bytes(budget)}"] = rl.solve(cap, budget, method)
    found = medians({"eager": eager, **{label: planned(plan) for label, plan in plans.items()}})
    print(
        f"{name}: eager {found['eager'] * 1e3:.1f} ms, vanilla plan {found['vanilla'] / found['eager']:.3f} of that"
    )
    for label, plan in plans.items():
        ratio, promised = found[label] / found["vanilla"], 1 + plan.overhead_ratio
        print(
            f"   {label:<28} measured {ratio:.3f}, predicted {promised:.3f}, off by {ratio / promised - 1:+.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "resnet50"))
