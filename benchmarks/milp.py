"""The MILP, and the DTR runtime, on unit chains against the published totals of ops.

python benchmarks/milp.py [--largest 32] [--limit 600]
"""

from __future__ import annotations

import argparse
import time

import remat_lab as rl
from remat_lab.solvers.dtr import play
from remat_lab.zoo.generators import unit_chain

MILP = [(8, 8, 19), (8, 6, 21), (8, 5, 22), (12, 7, 32), (16, 10, 41), (16, 8, 43), (21, 12, 54)]
MILP += [(24, 10, 65), (32, 12, 87)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=32, help="longest chain for the MILP")
    parser.add_argument("--smallest", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each MILP")
    arguments = parser.parse_args()
    print("| chain | budget | published ops | checkmate | status | seconds |\n|---|---|---|---|---|---|")
    for n, budget, published in MILP:
        if arguments.smallest <= n <= arguments.largest:
            plan = rl.solve(unit_chain(n), budget, "checkmate", time_limit=arguments.limit)
            ops = len(plan.schedule.ops)
            print(
                f"| {n} | {budget} | {published} | {ops} | {plan.status} | {plan.solve_seconds:.1f} |",
                flush=True,
            )
    print("\n| N | memory 2 sqrt(N) | DTR ops | ops / N | seconds |\n|---|---|---|---|---|")
    for n, memory in ((250, 31), (500, 44), (1000, 63), (2000, 89), (4000, 126)):
        begun = time.perf_counter()
        ops = len(play(unit_chain(n, needs="input"), memory).ops)
        print(f"| {n} | {memory} | {ops} | {ops / n:.3f} | {time.perf_counter() - begun:.2f} |", flush=True)


if __name__ == "__main__":
    main()
