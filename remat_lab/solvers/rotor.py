"""rotor (Beaumont et al., arXiv 1911.13214) as a method; its dynamic program is in :mod:`.rotor_table`.

Bytes become slots: of the sizes' common divisor where the budget is few of those, of budget / ``slots``
otherwise, sizes rounded up. Under paper accounting a uniform chain's slots are hidden states.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import numpy as np

from ..chain import Chain
from ..errors import InfeasibleBudget
from ..memo import memo
from ..plan import vanilla_peak
from ..registry import Request, Solution, method
from ..simulate import simulate
from .policy import INTERNAL, Policy, moves_of, remembered, solution_of
from .rotor_table import Table, charged_bytes, rotor_policy, rotor_table

#: The most bytes a table may take; beyond it the table gets fewer slots.
TABLE_BYTES = 2 * 2**30


def _unit(chain: Chain, budget: int, slots: int, charges: str) -> float:
    """Bytes per slot: the sizes' common divisor if the budget is few of those, else budget / slots."""
    sizes = np.concatenate([np.atleast_1d(x) for x in charged_bytes(chain, charges)[:-2]])
    divisor = reduce(gcd, {int(x) for x in sizes})
    if divisor and budget // divisor <= 4 * slots:
        return float(divisor)
    internal = int(chain.internal.max())
    if chain.uniform and internal:  # slots that internal states fill exactly: they are most of what is held
        return internal / -(-slots * internal // max(1, budget))
    return max(1.0, budget / slots)


def _fit(chain: Chain, slots: int) -> int:
    """Fewer slots where the table would not fit in :data:`TABLE_BYTES`."""
    return slots if chain.uniform else max(16, min(slots, TABLE_BYTES // (16 * chain.steps**2)))


def _paper_unit(chain: Chain) -> float:
    return float(max(1, int(chain.hidden[0])))


def _everything(chain: Chain, charges: str) -> int:
    """Bytes that keep every internal state, by the charges' own formula."""
    costs = charged_bytes(chain, charges)
    kept = np.concatenate([[0], np.cumsum(costs.internal[:-1])])
    return int((kept + np.maximum(costs.hold[-1] + costs.keep, costs.backward)).max())


def _named(charges: str | None, accounting: str) -> str:
    return charges or ("simulated" if accounting == "simulated" else "rotor")


def _remembered_table(chain: Chain, unit: float, m: int, charges: str, moves: str) -> Table:
    return memo(
        chain, ("rotor", unit, m, charges, moves), lambda: rotor_table(chain, unit, m, charges, moves)
    )


def _keep_everything(chain: Chain) -> Policy:
    moves = [(INTERNAL, 1)] * chain.steps
    return remembered(chain, "keep everything", lambda: Policy(chain, chain.steps, moves_of(moves)))


def _points(
    chain: Chain, accounting: str, slots: int = 500, charges: str | None = None, moves: str = "all"
) -> list[Solution]:
    """Policies for the times the tables reach, spread over their memories."""
    charges = _named(charges, accounting)
    whole = _everything(chain, charges)
    in_slots = accounting == "paper" and chain.counts_slots
    # In bytes, finer tables for smaller budgets, down to the least.
    least = _minimum(chain, accounting, slots, charges, moves)
    budgets = [whole] if in_slots else sorted({max(least, whole // k) for k in (1, 4, 16, 64)} | {least})
    solutions = []
    for budget in budgets:
        unit = _paper_unit(chain) if in_slots else _unit(chain, budget, _fit(chain, slots), charges)
        slack = 0 if in_slots else 4  # as in _minimum
        table = _remembered_table(chain, unit, int(-(-budget // unit)) + slack, charges, moves)
        total = table.total
        falls = np.isfinite(total) & (np.concatenate([[np.inf], total[:-1]]) > total)
        steps = np.flatnonzero(falls)
        chosen = steps[np.unique(np.linspace(0, len(steps) - 1, 64 if in_slots else 24).astype(int))]
        slot_bytes = 1 if in_slots else unit
        solutions += [solution_of(rotor_policy(chain, table, int(m)), "feasible", slot_bytes) for m in chosen]
    return solutions


def _minimum(
    chain: Chain, accounting: str, slots: int = 500, charges: str | None = None, moves: str = "all"
) -> int:
    """The least memory the table can do; under bytes, ever finer tables until that stops helping."""
    charges = _named(charges, accounting)
    whole = _everything(chain, charges)
    if accounting == "paper" and chain.counts_slots:
        unit = _paper_unit(chain)
        table = _remembered_table(chain, unit, int(-(-whole // unit)), charges, moves)
        return int(np.flatnonzero(np.isfinite(table.total))[0])
    best = whole
    while True:
        unit = _unit(chain, best, _fit(chain, slots), charges)
        # A few slots more: several sizes, each rounded up, may come to more than their sum.
        table = _remembered_table(chain, unit, int(-(-best // unit)) + 4, charges, moves)
        feasible = np.flatnonzero(np.isfinite(table.total))
        if not len(feasible):
            return best
        least = int(feasible[0])
        found = int(least * unit)
        if accounting == "simulated":
            found = min(found, simulate(rotor_policy(chain, table, least).schedule).peak)
        if found >= best:
            return best
        best = found


def _vanilla(chain: Chain) -> int:
    whole = _everything(chain, "rotor")
    return int(-(-whole // _paper_unit(chain))) if chain.counts_slots else whole


@method(
    "rotor",
    view="chain",
    paper="Beaumont et al. 2019",
    points=_points,
    minimum=_minimum,
    paper_vanilla=_vanilla,
)
def rotor(
    chain: Chain, request: Request, slots: int = 500, charges: str | None = None, moves: str = "all"
) -> Solution:
    """Least time for chains of unlike stages: keep inputs, keep internal states, or recompute."""
    charges = _named(charges, request.accounting)
    whole = _everything(chain, charges)
    in_slots = request.accounting == "paper" and chain.counts_slots
    if in_slots:
        unit = _paper_unit(chain)
        m = int(-(-whole // unit)) if request.budget is None else request.budget
    else:
        budget = max(1, whole if request.budget is None else min(request.budget, 2 * whole))
        unit = _unit(chain, budget, _fit(chain, slots), charges)
        m = int(budget / unit + 1e-9)
    if request.accounting == "simulated":
        return _best_simulated(chain, request, unit, m, charges, moves, slots)
    table = _remembered_table(chain, unit, m, charges, moves)
    if not np.isfinite(table.total[m]):
        least = _minimum(chain, request.accounting, slots, charges, moves)
        raise InfeasibleBudget.of("rotor", request.budget or 0, least, slots=in_slots)
    needed = int(np.flatnonzero(table.total == table.total[m])[0])
    return solution_of(rotor_policy(chain, table, needed), "optimal", 1 if in_slots else unit)


def _best_simulated(
    chain: Chain, request: Request, unit: float, m: int, charges: str, moves: str, slots: int
) -> Solution:
    """The least time whose simulated peak keeps the budget.

    Rounding to slots leaves the formula a little above the simulation: somewhat more memory is tried too.
    """
    if request.budget is None or request.budget >= vanilla_peak(chain):
        return solution_of(_keep_everything(chain))
    most = m + max(2, m // 8)
    table = _remembered_table(chain, unit, most, charges, moves)
    tried = None
    for memory in range(most, -1, -1):
        if not np.isfinite(table.total[memory]):
            break
        if table.total[memory] == tried:
            continue
        tried = table.total[memory]
        needed = int(np.flatnonzero(table.total == tried)[0])
        policy = rotor_policy(chain, table, needed)
        if simulate(policy.schedule).peak <= request.budget:
            return solution_of(policy, "optimal" if needed <= m else "feasible")
    raise InfeasibleBudget.of("rotor", request.budget, _minimum(chain, "simulated", slots, charges, moves))
