"""apply(): a module whose forward and ``loss.backward()`` follow a plan, for an ordinary training loop."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..errors import ExecutionError
from ..plan import Plan
from ..schedule import Schedule
from .as_captured import Now
from .execute import mismatch, require_captured, schedule_for, without_data
from .interpreter import Interpreter
from .signature import Signature, autocast_state

if TYPE_CHECKING:
    from .capture import CapturedModel

FALLBACKS = ("warn", "error", "silent")


def apply(
    cap: CapturedModel, plan: Plan | Schedule | None = None, *, fallback: str = "warn"
) -> PlannedModule:
    """The captured model as a module that trains as planned.

    It takes the model's arguments (and ``targets=``, for the loss) and returns the loss; ``loss.backward()``
    goes on with the plan. Optimizers, gradient accumulation, ``DistributedDataParallel`` and ``state_dict``
    work as with the model itself, whose parameters it shares.

    Parameters
    ----------
    cap : CapturedModel
    plan : Plan, Schedule, or None for the plain schedule
    fallback : what to do with a call that was not planned for (another shape, dtype, device, autocast): run
        the model in eager and "warn" once for each reason, do so "silent"ly, or raise an "error". Without
        gradients, or in another mode (train or eval) than captured, the model always runs in eager: there is
        nothing to plan.

    Raises
    ------
    ValueError
        If the plan was made for another graph.

    >>> # net = rl.apply(cap, plan); loss = net(images, targets=labels); loss.backward(); optimizer.step()
    """
    return PlannedModule(cap, plan, fallback=fallback)


class PlannedModule(nn.Module):
    """See :func:`apply`. ``model`` is the model itself, ``schedule`` what it follows."""

    def __init__(self, cap: CapturedModel, plan: Plan | Schedule | None, *, fallback: str):
        super().__init__()
        if fallback not in FALLBACKS:
            raise ValueError(f"fallback must be one of {FALLBACKS}, got {fallback!r}")
        require_captured(cap)
        self.model = cap.model
        if cap.loss_module.loss is not None:
            self.loss = cap.loss_module.loss
        self.cap = cap
        self.schedule = schedule_for(cap, plan)
        # The caller has the loss from here on; what comes before may include backward ops that need no gradient.
        self.split = int((self.schedule.actions == cap.storages.loss_gradient).argmax())
        self.made_buffers = _buffers_made(cap, self.schedule, self.split)
        self.written = {made.target for made in self.made_buffers}
        self.fallback = fallback
        self.training = cap.model.training
        self._warned: set[str] = set()
        # Names are the model's own, so checkpoints pass between the two.
        self.register_state_dict_post_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedModule:
        return PlannedModule(copy.deepcopy(self.cap, memo), self.schedule, fallback=self.fallback)

    @torch.compiler.disable  # a compiler would trace the interpreter; around it, it may compile what it likes
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        cap = self.cap
        args, targets = self._targets(args, kwargs)
        if not torch.is_grad_enabled() or self.model.training != cap.training:
            return cap.loss_module(args, kwargs, targets)
        signature, tensors = Signature.of_call(args, kwargs, targets)
        now = cap.as_captured.now(cap.loss_module)
        why = self._unplanned(signature, tensors, now)
        if why:
            self._say(why)
            return cap.loss_module(args, kwargs, targets)
        residents = {**now.tensors, **{f"args[{i}]": tensor for i, tensor in enumerate(tensors)}}
        return _Planned.apply(self, list(residents), *residents.values())

    def _targets(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The model's arguments, and those of the loss: ``targets=``, or what follows the model's own."""
        if not self.cap.takes_targets:
            return args, ()
        if "targets" in kwargs:
            targets = kwargs.pop("targets")
            return args, tuple(targets) if isinstance(targets, (tuple, list)) else (targets,)
        own, _, wanted = self.cap.signature.rebuild(list(self.cap.inputs))
        at = len(own) if len(args) == len(own) + len(wanted) else len(args)
        return args[:at], args[at:]

    def _unplanned(self, signature: Signature, tensors: list[torch.Tensor], now: Now) -> str:
        """Why a call cannot follow the plan ("" if it can)."""
        cap, captured = self.cap, self.cap.as_captured
        wrong = mismatch(cap, signature, tensors)
        if wrong:
            return wrong
        if autocast_state(cap.device) != cap.autocast:
            now_on, then = autocast_state(cap.device), cap.autocast
            return f"autocast is {now_on or 'off'}, the plan was made with it {then or 'off'}"
        wrong = now.changed or captured.other_mode(now.training) or captured.other_kind(now.tensors)
        if wrong:
            return wrong
        empty = without_data(now.tensors)
        if empty:
            return f"{captured.label(empty)} holds no data (it is on the meta device or fake)"
        return captured.other_gradient(now.tensors)

    def _say(self, why: str) -> None:
        text = f"{why}: capture the model again for this call to follow a plan"
        if self.fallback == "error":
            raise ValueError(text)
        if self.fallback == "warn" and why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"running without a plan, since {text}", stacklevel=4)

    def extra_repr(self) -> str:
        return f"schedule={self.schedule!r}"


class _Planned(torch.autograd.Function):
    """Forward: the schedule up to the gradient of the loss. Backward: the rest, with the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, module: PlannedModule, targets: list[str], *tensors: torch.Tensor) -> torch.Tensor:
        cap = module.cap
        residents = dict(zip(targets, tensors, strict=True))
        interpreter = Interpreter(cap, module.schedule, residents)
        interpreter.advance(module.split)
        k, output = next((k, o) for k, o in enumerate(cap.storages.outputs) if o.kind == "loss")
        loss = interpreter.output(k)
        _write_buffers(module, interpreter)
        ctx.interpreter, ctx.cap, ctx.targets, ctx.written = interpreter, cap, targets, module.written
        ctx.versions = [tensor._version for tensor in tensors]
        # A tensor of its own: the interpreter's, once it had this function as its history, would hold itself.
        return loss.clone() if cap.joint.resident[output.value] else loss.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise ExecutionError(
                "create_graph=True: a plan computes first derivatives, and what it computes has no history, so that a "
                "second derivative would silently be zero; call the model itself where one is needed"
            )
        interpreter: Interpreter | None = ctx.interpreter
        if interpreter is None:
            raise ExecutionError(
                "backward through the same planned forward a second time: its values have been freed; call the "
                "module again"
            )
        ctx.interpreter = None
        _check_untouched(ctx, interpreter)
        interpreter.supply_gradient(gradient.detach())
        interpreter.advance()
        cap: CapturedModel = ctx.cap
        alone = cap.storages.output_alone
        gradients: dict[str, torch.Tensor] = {}
        for k, output in enumerate(cap.storages.outputs):
            if output.kind == "gradient":
                found = interpreter.output(k)
                gradients[output.target] = found if alone[k] else found.clone()
            elif output.kind == "mutation" and output.target not in ctx.written:
                interpreter.tensors[output.target].copy_(interpreter.output(k))
        interpreter.release()
        return (None, None, *(gradients.get(target) for target in ctx.targets))


@dataclass(frozen=True)
class _Buffer:
    """A buffer whose new contents the forward pass makes: output ``k``, and who reads old and new ones later."""

    k: int
    target: str
    value: int
    old_is_read: bool
    new_is_read: bool  # by an op, or since it is an input, or another output's storage


def _buffers_made(cap: CapturedModel, schedule: Schedule, split: int) -> list[_Buffer]:
    rest = schedule.actions[split:]
    read_later = set(cap.joint.reads.index[np.isin(cap.joint.reads.owners(), rest[rest >= 0])].tolist())
    held = _held(schedule, split)
    alone = cap.storages.output_alone
    return [
        _Buffer(
            k,
            made.target,
            made.value,
            old_is_read=cap.resident_value[made.target] in read_later,
            new_is_read=made.value in read_later or not alone[k],
        )
        for k, made in enumerate(cap.storages.outputs)
        if made.kind == "mutation" and made.value in held
    ]


def _write_buffers(module: PlannedModule, interpreter: Interpreter) -> None:
    """Write back the new buffers the forward pass has made.

    What is still to run may read a buffer's old contents (a recomputation of its batch norm, say). Those change
    places with the new ones, whose memory the schedule holds to its end anyway: nothing is allocated.
    """
    buffers: list[torch.Tensor] = []
    contents: list[torch.Tensor] = []
    with torch.no_grad():
        for made in module.made_buffers:
            buffer, new = interpreter.tensors[made.target], interpreter.output(made.k)
            if made.old_is_read and not made.new_is_read and _swap(buffer, new):
                interpreter.replace(made.target, new)
                interpreter.discard(made.value)
                continue
            if made.old_is_read:
                interpreter.replace(made.target, buffer.detach().clone())
            buffers.append(buffer)
            contents.append(new)
        if buffers:
            torch._foreach_copy_(buffers, contents)


def _swap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Exchange the contents of two tensors without a third; False, and nothing done, if their layouts differ."""
    if a.dtype != b.dtype or not (a.is_contiguous() and b.is_contiguous()):
        return False
    left, right = (tensor.view(-1).view(torch.uint8) for tensor in (a, b))
    for target, source in ((left, right), (right, left), (left, right)):
        target.bitwise_xor_(source)
    return True


def _check_untouched(ctx: Any, interpreter: Interpreter) -> None:
    """Autograd's rule: what backward reads must be what forward read."""
    cap: CapturedModel = ctx.cap
    for target, version in zip(ctx.targets, ctx.versions):
        if target in ctx.written:  # this forward's own update; what still reads the old contents has a copy
            continue
        if interpreter.tensors[target]._version != version:
            name = cap.target_name(target)
            interpreter.abandon()
            raise ExecutionError(
                f"{name!r} was modified in place between the planned forward and its backward: recomputation would "
                "read other values; step the optimizer after backward"
            )


def _held(schedule: Schedule, stop: int) -> set[int]:
    """Values held before action ``stop``."""
    held: set[int] = set()
    for code in schedule.actions[:stop].tolist():
        if code < 0:
            held.discard(~code)
        else:
            held.update(schedule.joint.writes.row(code).tolist())
    return held


def _without_prefix(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Give the model's entries their own names, unless the loss has one of that name."""
    own = f"{prefix}model."
    for key in [key for key in state if key.startswith(own)]:
        short = prefix + key.removeprefix(own)
        if short not in state:
            state[short] = state.pop(key)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give the model's entries the names they have here. The names decide: a model may have a child "model"."""
    known = set(module.model.state_dict(keep_vars=True))
    given = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    for name, value in given.items():
        taken = f"model.{name}" in given  # a name the loss has, too
        keeps = name.startswith("loss.") or name.removeprefix("model.") in known
        ours = name in known and not taken
        state[prefix + (name if not ours and keeps else f"model.{name}")] = value
