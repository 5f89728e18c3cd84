"""Published joint graphs at the published budgets: duration increase and time, each method on two cores.

    python benchmarks/joint_graphs.py [--data ../shared/data] [--seconds 120] [--method local-search ...]

Peak rule: first runs keep the file's order; a value lives from its computation to its last use; an op's
inputs and outputs count together. Budgets are given, or a fraction of the peak without recomputation.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import remat_lab as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--method", nargs="+", default=["local-search"])
    parser.add_argument("--graph", default="", help="only graphs whose name contains this")
    arguments = parser.parse_args()
    if not (arguments.data / "joint_graphs").is_dir():
        print(f"no graphs at {arguments.data}/joint_graphs: nothing to measure")
        return
    reference = json.loads((arguments.data / "reference" / "joint_graphs.json").read_text())["results"]
    cases = [
        (
            row["graph"],
            row.get("budget") or row["budget_fraction"],
            row["retention_intervals"],
            row["checkmate"],
        )
        for row in reference
    ]
    cases += [
        ("VGG16_256_224x224x3_train", 0.9, None, None),
        ("VGG16_256_224x224x3_train", 0.8, None, None),
        ("VGG19_256_224x224x3_train", 0.9, None, None),
        ("vgg_unet_32_416x608x3_train", 0.8, None, None),
    ]
    print("| graph | budget (B) | published increase | method | increase | peak (B) | seconds | status |")
    print("|---|---|---|---|---|---|---|---|")
    for name, amount, *published in cases:
        if arguments.graph not in name:
            continue
        joint = rl.load_graph(arguments.data / "joint_graphs" / f"{name}.json")
        budget = amount if isinstance(amount, int) else int(rl.vanilla_peak(joint) * amount)
        best = min((p["increase_percent"] for p in published if p), default="")
        for method in arguments.method:
            limits = {
                "local-search": {"seconds": arguments.seconds},
                "retention-intervals": {
                    "time_limit": arguments.seconds,
                    "warm_start": arguments.seconds / 4,
                },
                "checkmate": {"time_limit": arguments.seconds},
            }
            begun = time.perf_counter()
            try:
                plan = rl.solve(joint, budget, method, **limits.get(method, {}))
                result = f"{plan.overhead_ratio:.4%} | {plan.peak}"
                status = plan.status
            except (rl.InfeasibleBudget, ValueError) as error:
                result, status = " | ", str(error).split(":")[0].split("(")[0]
            seconds = time.perf_counter() - begun
            short = name.split("_w0")[0]
            print(
                f"| {short} | {budget} | {best} | {method} | {result} | {seconds:.0f} | {status} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
