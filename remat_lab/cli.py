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

    comparison = commands.add_parser("compare", help="methods x budgets on a graph file, as a table")
    comparison.add_argument("graph", help="a graph file, as for solve")
    comparison.add_argument(
        "--budgets", nargs="+", required=True, metavar="BUDGET", help="as for solve, or 'none' for no bound"
    )
    comparison.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="default: all that can plan the graph; see 'remat-lab methods'",
    )
    comparison.add_argument(
        "--time-limit", type=float, default=60, metavar="SECONDS", help="per plan, for solvers that take one"
    )
    form = comparison.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print the table as CSV")
    form.add_argument("--json", action="store_true", help="print the table as JSON, a list of rows")
    comparison.add_argument("--plot", metavar="FILE", help="save overhead against budget as a picture")
    comparison.add_argument("--quiet", action="store_true", help="no progress bar")
    comparison.set_defaults(run=_compare)

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
    from .units import format_bytes, format_exact, format_time
    from .zoo.files import load_graph

    graph = load_graph(arguments.graph)
    plan = solve(
        graph,
        _budget(arguments.budget),
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
    print(f"peak       {format_exact(plan.peak)}; vanilla {format_bytes(whole)}")
    print(
        f"overhead   {format_time(plan.overhead, unit)} ({plan.overhead_ratio:.1%} of forward and backward)"
    )
    print(f"recomputed {plan.schedule.recomputed_ops} ops of {plan.schedule.joint.n_ops}")
    return 0


def _budget(text: str | None) -> int | str | None:
    if text is None or text.strip().lower() == "none":
        return None
    return int(text) if text.strip().isdigit() else text


def _compare(arguments: argparse.Namespace) -> int:
    from .comparison import compare
    from .ranking import leaderboard
    from .zoo.files import load_graph

    graph = load_graph(arguments.graph)
    frame = compare(
        graph,
        [_budget(text) for text in arguments.budgets],
        arguments.methods,
        time_limit=arguments.time_limit,
        progress=not arguments.quiet,
    )
    figures = frame.drop(columns="plan")
    if arguments.plot:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        from .plots import plot_comparison

        plot_comparison(frame)
        plt.savefig(arguments.plot)
    if arguments.csv:
        print(figures.to_csv(index=False), end="")
    elif arguments.json:
        print(figures.to_json(orient="records"))
    else:
        print(f"{graph!r}\n")
        print(_listing(figures))
        print(f"\n{leaderboard(frame)!r}")
    return 0


def _listing(figures: Any) -> str:
    """The rows of a comparison for a terminal; what went wrong is said at the end of its row."""
    from .units import format_bytes

    head = ("method", "budget", "peak", "overhead", "gap", "seconds", "status")
    rows = [head]
    for row in figures.itertuples(index=False):
        planned = row.error is None
        rows.append(
            (
                row.method,
                _asked(row),
                format_bytes(row.peak) if planned else "",
                f"{row.overhead_ratio:.1%}" if planned else "",
                f"{row.gap:.1%}" if planned else "",
                f"{row.solve_seconds:.2f}",
                row.status if planned else f"{row.status}: {row.error}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:-1], widths[1:])), row[-1]])
        for row in rows
    )


def _asked(row: Any) -> str:
    """A row's budget as it was asked for, and the bytes that came to."""
    import pandas as pd

    from .units import format_bytes

    bare = "none" if pd.isna(row.budget) else format_bytes(row.budget)
    if row.asked == "min" or (row.asked or "").endswith("%"):
        return row.asked if pd.isna(row.budget) else f"{row.asked} ({bare})"
    return bare


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
