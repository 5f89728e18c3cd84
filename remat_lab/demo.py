"""The main job on a real network: capture, plan, run, and hold predicted against measured.

Everything printed is computed and measured when the demo runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .errors import InfeasibleBudget
from .plan import Plan, solve
from .registry import methods
from .simulate import simulate
from .units import format_bytes

if TYPE_CHECKING:
    from .execution.capture import CapturedModel
    from .execution.measure import Measurement

#: What the demo plans with, in this order, where registered; the plain step is added in front.
METHODS = ("chen", "kusumoto-approx", "kusumoto-branches", "kusumoto-best")
BUDGETS = ("80%", "65%", "min")

HEADER = (
    "method",
    "budget",
    "predicted peak",
    "measured peak",
    "difference",
    "overhead",
    "step time",
    "gradients equal",
)


@dataclass(frozen=True)
class Row:
    """One executed plan: predicted beside measured. Bytes; ratios to the plain schedule."""

    plan: Plan
    budget: str
    run: Measurement
    time_ratio: float
    gradients_equal: bool

    @property
    def difference(self) -> int:
        """Predicted minus measured peak, bytes."""
        return self.plan.peak - self.run.peak

    def cells(self) -> tuple[str, ...]:
        return (
            self.plan.method,
            self.budget,
            format_bytes(self.plan.peak),
            format_bytes(self.run.peak),
            f"{self.difference} B",
            f"{self.plan.overhead_ratio:.1%}",
            f"{self.time_ratio:.2f}x",
            "yes" if self.gradients_equal else "NO",
        )


def table(rows: list[Row], infeasible: list[tuple[str, str]]) -> str:
    """The rows as aligned text; plans that do not exist are named below."""
    cells = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    lines = [
        "  ".join(text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths)))
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    lines += [f"{method} at {budget}: no plan fits" for method, budget in infeasible]
    return "\n".join(lines)


def run_demo(
    network: str = "resnet50",
    *,
    batch: int = 8,
    image: int = 112,
    width: int | None = None,
    out: str | Path | None = "artifacts/demo",
    repeats: int = 3,
    progress: bool = True,
) -> list[Row]:
    """Capture a network of the zoo, plan it at several budgets, execute every plan, and print the table.

    Parameters
    ----------
    network : a name from ``remat_lab.zoo.names()``
    batch, image : size of the example batch; a laptop's by default
    width : channels of the first layer; all others scale alike. Default: the published network's
    out : folder for the memory timeline picture and the table, or None
    repeats : timed runs of each plan, of which the median counts
    """
    from tqdm.auto import tqdm

    from . import zoo
    from .execution.calibrate import calibrate
    from .execution.capture import capture

    narrow = {} if width is None else {"width": width}
    wanted = [m for m in METHODS if m in methods().names]
    with tqdm(total=3 + len(wanted) * len(BUDGETS), disable=not progress, unit="step") as bar:

        def tick(label: str) -> None:
            bar.update()
            bar.set_description(label)

        bar.set_description(f"capturing {network}")
        captured = capture(*zoo.build(network, batch=batch, image=image, **narrow))
        tick("calibrating: measuring each op once")
        cap = calibrate(captured)
        tick("running the plain step")
        steps = _Steps(cap, repeats)
        whole = solve(cap, None, "vanilla")
        rows = [steps.row(whole, "none")]
        infeasible = []
        tick("planning")
        for method in wanted:
            for budget in BUDGETS:
                bar.set_description(f"{method} at {budget}")
                try:
                    plan = solve(cap, budget, method)
                except InfeasibleBudget:
                    infeasible.append((method, budget))
                else:
                    rows.append(steps.row(plan, budget))
                bar.update()
        bar.set_description("done")
    text = table(rows, infeasible)
    print(f"\n{network}, batch {batch}, {image} x {image} pixels: {cap.joint!r}")
    print(f"parameters, buffers and inputs: {format_bytes(cap.joint.baseline)}, not counted below")
    print(f"plain eager torch: peak {format_bytes(steps.eager.peak)}\n")
    print(text)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.txt").write_text(text + "\n")
        picture = folder / "memory_timeline.png"
        draw(rows, picture)
        print(f"\nmemory timeline: {picture}")
    return rows


class _Steps:
    """Runs plans one after another from the same state and compares what each leaves behind with eager's."""

    def __init__(self, cap: CapturedModel, repeats: int):
        from .execution.baselines import plain

        self.cap = cap
        self.repeats = repeats
        self.eager = plain(cap)
        self.reference = self._after(lambda: self._eager_step())
        self.plain_seconds: float | None = None

    def row(self, plan: Plan, budget: str) -> Row:
        from .execution.execute import execute

        runs: list[Measurement] = []
        left = self._after(lambda: runs.append(execute(self.cap, plan)))
        for _ in range(self.repeats - 1):
            self._after(lambda: runs.append(execute(self.cap, plan, measure=False)))
        seconds = median(run.seconds for run in runs)
        if self.plain_seconds is None:
            self.plain_seconds = seconds
        return Row(
            plan=plan,
            budget=budget,
            run=runs[0],
            time_ratio=seconds / self.plain_seconds,
            gradients_equal=_same(left, self.reference),
        )

    def _eager_step(self) -> None:
        from .execution.execute import call_tensors

        self.cap.loss_module(*self.cap.signature.rebuild(call_tensors(self.cap))).backward()

    def _after(self, step: Any) -> dict[str, Any]:
        """Do a step, return copies of the gradients and buffers it left, and put everything back."""
        from .execution.baselines import as_it_was
        from .execution.execute import call_tensors

        module = self.cap.loss_module
        with as_it_was(module, call_tensors(self.cap)):
            step()
            left = {f"gradient of {n}": p.grad for n, p in module.named_parameters()}
            left |= {n: b.detach().clone() for n, b in module.named_buffers()}
        return left


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Bit for bit."""
    import torch

    return first.keys() == second.keys() and all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in ((first[k], second[k]) for k in first)
    )


def draw(rows: list[Row], path: Path) -> None:
    """Memory over one step: each plan's predicted line with the measured one dotted on top of it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tightest = min(rows[1:], key=lambda row: row.run.peak, default=rows[0])
    middle = [row for row in rows[1:] if row.budget == BUDGETS[1] and row is not tightest][-1:]
    chosen = [rows[0], *middle, tightest]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, color in zip(chosen, ("#777777", "#0072B2", "#D55E00")):
        trace = simulate(row.plan)
        clock = trace.time / trace.joint.plain_time
        label = f"{row.plan.method}, {format_bytes(row.run.peak)} measured, {row.time_ratio:.2f}x time"
        axes.step(clock, trace.during / 1e6, where="post", color=color, linewidth=1.6, label=label)
        if len(row.run.during) == len(clock):
            axes.step(clock, row.run.during / 1e6, where="post", color="black", linewidth=0.8, linestyle=":")
        axes.axhline(trace.peak / 1e6, color=color, linewidth=0.6, alpha=0.6)
    axes.plot([], [], color="black", linewidth=0.8, linestyle=":", label="measured by the allocator")
    axes.set_xlabel("time, in plain steps")
    axes.set_ylabel("activations, gradients and workspace (MB)")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_title("Memory over one training step, predicted and measured", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
