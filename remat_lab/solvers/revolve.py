"""Revolve (Griewank and Walther, Algorithm 799, TOMS 2000): binomial checkpointing of l equal steps.

With s snapshots, the initial state's included, the longest chain that is reversed with each step advanced
at most r times beyond its first is beta(s, r) = binom(s + r, s). The least number of extra advances is
    p(l, s) = r l - beta(s + 1, r - 1),   beta(s, r - 1) < l <= beta(s, r).
Every step is also run once with its internal state kept, so C(l, s) = p + l is HSM's cost (section B.6 of
the digest), and the two find schedules of equal cost; the splits differ where several are best.
"""

from __future__ import annotations

import numpy as np

from ..chain import Chain
from ..registry import Request, Solution, method
from .bptt import _hidden_bytes, _Strategy, binomial_moves, hsm_steps
from .policy import Policy, remembered


def extra_advances(steps: int, snapshots: int) -> int:
    """p(l, s): the least number of extra advances.

    >>> extra_advances(10, 3), extra_advances(100, 10)
    (15, 222)
    """
    return hsm_steps(steps, snapshots) - steps


def longest(snapshots: int, repeats: int) -> int:
    """beta(s, r): the longest chain reversible with s snapshots and r extra advances per step."""
    from math import comb

    return comb(snapshots + repeats, snapshots)


def revolve_policy(chain: Chain, snapshots: int) -> Policy:
    """The policy with that many snapshots."""
    s = min(snapshots, chain.steps)
    return remembered(chain, ("revolve", s), lambda: Policy(chain, s, revolve_moves(chain.steps, s)))


def revolve_moves(T: int, m: int) -> np.ndarray:
    """Moves of Revolve: the largest of the best splits, y = min(beta(s, r - 1), t - beta(s - 1, r - 1))."""
    return binomial_moves(T, m, True)


_REVOLVE = _Strategy("revolve", revolve_policy, _hidden_bytes, lambda chain: 1, lambda chain: chain.steps)


@method(
    "revolve",
    view="chain",
    paper="Griewank and Walther 2000",
    points=_REVOLVE.points,
    minimum=_REVOLVE.minimum,
    paper_vanilla=_REVOLVE.vanilla,
)
def revolve(chain: Chain, request: Request) -> Solution:
    """Binomial checkpointing: snapshots of hidden states, the initial one included."""
    return _REVOLVE.solve(chain, request)
