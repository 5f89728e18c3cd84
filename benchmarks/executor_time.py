"""What the executor costs, and whether predicted time ratios hold: python benchmarks/executor_time.py [network] [size]

The vanilla plan's step against eager's, through execute() and through apply(), and each plan's measured step ratio
against its predicted one. Steps are interleaved and the median counts, since a shared machine drifts; the ratios of
processor time, which other work disturbs less, stand beside. Set OMP_NUM_THREADS to what you calibrate with.

python benchmarks/executor_time.py resnet50                       the size of the tables
python benchmarks/executor_time.py resnet50 batch=8 image=112     the network as it is
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from _rows import Bench

import remat_lab as rl

REPEATS = 15
Times = dict[str, tuple[float, float]]


def medians(actions: dict[str, Callable[[], object]]) -> Times:
    """Median (wall-clock, processor) seconds of each, run in turn so that drift hits all alike."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(REPEATS + 1):
        for name, action in actions.items():
            wall, processor = time.perf_counter(), time.process_time()
            action()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {
        name: (statistics.median(w for w, _ in times[1:]), statistics.median(p for _, p in times[1:]))
        for name, times in seconds.items()
    }


def main(name: str, **size: int) -> int:
    bench = Bench(name, k=7, **size)
    cap, module = bench.cap, bench.cap.loss_module
    args, kwargs, targets = cap.signature.rebuild(cap.inputs)

    def eager() -> None:
        module.zero_grad()
        module(args, kwargs, targets).backward()

    def planned(plan: rl.Plan) -> Callable[[], None]:
        def step() -> None:
            module.zero_grad()
            rl.execute(cap, plan, measure=False)

        return step

    def applied(plan: rl.Plan) -> Callable[[], None]:
        net = rl.apply(cap, plan, fallback="error")

        def step() -> None:
            module.zero_grad()
            net(*args, **kwargs, **({"targets": targets} if cap.takes_targets else {})).backward()

        return step

    vanilla = rl.solve(cap, method="vanilla")
    plans = {"vanilla": vanilla}
    for method in ("chen", "kusumoto-approx"):
        for budget in bench.budgets(method):
            plans[f"{method} {rl.format_bytes(budget)}"] = rl.solve(cap, budget, method)
    found = medians(
        {
            "eager": eager,
            "applied": applied(vanilla),
            **{label: planned(plan) for label, plan in plans.items()},
        }
    )

    def ratios(label: str, to: str) -> str:
        wall, processor = (a / b for a, b in zip(found[label], found[to]))
        return f"{wall:.3f} by the clock, {processor:.3f} of processor time"

    print(f"{name}: eager {found['eager'][0] * 1e3:.1f} ms, medians of {REPEATS} steps")
    print(f"   vanilla plan, execute(): {ratios('vanilla', 'eager')}")
    print(f"   vanilla plan, apply():   {ratios('applied', 'eager')}")
    for label, plan in plans.items():
        promised = 1 + plan.overhead_ratio
        off = found[label][0] / found["vanilla"][0] / promised - 1
        print(
            f"   {label:<28} predicted {promised:.3f}, measured {ratios(label, 'vanilla')}; off by {off:+.1%}"
        )
    return 0


if __name__ == "__main__":
    name, *size = sys.argv[1:] or ["resnet50"]
    sys.exit(main(name, **{key: int(value) for key, value in (option.split("=") for option in size)}))
