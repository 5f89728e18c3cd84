"""Chen et al. (arXiv 1604.06174) on chains: equal segments, and recursive halving.

*chen-sqrt*: k segments, the longest last; the hidden states between them are kept, and each segment is run
again with its internal states when its turn comes (the last one at once). Memory (k - 1) hidden and
ceil(t / k) internal states, forward steps 2 t - ceil(t / k). Published: k near sqrt(t).

*chen-recursive*: halve, keep the state in the middle, do the right half, then the left: about log2 t
hidden states and t log2(t) / 2 + t forward steps.
"""

from __future__ import annotations

from functools import cache

from ..chain import Chain
from ..errors import InfeasibleBudget
from ..memo import memo
from ..registry import Request, Solution, method
from .bptt import _hidden_bytes
from .policy import HIDDEN, INTERNAL, Policy, moves_of, remembered, solution_of
from .selection import least_overhead


def segment_units(steps: int, segments: int, alpha: int) -> int:
    """Memory in hidden states: (k - 1) + alpha ceil(t / k)."""
    return segments - 1 + alpha * -(-steps // segments)


def sqrt_policy(chain: Chain, segments: int) -> Policy:
    """The policy with that many segments.

    Raises
    ------
    ValueError
        If there are fewer steps than segments.
    """
    T = chain.steps
    if not 1 <= segments <= T:
        raise ValueError(f"segments must be in 1..{T}, got {segments}")

    def make() -> Policy:
        longest = -(-T // segments)
        short, extra = divmod(T - longest, segments - 1) if segments > 1 else (0, 0)
        lengths = [short] * (segments - 1 - extra) + [short + 1] * extra if segments > 1 else []
        moves = [(HIDDEN, y) for y in lengths]
        # Right parts first: the last segment's internal states, then each earlier segment's.
        for y in [longest, *reversed(lengths)]:
            moves += [(INTERNAL, 1)] * y
        return Policy(chain, segment_units(T, segments, chain.alpha), moves_of(moves))

    return remembered(chain, ("chen-sqrt", segments), make)


def halving_policy(chain: Chain) -> Policy:
    """The halving policy; its slots are hidden states, the initial one included."""

    def make() -> Policy:
        moves = []
        stack = [(chain.steps, 1)]
        slots = 1
        while stack:
            t, depth = stack.pop()
            slots = max(slots, depth)
            if t == 1:
                moves.append((INTERNAL, 1))
                continue
            moves.append((HIDDEN, t // 2))
            stack += [(t // 2, depth), (t - t // 2, depth + 1)]
        return Policy(chain, slots, moves_of(moves))

    return remembered(chain, "chen-recursive", make)


@cache
def halving_steps(t: int) -> int:
    """Forward steps of halving: C(1) = 1, C(t) = floor(t/2) + C(ceil(t/2)) + C(floor(t/2))."""
    return t if t <= 1 else t // 2 + halving_steps(t - t // 2) + halving_steps(t // 2)


def _points(chain: Chain, accounting: str, segments: int | None = None) -> list[Solution]:
    def make() -> list[Solution]:
        T, alpha = chain.steps, chain.alpha
        # One k per longest segment: with that length fixed, fewer segments hold fewer hidden states.
        counts = [segments] if segments else sorted({-(-T // length) for length in range(1, T + 1)})
        best: dict[int, int] = {}
        for k in counts:
            units = segment_units(T, k, alpha)
            if units not in best or -(-T // k) > -(-T // best[units]):
                best[units] = k
        kept, cost = [], 2 * T + 1
        for units in sorted(best):  # fewer units and more recomputation first; drop what another beats
            steps = 2 * T - -(-T // best[units])
            if steps < cost or segments:
                kept.append(best[units])
                cost = steps
        return [solution_of(sqrt_policy(chain, k), "feasible", _hidden_bytes(chain)) for k in kept]

    return memo(chain, ("chen-sqrt points", segments), make)


def _vanilla(chain: Chain) -> int:
    return chain.alpha * chain.steps * (1 if chain.counts_slots else _hidden_bytes(chain))


@method("chen-sqrt", view="chain", paper="Chen et al. 2016", points=_points, paper_vanilla=_vanilla)
def chen_sqrt(chain: Chain, request: Request, segments: int | None = None) -> Solution:
    """Equal segments; the number of segments that recomputes least within the budget, unless given."""
    if segments is not None and not 1 <= segments <= chain.steps:
        raise ValueError(f"segments must be in 1..{chain.steps}, got {segments}")
    points = _points(chain, request.accounting, segments)
    if request.accounting == "simulated":
        return least_overhead(points, request, "chen-sqrt")
    fitting = [p for p in points if request.budget is None or (p.paper_peak or 0) <= request.budget]
    if not fitting:
        least = min(p.paper_peak or 0 for p in points)
        raise InfeasibleBudget.of("chen-sqrt", request.budget or 0, least, slots=chain.counts_slots)
    return min(fitting, key=lambda p: p.paper_overhead or 0.0)


@method("chen-recursive", view="chain", paper="Chen et al. 2016", needs_budget=False)
def chen_recursive(chain: Chain, request: Request) -> Solution:
    """Halve and keep the middle: about log2 T hidden states, one plan whatever the budget."""
    return solution_of(halving_policy(chain), "feasible", _hidden_bytes(chain))
