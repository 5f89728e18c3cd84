"""remat_lab: recomputation strategies you can hold, step through, watch and run.

    problem --solve()--> Plan --> Schedule --simulate()--> Trace        (predicted)
                                      `------execute()---> Measurement  (measured)

Importing this package loads neither torch nor the widgets; they come with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .chain import Chain
from .errors import (
    CaptureError,
    ExecutionError,
    InfeasibleBudget,
    InvalidGraph,
    InvalidSchedule,
    RematError,
    UnknownMethod,
    ViewClosed,
)
from .explain import activation_budget, explain
from .graph import ComputationGraph
from .joint import JointGraph
from .plan import Frontier, Plan, frontier, minimum_budget, solve, vanilla_peak
from .progress import tell_of_compiling
from .registry import Request, Solution, method, methods
from .schedule import Schedule
from .simulate import Stepper, Trace, simulate
from .units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from .comparison import compare
    from .execution.apply import apply
    from .execution.baselines import plain
    from .execution.calibrate import calibrate
    from .execution.capture import CapturedModel, capture
    from .execution.chain_training import apply_chain
    from .execution.chains import execute_chain, plain_chain
    from .execution.execute import execute
    from .execution.measure import Measurement
    from .plots import plot_comparison, plot_frontier, plot_graph, plot_memory
    from .ranking import leaderboard
    from .sweeps import load_sweep, sweep
    from .widgets.explore import explore
    from .widgets.page import save_html
    from .widgets.play import play
    from .widgets.race import race
    from .widgets.stepper import stepper
    from .zoo.files import load_graph
    from .zoo.suite import suite

__version__ = "0.1.0"

tell_of_compiling()

#: Names that load on first use: name -> module.
_LAZY = {
    "compare": "remat_lab.comparison",
    "leaderboard": "remat_lab.ranking",
    "suite": "remat_lab.zoo.suite",
    "sweep": "remat_lab.sweeps",
    "load_sweep": "remat_lab.sweeps",
    "load_graph": "remat_lab.zoo.files",
    "capture": "remat_lab.execution.capture",
    "CapturedModel": "remat_lab.execution.capture",
    "calibrate": "remat_lab.execution.calibrate",
    "execute": "remat_lab.execution.execute",
    "apply": "remat_lab.execution.apply",
    "plain": "remat_lab.execution.baselines",
    "execute_chain": "remat_lab.execution.chains",
    "apply_chain": "remat_lab.execution.chain_training",
    "plain_chain": "remat_lab.execution.chains",
    "Measurement": "remat_lab.execution.measure",
    "play": "remat_lab.widgets.play",
    "explore": "remat_lab.widgets.explore",
    "race": "remat_lab.widgets.race",
    "stepper": "remat_lab.widgets.stepper",
    "save_html": "remat_lab.widgets.page",
    "plot_memory": "remat_lab.plots",
    "plot_graph": "remat_lab.plots",
    "plot_frontier": "remat_lab.plots",
    "plot_comparison": "remat_lab.plots",
}

__all__ = [
    "ComputationGraph",
    "Chain",
    "JointGraph",
    "Schedule",
    "Plan",
    "Frontier",
    "Trace",
    "Stepper",
    "Request",
    "Solution",
    "solve",
    "frontier",
    "minimum_budget",
    "vanilla_peak",
    "simulate",
    "explain",
    "activation_budget",
    "capture",
    "CapturedModel",
    "calibrate",
    "execute",
    "execute_chain",
    "apply_chain",
    "plain_chain",
    "apply",
    "plain",
    "Measurement",
    "play",
    "explore",
    "race",
    "stepper",
    "save_html",
    "plot_memory",
    "plot_graph",
    "plot_frontier",
    "plot_comparison",
    "compare",
    "leaderboard",
    "suite",
    "sweep",
    "load_sweep",
    "methods",
    "method",
    "load_graph",
    "format_bytes",
    "parse_bytes",
    "RematError",
    "InvalidGraph",
    "InvalidSchedule",
    "InfeasibleBudget",
    "UnknownMethod",
    "CaptureError",
    "ExecutionError",
    "ViewClosed",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'remat_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
