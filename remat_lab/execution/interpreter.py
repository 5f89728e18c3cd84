"""Run a schedule action by action, exactly as written: the part that execute() and apply() share.

Random numbers: every op draws the numbers it draws in eager, whenever and however often it runs. The generators'
state is saved before its first run, set before each later one and put back after; where a schedule runs random ops
in another order than eager, :class:`Stream` finds the state each begins with. So masks are identical, and the stream
ends where eager's would.
"""

from __future__ import annotations

import functools
import traceback
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import ExecutionError
from ..schedule import Schedule
from . import _torch_private as private
from .program import Program, Slots

if TYPE_CHECKING:
    from .capture import CapturedModel

Act = Callable[[Slots], None]


class RandomState:
    """The default generators' state: the CPU's, and one CUDA device's if it is used.

    Kept as bytes, not tensors: a tensor would be five kilobytes of live memory the schedule knows nothing of. The
    tensor that torch hands the state over in is set aside for the same reason.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def save(self) -> tuple[bytes, bytes]:
        with private.aside():
            cuda = bytes(torch.cuda.get_rng_state(self.device).numpy()) if self.device.type == "cuda" else b""
            return bytes(torch.get_rng_state().numpy()), cuda

    def restore(self, state: tuple[bytes, bytes]) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(state[0]), dtype=torch.uint8))
        if state[1]:
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(state[1]), dtype=torch.uint8), self.device)


class Stream:
    """The random numbers of a schedule whose random ops first run in another order than eager's.

    To know the state an op begins with, those before it in eager's order are run once on made-up inputs, for the
    numbers they use up: before the first action, while no value is held, so that no peak is raised.

    Parameters
    ----------
    program : Program
    random : RandomState
    first : random ops of the schedule, in the order of their first runs
    """

    def __init__(self, program: Program, random: RandomState, first: list[int]):
        self.program, self.random = program, random
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}
        self.done: set[int] = set()
        ops = sorted(first)  # eager's order
        early = max(op for i, op in enumerate(first) if any(other < op for other in first[i + 1 :]))
        entry = state = random.save()
        try:
            for op in ops[: ops.index(early)]:
                self.before[op] = state
                random.restore(state)
                with private.aside():
                    program.rehearse(op)
                state = self.after[op] = random.save()
        finally:
            random.restore(entry)
        self.before[early] = state

    def run(self, op: int, act: Act, slots: Slots) -> None:
        """Run an op with its own numbers; the generators are left where eager has them once all of ``done`` ran."""
        again = op in self.done
        now = self.random.save()
        self.random.restore(self.before.setdefault(op, now))
        try:
            act(slots)
            after = self.random.save()
        finally:
            self.random.restore(now)
        if again:
            return
        if self.after.setdefault(op, after) != after:
            name = self.program.graph.joint.op_names[op]
            raise ExecutionError(
                f"how many random numbers {name!r} draws depends on data, and the plan runs ops that draw after it in "
                "eager before it: it cannot be run with eager's numbers; plan with another method",
                op=name,
            )
        if not self.done or op > max(self.done):
            self.random.restore(after)
        self.done.add(op)


class Interpreter:
    """One run of a schedule, which may pause between actions.

    Parameters
    ----------
    cap : CapturedModel
    schedule : Schedule on ``cap.joint``
    tensors : the resident tensors by target
    verify : checksum every value when it is first made, and compare when it is made again
    """

    def __init__(
        self,
        cap: CapturedModel,
        schedule: Schedule,
        tensors: dict[str, torch.Tensor],
        *,
        verify: bool = False,
    ):
        self.program: Program = cap.program
        self.schedule = schedule
        self.position = 0
        self.slots: Slots = [None] * self.program.size
        self.tensors = tensors
        for slot, tensor in self.program.constants:
            self.slots[slot] = tensor
        slots = self.slots
        for slot, target in self.program.resident_slots:
            slots[slot] = tensors[target].detach()
        self.random = RandomState(cap.device)
        self.draws = any(self.program.random)
        self.entry_state = self.random.save() if self.draws else None
        self.device_type = cap.device.type
        self.acts = _acts(self.program, schedule, self.random, verify)

    def advance(self, stop: int | None = None, mark: Callable[[], None] | None = None) -> None:
        """Do actions up to, not including, ``stop`` (default: all), calling ``mark`` after each.

        Raises
        ------
        ExecutionError
            If an op fails: it names the op and the step, every value has been released, and the random state
            is what it was before the run. KeyboardInterrupt passes through, after the same clearing up.
        """
        slots = self.slots
        start = step = self.position
        n = len(self.schedule.actions)
        stop = n if stop is None else stop
        try:
            # The graph's casts are ops of it already, so an autocast around this call must not add others.
            with torch.no_grad(), torch.autocast(self.device_type, enabled=False):
                if mark is None:
                    for step in range(start, stop):
                        self.acts[step](slots)
                else:
                    for step in range(start, stop):
                        self.acts[step](slots)
                        mark()
            self.position = stop
        except BaseException as error:
            self.abandon(error, restore=start == 0)
            where = f"op {self.schedule[step].name!r} at step {step} of {n}"
            if not isinstance(error, Exception):
                error.add_note(f"remat_lab: interrupted in {where}; all values were released")
                raise
            if isinstance(error, ExecutionError):
                raise
            raise ExecutionError(
                f"{where} failed: {type(error).__name__}: {error}. All values were released and the model is as "
                "it was.",
                op=self.schedule[step].name,
                step=step,
            ) from error

    def output(self, k: int) -> torch.Tensor:
        """The graph's output ``k``, once it has been made. Call it without gradients."""
        return self.program.output_getters[k](self.slots)

    def replace(self, target: str, tensor: torch.Tensor) -> None:
        """Let the rest of the run read ``tensor`` for a resident that is about to change."""
        slot, value = self.program.resident_places[target]
        self.program.free[value](self.slots)  # views of the old one go, too
        self.slots[slot] = tensor

    def supply_gradient(self, gradient: torch.Tensor) -> None:
        """Let the rest of the run go on from this gradient of the loss, where it would have made one of ones."""
        op = self.program.graph.loss_gradient
        (slot,) = self.program.primary[op]

        def supply(slots: Slots) -> None:
            slots[slot] = gradient

        for step in np.flatnonzero(self.schedule.actions[self.position :] == op) + self.position:
            self.acts[step] = supply

    def discard(self, value: int) -> None:
        """Let go of an output that has been taken, now and whenever a later action makes it again."""
        free = self.program.free[value]
        free(self.slots)
        makers = self.schedule.joint.writers.row(value)
        again = np.isin(self.schedule.actions[self.position :], makers)
        for step in np.flatnonzero(again) + self.position:
            self.acts[step] = _then(self.acts[step], free)

    def release(self) -> None:
        """Let go of every tensor."""
        self.slots[:] = [None] * len(self.slots)
        self.acts = []
        self.tensors = {}

    def abandon(self, error: BaseException | None = None, *, restore: bool = True) -> None:
        """Release everything and put the random state back to where the run began."""
        self.release()
        if error is not None:
            # Frames of the failed op would keep its arguments alive for as long as the error is.
            traceback.clear_frames(error.__traceback__)
        if restore and self.entry_state is not None:
            self.random.restore(self.entry_state)


def _acts(program: Program, schedule: Schedule, random: RandomState, verify: bool) -> list[Act]:
    """One function per action, with random replay and verification wrapped around the runs that need them."""
    run, free = program.run, program.free
    acts = [free[~code] if code < 0 else run[code] for code in schedule.actions.tolist()]
    states: dict[int, Any] = {}
    sums: dict[int, list[int]] = {}
    stream = _stream(program, schedule, random)
    several = schedule.run_counts > 1
    for op in np.flatnonzero(several if stream is None else schedule.run_counts).tolist():
        draws, checked = program.random[op], verify and several[op] and program.defined[op]
        if not (draws or checked):
            continue
        for step in np.flatnonzero(schedule.actions == op).tolist():
            if draws and stream is not None:
                acts[step] = functools.partial(stream.run, op, acts[step])
            elif draws:
                wrap = _replaying if op in states else _saving
                acts[step] = wrap(acts[step], op, states, random)
                states.setdefault(op, None)
            if checked:
                acts[step] = _verifying(acts[step], op, step, program, sums, schedule)
    return acts


def _stream(program: Program, schedule: Schedule, random: RandomState) -> Stream | None:
    """None if random ops first run in eager's order."""
    if not any(program.random):
        return None
    ops = schedule.actions[schedule.actions >= 0]
    first = list(dict.fromkeys(ops[np.array(program.random)[ops]].tolist()))
    return None if first == sorted(first) else Stream(program, random, first)


def _then(first: Act, second: Act) -> Act:
    def run(slots: Slots) -> None:
        first(slots)
        second(slots)

    return run


def _saving(act: Act, op: int, states: dict[int, Any], random: RandomState) -> Act:
    def run(slots: Slots) -> None:
        states[op] = random.save()
        act(slots)

    return run


def _replaying(act: Act, op: int, states: dict[int, Any], random: RandomState) -> Act:
    def run(slots: Slots) -> None:
        now = random.save()
        random.restore(states[op])
        try:
            act(slots)
        finally:
            random.restore(now)

    return run


def _verifying(
    act: Act, op: int, step: int, program: Program, sums: dict[int, list[int]], schedule: Schedule
) -> Act:
    def run(slots: Slots) -> None:
        act(slots)
        found = [checksum(slots[slot]) for slot in program.defined[op]]
        if sums.setdefault(op, found) != found:
            name = schedule.joint.op_names[op]
            which = [k for k, (a, b) in enumerate(zip(sums[op], found)) if a != b]
            raise ExecutionError(
                f"op {name!r} ({schedule.joint.op_types[op]}) gave other values when it was run again at step "
                f"{step} (output {which[0]}): it is not a function of its inputs, so a plan that recomputes it "
                "gives wrong gradients; keep its output, or make it deterministic",
                op=name,
                step=step,
            )

    return run


def checksum(tensor: torch.Tensor) -> int:
    """CRC-32 of a tensor's elements, bit for bit (so NaN equals NaN, and 0.0 differs from -0.0)."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return zlib.crc32(flat.view(-1).view(torch.uint8).numpy()) if flat.numel() else 0
