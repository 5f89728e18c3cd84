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
)
from .graph import ComputationGraph
from .joint import JointGraph
from .plan import Frontier, Plan, frontier, minimum_budget, solve, vanilla_peak
from .registry import Request, Solution, method, methods
from .schedule import Schedule
from .simulate import Stepper, Trace, simulate
from .units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from .execution.baselines import plain
    from .execution.calibrate import calibrate
    from .execution.capture import CapturedModel, capture
    from .execution.execute import execute
    from .execution.measure import Measurement
    from .zoo.files import load_graph

__version__ = "0.1.0"

#: Names that load on first use: name -> module.
_LAZY = {
    "load_graph": "remat_lab.zoo.files",
    "capture": "remat_lab.execution.capture",
    "CapturedModel": "remat_lab.execution.capture",
    "calibrate": "remat_lab.execution.calibrate",
    "execute": "remat_lab.execution.execute",
    "plain": "remat_lab.execution.baselines",
    "Measurement": "remat_lab.execution.measure",
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
    "capture",
    "CapturedModel",
    "calibrate",
    "execute",
    "plain",
    "Measurement",
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
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'remat_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
