"""kusumoto-approx, kusumoto-branches, kusumoto-exact: one dynamic program over three families.

Under paper accounting a budget bounds the formula, and ``objective`` says which end of the front is taken. Under
simulated accounting every sequence of :mod:`remat_lab.solvers.sweep`, of either objective, is a candidate,
and so is the plain schedule; the one with least overhead whose simulated peak keeps the budget is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..graph import ComputationGraph
from ..memo import memo
from ..registry import Request, Solution, method
from . import sweep
from .canonical import LowerSetSequence, sequence_of
from .families import branches_family, exact_family
from .kusumoto import (
    check_choice,
    clock_of,
    minimum_formula_budget,
    paper_vanilla,
    plan_sequence,
    solution_of,
)
from .lower_sets import Family, approximate_family
from .selection import least_overhead, measured

FamilyOf = Callable[..., Family]


def _check(objective: str, reading: str, partial: int = 0) -> None:
    """Refuse a wrong option with a ValueError that names it."""
    check_choice(objective, reading)
    if isinstance(partial, bool) or not isinstance(partial, int) or partial < 0:
        raise ValueError(f"partial must be a whole number >= 0, got {partial!r}")


def _points(
    family_of: FamilyOf,
    graph: ComputationGraph,
    accounting: str,
    objective: str = "time",
    reading: str = "pareto",
    **options: int,
) -> list[Solution]:
    """Solutions worth having at some budget.

    Under simulated accounting a family also offers what the smaller families found: its own sequences are those of
    least *formula* at some budgets, and one that is worse by the formula may be better when simulated.
    """
    _check(objective, reading, **options)
    both = accounting == "simulated"
    key = ("points", family_of, both, both or objective, reading, *options.items())

    def make() -> list[Solution]:
        found = _own_points(family_of(graph, **options), both, objective, reading)
        for smaller, given in _SMALLER.get(family_of, ()) if both else ():
            found += _points(smaller, graph, accounting, objective, reading, **given)
        return list({s.details.bits.tobytes(): s for s in reversed(found)}.values())

    return memo(graph, key, make)


#: Families within a family, each with its options.
_SMALLER: dict[FamilyOf, tuple[tuple[FamilyOf, dict[str, int]], ...]] = {
    branches_family: ((approximate_family, {}),),
    exact_family: ((approximate_family, {}), (branches_family, {"partial": 1})),
}


def _own_points(family: Family, both: bool, objective: str, reading: str) -> list[Solution]:
    sequences: list[LowerSetSequence] = []
    if both or objective == "time":
        sequences += sweep.time_centric(family)
    if both or objective == "memory":
        sequences += sweep.memory_centric(family, reading, budgets=[s.paper_peak for s in sequences])
    if both:  # one segment: nothing is dropped
        sequences.append(sequence_of(family.graph, family.bits[-1:]))
    return [solution_of(s) for s in {s.bits.tobytes(): s for s in sequences}.values()]


def _minimum(
    family_of: FamilyOf,
    graph: ComputationGraph,
    accounting: str,
    objective: str = "time",
    reading: str = "pareto",
    **options: int,
) -> int:
    _check(objective, reading, **options)
    if accounting == "paper":
        return minimum_formula_budget(family_of(graph, **options))
    points = _points(family_of, graph, accounting, objective, reading, **options)
    return min(measured(s).peak for s in points)


def _solve(
    name: str,
    family_of: FamilyOf,
    graph: ComputationGraph,
    request: Request,
    objective: str,
    reading: str,
    **options: int,
) -> Solution:
    _check(objective, reading, **options)
    if request.accounting == "simulated":
        points = _points(family_of, graph, "simulated", objective, reading, **options)
        return least_overhead(points, request, name)
    family = family_of(graph, **options)
    budget = sweep.AMPLE if request.budget is None else request.budget
    smaller = None
    if objective == "time" and family.label == "exact":
        smaller = _smaller_answer(graph, family, budget)
    sequence = plan_sequence(family, budget, objective, reading, smaller)
    proven = family.label == "exact" and clock_of(graph).exact
    return solution_of(sequence, "optimal" if proven else "feasible")


def _smaller_answer(graph: ComputationGraph, family: Family, budget: int) -> LowerSetSequence | None:
    """What the branches method keeps, which the exact search then need not fall below."""
    branches = branches_family(graph, 1)
    if 4 * len(branches) > len(family) or minimum_formula_budget(branches) > budget:
        return None
    return plan_sequence(branches, budget)


# -- the methods -------------------------------------------------------------------------------------------------
@method(
    "kusumoto-approx",
    view="graph",
    paper="Kusumoto et al. 2019, section 4.3",
    points=partial(_points, approximate_family),
    minimum=partial(_minimum, approximate_family),
    paper_vanilla=paper_vanilla,
)
def kusumoto_approx(
    graph: ComputationGraph, request: Request, objective: str = "time", reading: str = "pareto"
) -> Solution:
    """Approximate DP over the lower sets L^v; objective "time" or "memory"."""
    return _solve("kusumoto-approx", approximate_family, graph, request, objective, reading)


@method(
    "kusumoto-branches",
    view="graph",
    paper="after Kusumoto et al. 2019",
    points=partial(_points, branches_family, partial=1),
    minimum=partial(_minimum, branches_family, partial=1),
    paper_vanilla=paper_vanilla,
)
def kusumoto_branches(
    graph: ComputationGraph,
    request: Request,
    objective: str = "time",
    reading: str = "pareto",
    partial: int = 1,
) -> Solution:
    """DP over lower sets with at most ``partial`` unfinished branches: between approximate and exact."""
    return _solve("kusumoto-branches", branches_family, graph, request, objective, reading, partial=partial)


@method(
    "kusumoto-exact",
    view="graph",
    paper="Kusumoto et al. 2019, section 4.2",
    points=partial(_points, exact_family),
    minimum=partial(_minimum, exact_family),
    paper_vanilla=paper_vanilla,
)
def kusumoto_exact(
    graph: ComputationGraph, request: Request, objective: str = "time", reading: str = "pareto"
) -> Solution:
    """Exact DP over every lower set; objective "time" or "memory"."""
    return _solve("kusumoto-exact", exact_family, graph, request, objective, reading)
