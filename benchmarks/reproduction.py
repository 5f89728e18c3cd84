"""Kusumoto et al. (NeurIPS 2019) line by line: published figures beside ours.

    python benchmarks/reproduction.py planner     lower sets, least budgets, overheads on the authors' graphs
    python benchmarks/reproduction.py peaks       the table of peak memory, with the ablation without liveness
    python benchmarks/reproduction.py best        kusumoto-best on the same networks (minutes)
    python benchmarks/reproduction.py batch       time against batch on one GPU: the curve's shape
    python benchmarks/reproduction.py all

Each prints Markdown; name networks after it for a part of the table. GB are 10^9 bytes at the paper's batch:
activations scaled from the graph file's batch, gradients, parameters and their gradients; no workspace.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import remat_lab as rl
from remat_lab.solvers.canonical import canonical_schedule
from remat_lab.solvers.chen import cut_into, default_segments
from remat_lab.solvers.families import exact_family
from remat_lab.solvers.kusumoto import minimum_formula_budget, plan_sequence
from remat_lab.solvers.lower_sets import approximate_family

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


class Published(NamedTuple):
    """The paper's table: batch, the graph file's batch, parameters, GB measured on a K40c."""

    batch: int
    file_batch: int
    parameters: int
    approx_memory: float
    approx_time: float
    exact_memory: float
    exact_time: float
    chen: float
    vanilla: float


PUBLISHED = {
    "pspnet": Published(2, 1, 282_017_672, 2.7, 3.1, 2.8, 3.2, 4.0, 9.4),
    "unet": Published(8, 8, 124_401_416, 5.0, 6.7, 4.7, 5.3, 7.4, 9.1),
    "resnet50": Published(96, 32, 102_228_384, 3.4, 4.4, 3.4, 4.3, 3.7, 8.9),
    "resnet152": Published(48, 32, 240_771_488, 2.3, 2.5, 2.3, 2.5, 2.4, 9.2),
    "vgg19": Published(64, 32, 574_668_960, 4.5, 5.5, 4.5, 5.5, 4.7, 7.0),
    "densenet": Published(32, 32, 114_724_000, 1.6, 1.9, 1.7, 1.8, 1.8, 8.5),
    "googlenet": Published(256, 32, 53_513_120, 5.2, 5.5, 5.2, 5.9, 6.5, 8.5),
}
#: The best simulated GB of approximate plans, memory-centric, over many budgets: what to beat.
TARGETS = {
    "pspnet": 2.25,
    "unet": 4.49,
    "resnet50": 3.06,
    "resnet152": 2.06,
    "vgg19": 4.44,
    "densenet": 1.54,
    "googlenet": 2.98,
}
#: Ratio of time to vanilla's (extrapolated) at twice vanilla's largest batch, read off the paper's figure.
TWICE = {"pspnet": (4, 1.10), "resnet152": (120, 1.13), "densenet": (84, 1.23)}
GPU = 11.4e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("line", choices=[*LINES, "all"])
    parser.add_argument("networks", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--data", type=Path, default=DATA, help="folder with kusumoto/ and reference/")
    arguments = parser.parse_args()
    if not (arguments.data / "kusumoto").is_dir():
        sys.exit(
            f"{arguments.data} has no folder kusumoto: give the folder with the published graphs as --data"
        )
    for name in LINES if arguments.line == "all" else [arguments.line]:
        LINES[name](arguments.data, arguments.networks)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    head = list(head)
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print()


def read(data: Path, name: str) -> rl.ComputationGraph:
    graph = rl.load_graph(data / "kusumoto" / f"cg_{name}.txt")
    assert isinstance(graph, rl.ComputationGraph)
    return graph


def at_batch(graph: rl.ComputationGraph, name: str, batch: float) -> rl.ComputationGraph:
    scale = batch / PUBLISHED[name].file_batch
    return graph.with_costs(memory=[int(m * scale) for m in graph.memory])


def gigabytes(graph: rl.ComputationGraph, name: str, bits: Any, liveness: bool) -> float:
    peak = rl.simulate(canonical_schedule(graph, bits, liveness)).peak
    return (peak + PUBLISHED[name].parameters) / 1e9


def planner(data: Path, networks: list[str]) -> None:
    expected = json.loads((data / "reference" / "kusumoto_planner.json").read_text())["networks"]

    def rows() -> Iterable[list[Any]]:
        for name in networks:
            graph = read(data, name)
            for kind, family in (("approx", approximate_family(graph)), ("exact", exact_family(graph))):
                least = minimum_formula_budget(family)
                overheads = [
                    plan_sequence(family, least, *choice).paper_overhead
                    for choice in (("time",), ("memory", "largest"), ("memory", "pareto"))
                ]
                known = expected[name][kind]["at_min_budget"]
                agree = known["overhead_time_centric"] == overheads[0] and known[
                    "overhead_memory_centric"
                ] in (overheads[1], None)
                agree = agree and known["overhead_memory_centric_pareto"] in (overheads[2], None)
                agree = agree and expected[name][kind]["min_budget"] == least
                figures = " / ".join(f"{x:g}" for x in overheads)
                yield [name, kind, len(family), f"{least:,}", figures, "yes" if agree else "NO"]

    table(
        [
            "network",
            "family",
            "lower sets",
            "least budget, B",
            "overhead TC / MC largest / MC Pareto",
            "as the reference",
        ],
        rows(),
    )


def peaks(data: Path, networks: list[str]) -> None:
    def rows() -> Iterable[list[Any]]:
        for name in networks:
            known = PUBLISHED[name]
            graph = at_batch(read(data, name), name, known.batch)
            line = [name, known.batch]
            for family, published in (
                (approximate_family(graph), (known.approx_memory, known.approx_time)),
                (exact_family(graph), (known.exact_memory, known.exact_time)),
            ):
                least = minimum_formula_budget(family)
                for objective, figure in zip(("memory", "time"), published):
                    bits = plan_sequence(family, least, objective).bits
                    on, off = (gigabytes(graph, name, bits, liveness) for liveness in (True, False))
                    line.append(f"{figure} / {on:.2f} / {off:.2f}")
            bits = cut_into(graph, default_segments(graph))
            on, off = (gigabytes(graph, name, bits, liveness) for liveness in (True, False))
            vanilla = (rl.vanilla_peak(graph) + known.parameters) / 1e9
            yield [*line, f"{known.chen} / {on:.2f} / {off:.2f}", f"{known.vanilla} / {vanilla:.2f}"]

    table(
        ["network", "batch", "approx MC", "approx TC", "exact MC", "exact TC", "Chen", "vanilla"],
        rows(),
    )


def best(data: Path, networks: list[str]) -> None:
    def rows() -> Iterable[list[Any]]:
        for name in networks:
            known = PUBLISHED[name]
            graph = at_batch(read(data, name), name, known.batch)
            front = rl.frontier(graph, "kusumoto-best")
            exact = rl.frontier(graph, "kusumoto-exact")
            least, target = front.minimum + known.parameters, TARGETS[name]
            at_target = front.at(int(target * 1e9) - known.parameters)
            line: list[Any] = [name, known.approx_memory, target, f"{least / 1e9:.3f}"]
            line += [f"-{100 * (1 - least / 1e9 / target):.0f}%", f"{front.overhead_ratio[0]:.1%}"]
            line.append(f"{at_target.overhead_ratio:.1%}")
            for part in (0.8, 0.65, 0.5, 0.4):
                budget = int(part * rl.vanilla_peak(graph))
                pair = []
                for frontier in (exact, front):
                    within = budget >= frontier.minimum
                    pair.append(f"{frontier.at(budget).overhead_ratio:.1%}" if within else "-")
                line.append(" / ".join(pair))
            yield line

    table(
        [
            "network",
            "published, GB",
            "target, GB",
            "least, GB",
            "under the target",
            "overhead there",
            "overhead at the target",
            *(f"exact / best at {part}" for part in ("80%", "65%", "50%", "40%")),
        ],
        rows(),
    )


def batch(data: Path, networks: list[str]) -> None:
    """TC picks the least overhead within the GPU for each batch; MC and Chen are one schedule for all."""

    def rows() -> Iterable[list[Any]]:
        for name in (n for n in networks if n in TWICE):
            known = PUBLISHED[name]
            graph = read(data, name)
            plain = rl.vanilla_peak(graph)
            fixed = graph.parameter_bytes.sum() + known.parameters
            budget = GPU - known.parameters
            limit = int((GPU - fixed) / (plain - graph.parameter_bytes.sum()) * known.file_batch)
            memory = rl.solve(graph, "min", "kusumoto-approx").overhead_ratio
            chen = rl.solve(graph, "min", "chen").overhead_ratio
            for factor in (1, 1.5, 2, 2.5, 3, 4):
                size = limit * factor
                scaled = at_batch(graph, name, size)
                line = [name, f"{size:g}", f"{factor}"]
                for method, fixed_ratio in (
                    ("kusumoto-approx", None),
                    ("kusumoto-approx", memory),
                    ("chen", chen),
                ):
                    front = rl.frontier(scaled, method)
                    if budget < front.minimum:
                        line.append("-")
                    else:
                        ratio = front.at(int(budget)).overhead_ratio if fixed_ratio is None else fixed_ratio
                        line.append(f"{1 + ratio:.2f}")
                line.append(f"{TWICE[name][1]} at {TWICE[name][0]}" if factor == 2 else "")
                yield line

    table(["network", "batch", "times vanilla's limit", "TC", "MC", "Chen", "published TC"], rows())


LINES: dict[str, Callable[[Path, list[str]], None]] = {
    "planner": planner,
    "peaks": peaks,
    "best": best,
    "batch": batch,
}


if __name__ == "__main__":
    main()
