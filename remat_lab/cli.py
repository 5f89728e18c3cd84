"""remat-lab: the package from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from .errors import RematError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``remat-lab`` command; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.print_help()
        return 0
    try:
        return arguments.run(arguments)
    except (RematError, ValueError, TypeError, OSError) as error:
        print(f"remat-lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("remat-lab: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="remat-lab", description="Plan, step through, watch and run recomputation."
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands")

    solve = commands.add_parser("solve", help="plan a graph file for a memory budget")
    solve.add_argument(
        "graph", help="a graph file: remat_lab JSON, the 2019 paper's text format, or node-link JSON"
    )
    solve.add_argument(
        "--budget", default=None, help="bytes, '2.5 GB', '2.5 GiB', '60%%' of vanilla, or 'min'"
    )
    solve.add_argument("--method", default="kusumoto-approx", help="see 'remat-lab methods'")
    solve.add_argument("--accounting", default="simulated", choices=("simulated", "paper"))
    solve.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the method"
    )
    solve.add_argument("--save", metavar="FILE", help="write the plan as JSON to a file")
    solve.add_argument("--json", action="store_true", help="print the plan as JSON")
    solve.set_defaults(run=_solve)

    demo = commands.add_parser(
        "demo", help="the main job: capture a network, plan, execute, predicted beside measured"
    )
    demo.add_argument("--network", default="resnet50", help="a network of the zoo")
    demo.add_argument("--batch", type=int, default=8)
    demo.add_argument("--image", type=int, default=112, help="side of the square images, pixels")
    demo.add_argument("--out", default="artifacts/demo", help="folder for the picture and the table")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(run=_demo)

    listing = commands.add_parser("methods", help="list the methods")
    listing.set_defaults(run=_methods)
    return parser


def _solve(arguments: argparse.Namespace) -> int:
    from .plan import solve, vanilla_peak
    from .units import format_bytes, format_time
    from .zoo.files import load_graph

    graph = load_graph(arguments.graph)
    budget = arguments.budget
    if budget is not None and budget.strip().isdigit():
        budget = int(budget)
    plan = solve(
        graph,
        budget,
        arguments.method,
        accounting=arguments.accounting,
        **dict(_option(text) for text in arguments.option),
    )
    if arguments.save:
        plan.save(arguments.save)
    if arguments.json:
        print(json.dumps(plan.to_dict()))
        return 0
    whole = vanilla_peak(graph)
    unit = plan.schedule.joint.time_unit
    print(f"{graph!r}")
    print(
        f"method     {plan.method} ({plan.accounting} accounting, {plan.status}, {plan.solve_seconds:.2f} s)"
    )
    print(f"budget     {'none' if plan.budget is None else format_bytes(plan.budget)}")
    print(f"peak       {format_bytes(plan.peak)} ({plan.peak} B); vanilla {format_bytes(whole)}")
    print(
        f"overhead   {format_time(plan.overhead, unit)} ({plan.overhead_ratio:.1%} of forward and backward)"
    )
    print(f"recomputed {plan.schedule.recomputed_ops} ops of {plan.schedule.joint.n_ops}")
    return 0


def _option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--option {text!r}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run_demo

    rows = run_demo(
        arguments.network,
        batch=arguments.batch,
        image=arguments.image,
        out=arguments.out,
        progress=not arguments.quiet,
    )
    return 0 if all(row.gradients_equal for row in rows) else 1


def _methods(arguments: argparse.Namespace) -> int:
    from .registry import methods

    print(methods())
    return 0
