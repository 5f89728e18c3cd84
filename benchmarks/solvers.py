"""How long the graph solvers take, on the graphs published with Kusumoto et al.

    python benchmarks/solvers.py                  the table: every network, every method
    python benchmarks/solvers.py googlenet        some networks
    python benchmarks/solvers.py --best           kusumoto-best's whole frontier as well (minutes)
    python benchmarks/solvers.py --compile        what compiling all kernels costs, once per machine

Times are processor time of one process, so that other work on the machine does not count; every kernel runs in one
thread, so on an idle machine it is the time you wait. Every row is a process of its own. *cold* is the first solve in
it, kernels read from disk; *warm* the best of three, each on the graph read anew, so that nothing is remembered:
lower sets are listed and transitions made each time.
Budgets are 1.0, 1.3 and 2.0 times the method's least, by the paper's formula. *frontier* is every budget
at once under simulated accounting, schedules and simulations included; *look-up* one budget asked of it.
*memory* is the most the process ever held, about 200 MB of it Python, numba and numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time as clock
from pathlib import Path
from typing import Any

NETWORKS = ["vgg19", "unet", "resnet50", "resnet152", "densenet", "pspnet", "googlenet"]
METHODS: dict[str, tuple[str, dict[str, int]]] = {
    "approx": ("kusumoto-approx", {}),
    "branches": ("kusumoto-branches", {}),
    "branches 2": ("kusumoto-branches", {"partial": 2}),
    "exact": ("kusumoto-exact", {}),
}
FACTORS = (1.0, 1.3, 2.0)
DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "kusumoto"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the cg_*.txt files")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "METHOD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        sys.exit(f"{arguments.data} is not there: give the folder with cg_vgg19.txt and the others as --data")
    if arguments.one:
        print(json.dumps(measure(arguments.data, *arguments.one)))
        return
    if arguments.compile:
        compile_anew(arguments.data)
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(
        "| network | method | sets | least budget | overheads | cold | warm | frontier | look-up | memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for network in arguments.networks:
        for name in METHODS:
            row(run(arguments.data, network, name))
        if arguments.best:
            row(run(arguments.data, network, "best"))
    row(run(arguments.data, "eight branches of 31", "branches"))


def run(data: Path, network: str, name: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--data", str(data), "--one", network, name]
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(out.stdout)


def row(found: dict[str, Any]) -> None:
    print(
        f"| {found['network']} | {found['method']} | {found['sets']:,} | {found['least']:,} | {found['overheads']} "
        f"| {found['cold']:.2f} s | {' '.join(f'{s:.3f}' for s in found['warm'])} s | {found['frontier']:.2f} s "
        f"| {found['lookup'] * 1e6:.0f} µs | {found['memory'] / 1e6:.0f} MB |",
        flush=True,
    )


def measure(data: Path, network: str, name: str) -> dict[str, Any]:
    """One row. Imports happen here, so that the parent process stays small."""
    import remat_lab as rl
    from remat_lab.solvers.families import branches_family, exact_family
    from remat_lab.solvers.lower_sets import approximate_family

    def read() -> rl.ComputationGraph:
        return eight_branches() if network.startswith("eight") else rl.load_graph(data / f"cg_{network}.txt")

    if name == "best":
        return measure_best(read(), network)
    method, options = METHODS[name]
    family_of = {
        "kusumoto-approx": approximate_family,
        "kusumoto-branches": branches_family,
        "kusumoto-exact": exact_family,
    }[method]
    graph = read()
    started = clock.process_time()
    least = rl.minimum_budget(graph, method, accounting="paper", **options)
    rl.solve(graph, least, method, accounting="paper", **options)
    cold = clock.process_time() - started
    warm, overheads = [], []
    for factor in FACTORS:
        seconds = []
        for _ in range(3):
            fresh = read()
            started = clock.process_time()
            plan = rl.solve(fresh, int(factor * least), method, accounting="paper", **options)
            seconds.append(clock.process_time() - started)
        warm.append(min(seconds))
        overheads.append(f"{plan.overhead:g}")
    frontier, seconds = None, []
    for _ in range(1 if network.startswith("eight") else 2):
        fresh = read()
        started = clock.process_time()
        frontier = rl.frontier(fresh, method, **options)
        seconds.append(clock.process_time() - started)
    assert frontier is not None
    return {
        "network": network,
        "method": name,
        "sets": len(family_of(graph, **options)),
        "least": least,
        "overheads": " ".join(overheads),
        "cold": cold,
        "warm": warm,
        "frontier": min(seconds),
        "lookup": lookup_seconds(frontier),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_best(graph: Any, network: str) -> dict[str, Any]:
    import remat_lab as rl

    started = clock.process_time()
    frontier = rl.frontier(graph, "kusumoto-best")
    seconds = clock.process_time() - started
    budgets = [int(f * frontier.minimum) for f in FACTORS]
    warm = []
    overheads = []
    for budget in budgets:
        started = clock.process_time()
        overheads.append(f"{rl.solve(graph, budget, 'kusumoto-best').overhead:g}")
        warm.append(clock.process_time() - started)
    return {
        "network": network,
        "method": "best (simulated)",
        "sets": 0,
        "least": frontier.minimum,
        "overheads": " ".join(overheads),
        "cold": seconds,
        "warm": warm,
        "frontier": seconds,
        "lookup": lookup_seconds(frontier),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def lookup_seconds(frontier: Any) -> float:
    """One budget asked of a finished frontier, mean of a thousand."""
    low, high = int(frontier.budget[0]), int(frontier.budget[-1])
    started = clock.perf_counter()
    for i in range(1000):
        frontier.at(low + (high - low) * i // 1000)
    return (clock.perf_counter() - started) / 1000


def eight_branches() -> Any:
    """Eight parallel branches of 31 nodes: 1.1e12 lower sets."""
    import remat_lab as rl

    nodes: list[dict[str, Any]] = [{"name": "fork", "memory": 8}, {"name": "join", "memory": 8}]
    edges: list[tuple[str, str]] = []
    for b in range(8):
        chain = [f"branch {b}, {i}" for i in range(31)]
        nodes += [{"name": name, "memory": 8 + (3 * i + b) % 5} for i, name in enumerate(chain)]
        edges += zip(["fork", *chain], [*chain, "join"])
    return rl.ComputationGraph.from_nodes(nodes, edges, name="eight branches of 31")


def compile_anew(data: Path) -> None:
    with tempfile.TemporaryDirectory() as empty:
        for name in METHODS:
            started = clock.perf_counter()
            run(data, "vgg19", name, NUMBA_CACHE_DIR=empty)
            print(f"{name}: {clock.perf_counter() - started:.1f} s, kernels of the lines above on disk")


if __name__ == "__main__":
    main()
