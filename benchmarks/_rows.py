"""Shared by the benchmarks of execution: laptop-size networks, and one row of predicted beside measured."""

from __future__ import annotations

import copy
import csv
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

import remat_lab as rl
from remat_lab import zoo
from remat_lab.execution.capture import CapturedModel
from remat_lab.registry import lookup

RESULTS = Path(__file__).parent / "results"

#: Sizes at which a step takes about a second on a laptop and activations, not parameters, make the peak.
SIZES: dict[str, dict] = {
    "vgg19": {"batch": 8, "image": 64, "width": 16, "num_classes": 10},
    "resnet50": {"batch": 4, "image": 96, "width": 16, "num_classes": 10},
    "densenet161": {"batch": 2, "image": 64, "width": 24, "num_classes": 10},
    "googlenet": {"batch": 4, "image": 96, "num_classes": 10},
    "unet": {"batch": 2, "image": 188, "width": 16},
    "pspnet": {"batch": 1, "image": 97, "width": 16, "num_classes": 5},
    "gpt": {"batch": 8, "length": 64},
    "lstm": {"batch": 8, "length": 64},
    "gpt2-small-random": {
        "batch": 4, "length": 64, "vocabulary": 512, "width": 96, "heads": 4, "blocks": 6
    },
    "bert-base-random": {
        "batch": 4, "length": 64, "vocabulary": 512, "width": 96, "heads": 4, "blocks": 6
    },
    "hf-resnet50-random": {"batch": 4, "image": 96},
}  # fmt: skip


@dataclass
class Row:
    """Predicted beside measured. ``difference`` is measured minus predicted, bytes."""

    network: str
    method: str
    budget: int | None
    predicted: int
    measured: int
    difference: int
    recomputed_ops: int
    overhead: float
    seconds: float
    gradients_equal: bool
    buffers_equal: bool
    random_equal: bool

    @property
    def right(self) -> bool:
        return self.gradients_equal and self.buffers_equal and self.random_equal


class Bench:
    """A calibrated network and an eager twin to hold every plan against."""

    def __init__(self, name: str, device: str | None = None, k: int = 3, **size: int):
        self.name = name
        step = zoo.build(name, device=device, **(size or SIZES[name]))
        plain = rl.capture(*step, name=name)
        self.twin = copy.deepcopy(plain.loss_module)
        self.state = copy.deepcopy(plain.loss_module.state_dict())
        self.cap: CapturedModel = rl.calibrate(plain, k=k, cache=False)
        self.random = random_state()
        arguments = self.cap.signature.rebuild(self.cap.inputs)
        self.loss = self.twin(*arguments)
        self.loss.backward()
        self.loss = self.loss.detach()
        self.end = random_state()

    def budgets(self, method: str) -> list[int]:
        """The least budget of a method, and the one halfway from there to the vanilla peak."""
        if not lookup(method).needs_budget:
            return [rl.solve(self.cap, method=method).peak]
        least = rl.minimum_budget(self.cap, method)
        return [least, (least + rl.vanilla_peak(self.cap)) // 2]

    def run(self, plan: rl.Plan) -> Row:
        module = self.cap.loss_module
        module.load_state_dict(self.state)
        module.zero_grad()
        set_random_state(self.random)
        run = rl.execute(self.cap, plan)
        pairs = zip(module.parameters(), self.twin.parameters())
        gradients = torch.equal(run.loss, self.loss) and all(
            p.grad is q.grad if p.grad is None or q.grad is None else torch.equal(p.grad, q.grad)
            for p, q in pairs
        )
        buffers = all(torch.equal(p, q) for p, q in zip(module.buffers(), self.twin.buffers()))
        return Row(
            network=self.name,
            method=plan.method,
            budget=plan.budget,
            predicted=run.predicted.peak,
            measured=run.peak,
            difference=run.difference,
            recomputed_ops=run.recomputed_ops,
            overhead=plan.overhead_ratio,
            seconds=run.seconds,
            gradients_equal=gradients,
            buffers_equal=buffers,
            random_equal=all(torch.equal(a, b) for a, b in zip(random_state(), self.end)),
        )


def random_state() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def set_random_state(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def table(bench: Bench, methods: list[str]) -> list[Row]:
    """One network's rows: every method at its least budget and halfway to vanilla."""
    rows = [bench.run(rl.solve(bench.cap, method="vanilla"))]
    for method in methods:
        for budget in bench.budgets(method):
            try:
                plan = rl.solve(bench.cap, budget, method)
            except rl.InfeasibleBudget as error:
                print(f"   {bench.name} {method}: {error}")
                continue
            rows.append(bench.run(plan))
    return rows


def show(row: Row) -> str:
    return (
        f"{row.network:<19}{row.method:<18}{'-' if row.budget is None else rl.format_bytes(row.budget):>9}"
        f"{row.predicted:>13,}{row.measured:>13,}{row.difference:>6}{row.recomputed_ops:>6}{row.overhead:>8.1%}"
        f"{'equal' if row.gradients_equal else 'DIFFER':>8}{'equal' if row.buffers_equal else 'DIFFER':>8}"
        f"{'equal' if row.random_equal else 'DIFFER':>8}"
    )


HEADER = (
    f"{'network':<19}{'method':<18}{'budget':>9}{'predicted':>13}{'measured':>13}{'diff':>6}{'again':>6}"
    f"{'overhd':>8}{'grads':>8}{'buffers':>8}{'random':>8}"
)


def save(rows: list[Row], name: str) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        writer.writeheader()
        writer.writerows({**asdict(row), "seconds": f"{row.seconds:.4g}"} for row in rows)
    return path


def run_all(names: list[str], methods: list[str], device: str | None, out: str) -> int:
    """Print and save the table; returns the number of rows that are wrong."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, device {device or 'cpu'}")
    print(HEADER, flush=True)
    rows: list[Row] = []
    for name in names:
        started = time.perf_counter()
        found = table(Bench(name, device), methods)
        rows += found
        print("\n".join(show(row) for row in found))
        print(f"   {time.perf_counter() - started:.0f} s", flush=True)
    wrong = [r for r in rows if not r.right or abs(r.difference) > 0.001 * r.measured]
    exact = sum(r.difference == 0 for r in rows)
    over = [r for r in rows if r.budget is not None and r.measured > r.budget]
    print(
        f"{len(rows)} rows on {len(names)} networks: {exact} predicted to the byte, "
        f"{sum(r.right for r in rows)} bit-equal to eager, {len(over)} over budget. {save(rows, out)}"
    )
    return len(wrong)
