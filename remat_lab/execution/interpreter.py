"""Run a schedule action by action, exactly as written: the part that execute() and apply() share.

Random numbers: every op draws the numbers it draws in eager, whenever and however often it runs, by
:class:`Stream`. So masks are identical, and the stream ends where eager's would.
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
    """The random numbers of ops that run again, or first run in another order than eager's.

    The generators' state is saved before an op's first run, set before each later one and put back after. Where an
    op first runs before one that is ahead of it in eager, those ahead are run once on made-up inputs, for the
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
        early = max((op for i, op in enumerate(first) if min(first[i:]) < op), default=None)
        self.reorders = early is not None
        if early is None:
            return
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
        again, ahead = op in self.done, max(self.done, default=-1) > op
        now = self.random.save()
        start = self.before.setdefault(op, now)
        if start is not now:
            self.random.restore(start)
        try:
            act(slots)
        except BaseException:
            self.random.restore(now)
            raise
        after = self.random.save() if op in self.after and not again else None
        if again or ahead:
            self.random.restore(now)
        self.done.add(op)
        if after is not None and after != self.after[op]:
            name = self.program.graph.joint.op_names[op]
            raise ExecutionError(
                f"how many random numbers {name!r} draws depends on data, and the plan runs ops that draw after it in "
                "eager before it: it cannot be run with eager's numbers; plan with another method",
                op=name,
            )


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
    sums: dict[int, list[int]] = {}
    several = schedule.run_counts > 1
    ran = schedule.actions[schedule.actions >= 0].tolist() if any(program.random) else []
    first = list(dict.fromkeys(op for op in ran if program.random[op]))
    stream = Stream(program, random, first)
    for op in np.flatnonzero(schedule.run_counts if stream.reorders else several).tolist():
        draws, checked = program.random[op], verify and several[op] and program.defined[op]
        if not (draws or checked):
            continue
        for step in np.flatnonzero(schedule.actions == op).tolist():
            if draws:
                acts[step] = functools.partial(stream.run, op, acts[step])
            if checked:
                acts[step] = _verifying(acts[step], op, step, program, sums, schedule)
    return acts


def _then(first: Act, second: Act) -> Act:
    def run(slots: Slots) -> None:
        first(slots)
        second(slots)

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
