"""simulate(): the memory of a schedule after every action; Stepper: the same, one action at a time.

Accounting of one run(op): while it runs, memory is what was live before plus the larger of the bytes it
newly writes and its workspace; afterwards its outputs are live. A value computed again while an old
instance lives: both exist while the op runs, then the new one stays. Resident values are the baseline and
are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numba import njit

from .arrays import frozen
from .errors import InvalidSchedule
from .joint import CATEGORIES, JointGraph
from .peak import TRACE_CATEGORIES as TRACE_CATEGORIES
from .peak import LiveValue as LiveValue
from .peak import PeakExplanation
from .schedule import Schedule
from .units import format_bytes

_OK, _READS_MISSING, _FREES_MISSING, _READS_PARTIAL = 0, 1, 2, 3


class Planned(Protocol):
    """A Plan, as far as simulating it needs one."""

    @property
    def schedule(self) -> Schedule: ...


@dataclass(frozen=True, eq=False)
class Trace:
    """Memory over a schedule, predicted.

    Attributes
    ----------
    schedule : Schedule
    bytes : int64 array, shape (actions,): held after each action (baseline apart)
    during : int64 array, shape (actions,): the most held while the action runs
    by_category : int64 array, shape (actions, len(TRACE_CATEGORIES)): the split of ``during``
    time : float64 array, shape (actions,): clock after each action, in the graph's time unit
    budget : int or None
    method : str
    """

    schedule: Schedule
    bytes: np.ndarray
    during: np.ndarray
    by_category: np.ndarray
    time: np.ndarray
    budget: int | None = None
    method: str = ""

    @property
    def joint(self) -> JointGraph:
        return self.schedule.joint

    @property
    def peak(self) -> int:
        """The most bytes held at any moment, op workspace included, baseline apart."""
        return int(self.during.max()) if len(self.during) else 0

    @property
    def peak_step(self) -> int:
        """The action during which the peak is reached (the first, if several)."""
        return int(self.during.argmax()) if len(self.during) else 0

    @property
    def baseline(self) -> int:
        """Bytes of parameters, buffers and inputs, which no schedule changes."""
        return self.joint.baseline

    @property
    def overhead(self) -> float:
        """Time spent recomputing, in the graph's time unit."""
        return self.schedule.overhead

    @property
    def overhead_ratio(self) -> float:
        """Overhead over the time of one plain forward and backward."""
        plain = self.joint.plain_time
        return self.overhead / plain if plain else 0.0

    def live_at(self, step: int) -> list[LiveValue]:
        """Values held after action ``step``, largest first."""
        return _describe(self.joint, _live_after(self.schedule, step))

    def at_peak(self) -> list[LiveValue]:
        """Values held while the peak is reached (the running op's outputs included), largest first."""
        step = self.peak_step
        return self.live_at(step) if len(self.during) else []

    def explain_peak(self) -> PeakExplanation:
        """Which op and which values make the peak, and what would have to go for it to fall.

        Raises
        ------
        ValueError
            For an empty schedule.
        """
        if not len(self.during):
            raise ValueError("an empty schedule has no peak")
        step = self.peak_step
        return PeakExplanation.of(self.schedule, step, self.peak, self.live_at(step), self.by_category[step])

    def __repr__(self) -> str:
        return (
            f"Trace({self.method + ', ' if self.method else ''}{len(self.bytes)} actions, "
            f"peak {format_bytes(self.peak)} at step {self.peak_step}, overhead {self.overhead_ratio:.1%})"
        )


def simulate(plan: Planned | Schedule) -> Trace:
    """Play a plan (or a bare schedule) and record its memory.

    Raises
    ------
    InvalidSchedule
        If an op reads a value that is not there, a free names a value that is not held, or an output of the
        graph is missing at the end. The message names the step, the op, the value and who freed it.
    """
    schedule = plan if isinstance(plan, Schedule) else getattr(plan, "schedule", None)
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"simulate needs a Plan or a Schedule, got {type(plan).__name__}: rl.solve(problem, budget) makes a plan"
        )
    joint = schedule.joint
    # Alternatives: writer_count is 1 for what they write, so that one run of any of them makes it whole.
    during, after, by_category, status, step, value = _simulate(
        schedule.actions,
        *joint.reads,
        *joint.writes,
        *_writer_edges(joint),
        joint.writer_count,
        joint.value_bytes,
        np.minimum(joint.value_category, len(TRACE_CATEGORIES) - 1),
        joint.op_workspace,
        joint.outputs,
        len(TRACE_CATEGORIES),
    )
    if status != _OK:
        raise _invalid(schedule, int(status), int(step), int(value))
    runs = schedule.actions >= 0
    spent = np.zeros(len(schedule), dtype=np.float64)
    spent[runs] = joint.op_time[schedule.actions[runs]]
    return Trace(
        schedule=schedule,
        bytes=frozen(after),
        during=frozen(during),
        by_category=frozen(by_category),
        time=frozen(np.cumsum(spent)),
        # Slots are no bytes: a line at "3 B" would say something false.
        budget=None if getattr(plan, "in_slots", False) else getattr(plan, "budget", None),
        method=getattr(plan, "method", ""),
    )


def _writer_edges(joint: JointGraph) -> tuple[np.ndarray, np.ndarray]:
    """For each value, the positions in ``joint.writes.index`` that write it (CSR)."""
    cached = joint.__dict__.get("_writer_edges")
    if cached is None:
        order = np.argsort(joint.writes.index, kind="stable").astype(np.int64)
        cached = joint.__dict__["_writer_edges"] = (joint.writers.start, frozen(order))
    return cached


def _invalid(schedule: Schedule, status: int, step: int, value: int) -> InvalidSchedule:
    joint = schedule.joint
    name = joint.value_names[value]
    freed = np.flatnonzero(schedule.actions[:step] == ~value)
    freed_at = int(freed[-1]) if len(freed) else None
    why = f"it was freed at step {freed_at}" if freed_at is not None else "it has not been computed yet"
    if step >= len(schedule.actions):
        return InvalidSchedule(
            f"at the end, output {name!r} is missing: {why}", step=step, value=name, freed_at=freed_at
        )
    action = schedule[step]
    if status == _FREES_MISSING:
        message = f"step {step}: free of {name!r}, which is not held: {why}"
    elif status == _READS_PARTIAL:
        message = (
            f"step {step}: {action.name!r} reads {name!r} before every contribution to it has been added"
        )
    else:
        message = f"step {step}: {action.name!r} reads {name!r}, which is not held: {why}"
    return InvalidSchedule(message, step=step, op=action.name, value=name, freed_at=freed_at)


@njit(cache=True, nogil=True)
def _simulate(
    actions,
    read_start,
    read_index,
    write_start,
    write_index,
    edge_start,
    edge_index,
    writer_count,
    value_bytes,
    value_column,
    workspace,
    outputs,
    columns,
):
    """Replay. Returns (during, after, by_category, status, step, value); see the module docstring."""
    n = len(actions)
    values = len(writer_count)
    live = np.zeros(values, dtype=np.bool_)
    missing = writer_count.copy()
    given = np.zeros(len(write_index), dtype=np.bool_)
    during = np.zeros(n, dtype=np.int64)
    after = np.zeros(n, dtype=np.int64)
    by_category = np.zeros((n, columns), dtype=np.int64)
    column = np.zeros(columns, dtype=np.int64)
    total = 0
    for step in range(n):
        code = actions[step]
        if code < 0:
            value = ~code
            if not live[value]:
                return during, after, by_category, 2, step, value
            live[value] = False
            total -= value_bytes[value]
            column[value_column[value]] -= value_bytes[value]
            missing[value] = writer_count[value]
            for e in range(edge_start[value], edge_start[value + 1]):
                given[edge_index[e]] = False
            during[step] = total
            by_category[step] = column
        else:
            for e in range(read_start[code], read_start[code + 1]):
                value = read_index[e]
                if writer_count[value] == 0:
                    continue
                if not live[value]:
                    return during, after, by_category, 1, step, value
                if missing[value] > 0:
                    return during, after, by_category, 3, step, value
            written = 0
            added = 0
            for e in range(write_start[code], write_start[code + 1]):
                value = write_index[e]
                if not live[value]:
                    live[value] = True
                    added += value_bytes[value]
                    written += value_bytes[value]
                    column[value_column[value]] += value_bytes[value]
                elif writer_count[value] == 1:
                    written += value_bytes[value]
                if not given[e]:
                    given[e] = True
                    missing[value] -= 1
            inside = max(written, workspace[code])
            during[step] = total + inside
            total += added
            by_category[step] = column
            by_category[step, columns - 1] += inside - added
        after[step] = total
    for k in range(len(outputs)):
        value = outputs[k]
        if writer_count[value] > 0 and (not live[value] or missing[value] > 0):
            return during, after, by_category, 1, n, value
    return during, after, by_category, 0, 0, 0


def _live_after(schedule: Schedule, step: int) -> np.ndarray:
    """Values held after action ``step``, as indices; ``step`` -1 is the start."""
    live = np.zeros(schedule.joint.n_values, dtype=bool)
    for code in schedule.actions[: step + 1].tolist():
        if code < 0:
            live[~code] = False
        else:
            live[schedule.joint.writes.row(code)] = True
    return np.flatnonzero(live)


def _describe(joint: JointGraph, values: np.ndarray) -> list[LiveValue]:
    order = values[np.argsort(-joint.value_bytes[values], kind="stable")]
    return [
        LiveValue(
            joint.value_names[v], int(joint.value_bytes[v]), CATEGORIES[joint.value_category[v]], int(v)
        )
        for v in order.tolist()
    ]


class Stepper:
    """Step through a plan, action by action, forward and back.

    ``position`` counts the actions done; it starts at 0. Nothing is recomputed when stepping: the trace is
    made once, and the set of live values follows the actions either way.

    >>> # step = Stepper(plan); step.next(); print(step.explain())
    """

    def __init__(self, plan: Planned | Schedule):
        self.trace = simulate(plan)
        self.schedule = self.trace.schedule
        self.joint = self.schedule.joint
        self.position = 0
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self.schedule)

    @property
    def done(self) -> bool:
        return self.position >= len(self)

    @property
    def live(self) -> list[LiveValue]:
        """Values held now, largest first."""
        return _describe(self.joint, np.array(sorted(self._live), dtype=np.int64))

    @property
    def bytes(self) -> int:
        """Bytes held now (baseline apart)."""
        return int(self.trace.bytes[self.position - 1]) if self.position else 0

    def next(self) -> str:
        """Do the next action and return :meth:`explain` of it. At the end it stays there."""
        if self.done:
            return self.explain()
        code = int(self.schedule.actions[self.position])
        if code < 0:
            self._live.discard(~code)
        else:
            self._live.update(self.joint.writes.row(code).tolist())
        self.position += 1
        return self.explain()

    def back(self) -> str:
        """Undo the last action. At the start it stays there."""
        if self.position == 0:
            return self.explain()
        self.position -= 1
        code = int(self.schedule.actions[self.position])
        if code < 0:
            self._live.add(~code)
        else:
            self._live.difference_update(self._new_values[self.position])
        return self.explain()

    def goto(self, position: int) -> str:
        """Go to the moment when ``position`` actions are done (0 is the start, -1 the end).

        Raises
        ------
        ValueError
            If there is no such moment.
        """
        wanted = position + len(self) + 1 if position < 0 else position
        if not 0 <= wanted <= len(self):
            raise ValueError(f"position {position} is outside 0..{len(self)}")
        self._live = set(_live_after(self.schedule, wanted - 1).tolist())
        self.position = wanted
        return self.explain()

    @cached_property
    def _new_values(self) -> list[tuple[int, ...]]:
        """For each action, the values it brought to life."""
        live: set[int] = set()
        new: list[tuple[int, ...]] = []
        for code in self.schedule.actions.tolist():
            if code < 0:
                live.discard(~code)
                new.append(())
            else:
                added = tuple(v for v in self.joint.writes.row(code).tolist() if v not in live)
                live.update(added)
                new.append(added)
        return new

    @cached_property
    def _next_reader(self) -> dict[tuple[int, int], tuple[int, int] | None]:
        """(step of a run, value) -> (step, op) of the first later read of that instance."""
        found: dict[tuple[int, int], tuple[int, int] | None] = {}
        upcoming: dict[int, tuple[int, int] | None] = {}
        for step in range(len(self) - 1, -1, -1):
            code = int(self.schedule.actions[step])
            if code < 0:
                upcoming[~code] = None
                continue
            for value in self.joint.writes.row(code).tolist():
                found[step, value] = upcoming.get(value)
            for value in self.joint.reads.row(code).tolist():
                upcoming[value] = (step, code)
        return found

    def explain(self) -> str:
        """What the last action did, in a sentence or two: what ran, why now, what it read, bytes before and after."""
        return explain_action(self, self.position - 1)


def explain_action(stepper: Stepper, step: int) -> str:
    """The sentence for action ``step`` of a stepper's schedule (-1: before the first)."""
    trace, joint, schedule = stepper.trace, stepper.joint, stepper.schedule
    if step < 0:
        return f"Nothing has run yet. {format_bytes(joint.baseline)} of parameters and inputs are there throughout."
    action = schedule[step]
    before = int(trace.bytes[step - 1]) if step else 0
    after = int(trace.bytes[step])
    moved = f"{format_bytes(before)} to {format_bytes(after)}"
    if action.kind == "free":
        return f"Step {step}: free {action.name}; {_why_free(schedule, step, action.index)}. Memory {moved}."
    op = action.index
    again = schedule.is_recomputation[step]
    verb = "compute" if not again else "compute again"
    if joint.op_backward[op]:
        verb = "run" if not again else "run again"  # its name says that it is backward
    reads = [joint.value_names[v] for v in joint.reads.row(op).tolist() if not joint.resident[v]]
    parts = [f"Step {step}: {verb} {action.name}"]
    parts.append(f"reading {_listing(reads)}" if reads else "reading only parameters and inputs")
    sentence = ", ".join(parts) + "."
    if again:
        sentence += f" Why now: {_why_again(stepper, step, op)}."
    peak = int(trace.during[step])
    inside = f" (up to {format_bytes(peak)} while it runs)" if peak > max(before, after) else ""
    sentence += f" Memory {moved}{inside}."
    if step == trace.peak_step:
        sentence += " This is the peak."
    return sentence


def _why_again(stepper: Stepper, step: int, op: int) -> str:
    joint, schedule = stepper.joint, stepper.schedule
    for value in joint.writes.row(op).tolist():
        reader = stepper._next_reader.get((step, value))
        if reader is None:
            continue
        at, who = reader
        freed = np.flatnonzero(schedule.actions[:step] == ~value)
        gone = f", and was freed at step {freed[-1]}" if len(freed) else ""
        return f"{joint.value_names[value]} is read by {joint.op_names[who]} at step {at}{gone}"
    return "nothing reads its values afterwards, so this run is wasted"


def _why_free(schedule: Schedule, step: int, value: int) -> str:
    later = schedule.actions[step + 1 :]
    writers = schedule.joint.writers.row(value)
    rerun = np.flatnonzero(np.isin(later, writers))
    if len(rerun):
        return f"it will be computed again at step {step + 1 + rerun[0]}"
    return "nothing reads it any more"


def _listing(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
