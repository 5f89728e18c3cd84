"""The dynamic programs of Gruslys et al. as a table that fills in, cell by cell, for teaching notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

import numpy as np

from .palette import STATE_COLOURS

STRATEGIES = ("hsm", "ism", "msm")


@dataclass(frozen=True)
class Split:
    """How a cell got its cost: y steps, then the two parts, as (length, memory)."""

    kind: str
    y: int
    right: tuple[int, int]
    left: tuple[int, int]


@dataclass(frozen=True)
class CostTable:
    """C(t, m) of one strategy, and the split behind each cell; made by :func:`cost_table`.

    Attributes
    ----------
    strategy : one of :data:`STRATEGIES`
    cost : int64 array, shape (M + 1, T + 1); row 0 is unused, a cost no policy has is -1
    splits : dict, (t, m) -> Split; base cases have none
    seconds : how long the filling takes
    """

    strategy: str
    cost: np.ndarray
    splits: dict[tuple[int, int], Split]
    seconds: float = 15.0

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(t, m) in the order in which they are filled: a row after another, short parts first."""
        rows, columns = self.cost.shape
        return [(t, m) for m in range(1, rows) for t in range(1, columns)]

    def explain(self, t: int, m: int) -> str:
        """The sum behind one cell.

        >>> cost_table("hsm", 5, 2).explain(5, 2)
        'C(5, 2) = 2 + C(3, 1) + C(2, 2) = 2 + 6 + 3 = 11'
        """
        cost, split = int(self.cost[m, t]), self.splits.get((t, m))
        if cost < 0:
            return f"C({t}, {m}): {m} is too little memory for one internal state"
        if split is None:
            return f"C({t}, {m}) = {cost}: " + (
                "one step" if t == 1 else f"advance from the start for each step: {t} ({t} + 1) / 2"
            )
        a, b = (int(self.cost[part[1], part[0]]) for part in (split.right, split.left))
        kept = {"hidden": f"h{split.y}", "internal": f"I{split.y}"}[split.kind]
        keeps = f" (keep {kept})" if self.strategy == "msm" else ""
        right, left = (f"C({length}, {memory})" for length, memory in (split.right, split.left))
        return f"C({t}, {m}) = {split.y} + {right} + {left} = {split.y} + {a} + {b} = {cost}{keeps}"

    def __repr__(self) -> str:
        width = max(3, len(str(self.cost.max())) + 1)
        rows, columns = self.cost.shape
        head = " t:" + "".join(f"{t:>{width}}" for t in range(1, columns))
        body = [
            f"m={m}" + "".join(f"{c if c >= 0 else '-':>{width}}" for c in self.cost[m, 1:].tolist())
            for m in range(1, rows)
        ]
        return "\n".join([head, *body])

    def _repr_html_(self) -> str:
        place = f"rl-{uuid4().hex[:8]}"
        pace = self.seconds / len(self.cells)
        used: dict[tuple[int, int], list[int]] = {}
        hovers = []
        for k, cell in enumerate(self.cells):
            split = self.splits.get(cell)
            parents = [part for part in (split.right, split.left) if part[0]] if split else []
            for part in parents:
                used.setdefault(part, []).append(k)
            if parents:
                chosen = ",".join(f".{_class(part)}" for part in parents)
                hovers.append(f"#{place}:has(.{_class(cell)}:is(:hover,:focus)) :is({chosen})")
        columns = self.cost.shape[1]
        body = ""
        for k, (t, m) in enumerate(self.cells):
            body += f"<tr><th scope='row'>m = {m}</th>" if t == 1 else ""
            body += self._cell(t, m, [step * pace for step in (k, *used.get((t, m), []))])
            body += "</tr>" if t == columns - 1 else ""
        head = "".join(f"<th scope='col'>{t}</th>" for t in range(1, columns))
        # A cell says how often it is a part (its class) and when (its style); the rest is the same for all. Lists
        # may be longer than that of the names: what is too much is not used.
        most = max(map(len, used.values()), default=0)
        counts = {len(steps) for steps in used.values()}
        own = "".join(
            f"#{place} .n{n}{{animation-name:var(--fill){',var(--part)' * n}}}" for n in sorted(counts)
        )
        own += f"{','.join(hovers)}{{box-shadow:{_FRAME}}}" if hovers else ""
        own += (
            f"#{place} td{{animation-duration:{2 * pace:.3f}s{f',{0.97 * pace:.3f}s' * most};"
            f"animation-fill-mode:backwards{',none' * most}}}#{place} span{{animation-duration:{0.97 * pace:.3f}s}}"
        )
        return (
            f"<div class='rl-cost' id='{place}'><style>{_STYLE}{own}</style>"
            f"<input type='checkbox' id='{place}-again'><label for='{place}-again'>▶ Fill again</label>"
            f"<table><thead><tr><th>t =</th>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p class='rl-ask' style='animation-duration:{self.seconds:g}s'>"
            "Point at a cell to see the sum behind it, and its two parts framed.</p></div>"
        )

    def _cell(self, t: int, m: int, delays: list[float]) -> str:
        cost, split = int(self.cost[m, t]), self.splits.get((t, m))
        first, *parts = (f"{d:.3f}".rstrip("0").rstrip(".") + "s" for d in delays)
        kind = split.kind if split else "base" if cost >= 0 else "none"
        count, more = (f" n{len(parts)}", ";--parts:," + ",".join(parts)) if parts else ("", "")
        return (
            f"<td tabindex=0 class='{_class((t, m))} {kind}{count}' style='--at:{first}{more}'>"
            f"{cost if cost >= 0 else '–'}<span>{self.explain(t, m)}</span></td>"
        )


def _class(cell: tuple[int, int]) -> str:
    return f"t{cell[0]}m{cell[1]}"


_FRAME = f"inset 0 0 0 2px {STATE_COLOURS['recomputed'][0]}"

#: No script: a checkbox swaps the names of the animations, which starts them anew.
_STYLE = """
.rl-cost{position:relative;--fill:rl-fill-a;--part:rl-part-a;--say:rl-say-a;--wait:rl-wait-a;padding-bottom:2.2em;overflow-x:auto}
.rl-cost:has(input:checked){--fill:rl-fill-b;--part:rl-part-b;--say:rl-say-b;--wait:rl-wait-b}
.rl-cost input{position:absolute;opacity:0}
.rl-cost label{display:inline-block;cursor:pointer;border:1px solid rgba(128,128,128,.6);border-radius:4px;
padding:.1em .7em;margin-bottom:.5em}
.rl-cost input:focus-visible+label{outline:2px solid #0072b2}
.rl-cost table{border-collapse:collapse;margin:0;font-variant-numeric:tabular-nums}
.rl-cost th,.rl-cost td{border:1px solid rgba(128,128,128,.35);padding:.15em .5em;text-align:right;min-width:1.6em}
.rl-cost th{font-weight:normal;white-space:nowrap}
.rl-cost td{animation-name:var(--fill);animation-delay:var(--at)var(--parts,)}
.rl-cost td.hidden{background:rgba(0,114,178,.25)}
.rl-cost td.internal{background:rgba(0,158,115,.28)}
.rl-cost td span{position:absolute;left:0;bottom:.4em;visibility:hidden;white-space:nowrap;
animation-name:var(--say);animation-delay:var(--at)}
.rl-cost td:is(:hover,:focus) span{visibility:visible}
.rl-cost:has(td:is(:hover,:focus)) td:not(:hover,:focus) span{animation-name:none}
.rl-cost .rl-ask{position:absolute;left:0;bottom:.4em;margin:0;opacity:.75;white-space:nowrap;
animation:1s backwards;animation-name:var(--wait)}
.rl-cost:has(td:is(:hover,:focus)) .rl-ask{visibility:hidden}
@media (prefers-reduced-motion:reduce){.rl-cost *{animation:none!important}}
""" + "".join(
    f"@keyframes rl-fill-{x}{{from{{color:transparent;background:transparent}}1%{{color:inherit}}"
    "40%{background:rgba(230,159,0,.7)}}"
    f"@keyframes rl-part-{x}{{from,to{{box-shadow:{_FRAME}}}}}"
    f"@keyframes rl-say-{x}{{from,to{{visibility:visible}}}}"
    f"@keyframes rl-wait-{x}{{from,to{{visibility:hidden}}}}"
    for x in "ab"
)


def cost_table(strategy: str, steps: int, memory: int, alpha: int = 1, *, seconds: float = 15.0) -> CostTable:
    """C(t, m) for t = 1..steps and m = 1..memory, as a table that fills in.

    Parameters
    ----------
    strategy : "hsm", "ism" or "msm", see :mod:`remat_lab.solvers.bptt`
    steps, memory : int, T and M; small, since every cell is drawn
    alpha : internal size over hidden size, for "msm"
    seconds : how long the filling takes

    Raises
    ------
    ValueError
        If the strategy is none of the three.
    """
    from .solvers.bptt import NEVER, hsm_table, ism_table, msm_table

    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {STRATEGIES}, got {strategy!r}")
    if strategy == "msm":
        cost = msm_table(steps, memory, alpha).astype(np.int64)
    else:
        cost = {"hsm": hsm_table, "ism": ism_table}[strategy](steps, memory)
    cost = np.where(cost >= NEVER, -1, cost)
    splits = {}
    for m in range(1, memory + 1):
        for t in range(1, steps + 1):
            split = _split(strategy, cost, t, m, alpha)
            if split is not None:
                splits[t, m] = split
    return CostTable(strategy, cost, splits, seconds)


def _split(strategy: str, cost: np.ndarray, t: int, m: int, alpha: int) -> Split | None:
    """The first split that attains C(t, m)."""
    if t == 1 or (strategy != "msm" and m == 1):
        return None
    for y in range(1, t + 1):
        options = []
        if strategy != "ism" and y < t and m > 1:
            options.append(Split("hidden", y, (t - y, m - 1), (y, m)))
        if strategy != "hsm" and (m > alpha or (m == alpha and y == t)):
            options.append(Split("internal", y, (t - y, m - alpha), (y - 1, m)))
        for split in options:
            parts = [int(cost[part[1], part[0]]) for part in (split.right, split.left)]
            if min(parts) >= 0 and y + sum(parts) == cost[m, t]:
                return split
    return None
