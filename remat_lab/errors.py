"""The few ways remat_lab says no.

Every error names the culprit and what to do next. A wrong argument is a ``ValueError`` or ``TypeError``;
everything else is a :class:`RematError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .units import format_exact


class RematError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidGraph(RematError, ValueError):
    """A graph that cannot be planned: a cycle, a negative cost, an edge to nowhere."""


class InvalidSchedule(RematError):
    """A schedule that reads what is not there.

    Attributes
    ----------
    step : int or None
        Index of the offending action.
    op : str or None
        Name of the op that ran (or of the value a free named).
    value : str or None
        Name of the missing value.
    freed_at : int or None
        The step that freed it, if any did.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int | None = None,
        op: str | None = None,
        value: str | None = None,
        freed_at: int | None = None,
    ):
        super().__init__(message)
        self.step, self.op, self.value, self.freed_at = step, op, value, freed_at


class InfeasibleBudget(RematError):
    """No plan of this method fits.

    Attributes
    ----------
    minimum : int or None
        The least budget (bytes, or slots under a chain's paper accounting) this method can meet.
    """

    def __init__(self, message: str, *, minimum: int | None = None):
        super().__init__(message)
        self.minimum = minimum

    @classmethod
    def of(cls, method: str, budget: int, minimum: int, *, slots: bool = False) -> InfeasibleBudget:
        """The error for a method whose least peak is ``minimum`` bytes (or slots)."""
        if slots:
            message = f"{method} cannot fit in {budget} slots: the least it can do is {minimum}."
            return cls(f"{message} Raise the budget to that, or try another method.", minimum=minimum)
        return cls(
            f"{method} cannot fit in {format_exact(budget)}: the least it can do is {format_exact(minimum)}. "
            "Raise the budget to that, or try another method.",
            minimum=minimum,
        )


class TooLarge(RematError, ValueError):
    """A problem beyond what a method, or the machine, can take; the message gives the size, the limit and a way."""


class UnknownMethod(RematError, ValueError):
    """No method of that name; the message lists the closest ones."""

    def __init__(self, name: object, known: Iterable[str]):
        known = sorted(known)
        close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
        hint = f"Closest: {', '.join(close)}." if close else f"Known: {', '.join(known)}."
        super().__init__(f"unknown method {name!r}. {hint} See remat_lab.methods().")
        self.name = name
        self.closest = close


class CaptureError(RematError):
    """A model (or one construct in it) that cannot be captured; the message says which and what to do."""


class ExecutionError(RematError):
    """An op failed while a schedule ran; the message names the op and the step.

    Attributes
    ----------
    op : str or None
        Name of the op.
    step : int or None
        Index of the action.
    """

    def __init__(self, message: str, *, op: str | None = None, step: int | None = None):
        super().__init__(message)
        self.op, self.step = op, step


class ViewClosed(RematError, AttributeError):
    """A view that was closed is asked for what it showed."""
