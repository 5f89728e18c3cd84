"""Train with a chain's plan in an ordinary loop: a module whose every step runs as planned.

net = apply_chain(chain, plan)
loss, state = net(inputs, targets, state)
loss.backward()
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from ..errors import InfeasibleBudget, UnknownMethod
from ..plan import Plan, solve
from ..schedule import Schedule
from .chain_run import ChainRun
from .chains import ModelChain, autocast_dtype, call_of, model_chain, schedule_on
from .stages import Call, RecurrentStages, Stages, State, rebuild, tensors_in


def apply_chain(chain: ModelChain, plan: Plan) -> ChainModule:
    """A module for an ordinary training loop, whose every step runs as planned; see :class:`ChainModule`.

    Raises
    ------
    TypeError
        If ``chain`` is not a chain of real modules, or ``plan`` no plan.
    """
    chain = model_chain(chain)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, got {type(plan).__name__}: rl.solve(chain, budget, method)")
    return ChainModule(chain, plan)


class ChainModule(nn.Module):
    """The chain's modules, run as planned when gradients are wanted.

    ``net(inputs, targets, state)`` returns ``(loss, state)`` for a recurrent chain, the state detached, so that
    it can start the next piece of a long sequence (truncated backpropagation); the loss alone for an
    nn.Sequential. A shorter or longer sequence is planned with the same method and budget when it first comes.

    Inputs larger than those measured, or another mode or autocast than then, run just as well, but may take more
    memory than planned: a warning says so, once for each reason.

    Names in its ``state_dict`` are the model's own (the nn.Sequential's or the cell's), so checkpoints pass between
    the two; those of a loss that is a module begin with "loss.", or "loss_." where the model has a "loss" itself.

    What a step holds is what the plan says, and beside it the state, for as long as the caller holds that.
    """

    def __init__(self, chain: ModelChain, plan: Plan):
        super().__init__()
        self.module = chain.stages.model
        if isinstance(chain.stages.loss, nn.Module):
            self.loss = chain.stages.loss
        self._chain, self._plan = chain, plan
        self._schedules = {chain.steps: (chain, schedule_on(chain, plan))}
        self._warned: set[str] = set()
        self._loading = ""
        self.register_state_dict_post_hook(_to_the_models_names)
        self.register_load_state_dict_pre_hook(_from_the_models_names)
        self.register_load_state_dict_post_hook(_report_the_models_names)

    def forward(self, inputs: Any = None, targets: Any = None, state: Any = None) -> Any:
        chain = self._chain
        chain.stages.check_modules()
        recurrent = isinstance(chain.stages, RecurrentStages)
        steps = len(inputs) if recurrent and inputs is not None else chain.steps
        chain, schedule = self._planned(steps)
        call = call_of(chain, inputs, targets, state)
        if not torch.is_grad_enabled():
            loss, last = _without_gradients(chain, call)
        else:
            self._warn(call)
            run = ChainRun(chain, chain.stages, schedule, call)
            loss, *last = _Step.apply(run, len(call.initial), *call.initial, *run.shadows.parameters)
        if not isinstance(chain.stages, RecurrentStages):
            return loss
        return loss, rebuild([x.detach() for x in last], chain.stages.spec)

    def _planned(self, steps: int) -> tuple[ModelChain, Schedule]:
        if steps not in self._schedules:
            chain, plan = self._chain.of_length(steps), self._plan
            try:
                other = solve(chain, plan.budget, plan.method, accounting=plan.accounting)
            except InfeasibleBudget as error:
                raise InfeasibleBudget(
                    f"a sequence of {steps} steps: {error}", minimum=error.minimum
                ) from None
            except UnknownMethod:
                raise ValueError(
                    f"the plan is for {self._chain.steps} steps, and {plan.method!r}, which would plan {steps}, is no "
                    "registered method: register it, or give sequences of that length"
                ) from None
            self._schedules[steps] = chain, schedule_on(chain, other)
        return self._schedules[steps]

    def _warn(self, call: Call) -> None:
        """Say once, for each reason, that a call may not keep the budget."""
        chain = self._chain
        now, then = _tensors(call, chain.stages), _tensors(chain.call, chain.stages)
        larger = [
            (a, b)
            for a, b in zip(now, then)
            if a.numel() > b.numel() or (a.dtype, a.device) != (b.dtype, b.device)
        ]
        autocast = autocast_dtype(chain.device)
        reasons = [f"planned for {_described(b)}, got {_described(a)}" for a, b in larger[:1]]
        if autocast != chain.autocast:
            reasons.append(f"planned for autocast {chain.autocast or 'off'}, it is {autocast or 'off'}")
        if chain.stages.modes_now() != chain.stages.modes:
            reasons.append("planned for other modes (train or eval) of the modules")
        for reason in reasons:
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(
                    f"{reason}: the budget is not kept; measure the chain on what it is trained on",
                    stacklevel=5,
                )


def _loss_prefix(net: nn.Module) -> str:
    """What the names of the loss's parameters begin with, beside the model's own names."""
    model, name = net.module, "loss"
    while name in model._modules or name in model._parameters or name in model._buffers:
        name += "_"
    return f"{name}."


def _renamed(state: dict[str, Any], names: dict[str, str]) -> None:
    """Rename entries, all at once: an old name may be another's new one."""
    values = {new: state.pop(old) for old, new in names.items()}
    state.update(values)


def _models_name(net: nn.Module, key: str, prefix: str) -> str:
    """The name the user knows for one of this module's own."""
    for ours, theirs in (("module.", ""), ("loss.", _loss_prefix(net))):
        if key.startswith(prefix + ours):
            return prefix + theirs + key.removeprefix(prefix + ours)
    return key


def _to_the_models_names(net: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    _renamed(state, {key: _models_name(net, key, prefix) for key in state})


def _report_the_models_names(net: ChainModule, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = [_models_name(net, key, net._loading) for key in keys]


def _from_the_models_names(net: ChainModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    net._loading = prefix
    loss = prefix + _loss_prefix(net) if hasattr(net, "loss") else None
    names = {}
    for key in state:
        if loss is not None and key.startswith(loss):
            names[key] = f"{prefix}loss.{key.removeprefix(loss)}"
        elif key.startswith(prefix):
            names[key] = f"{prefix}module.{key.removeprefix(prefix)}"
    _renamed(state, names)


def _tensors(call: Call, stages: Stages) -> State:
    """The tensors whose sizes decide a step's memory."""
    first = tensors_in(call.inputs[0]) if isinstance(stages, RecurrentStages) else []
    return [*call.initial, *first]


def _described(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}"


def _without_gradients(chain: ModelChain, call: Call) -> tuple[torch.Tensor, State]:
    hidden, total = call.initial, None
    for t in range(1, chain.steps + 1):
        hidden, loss = chain.stages.step(t, hidden, call, chain.stages.has_loss(t))
        if loss is not None:
            total = loss if total is None else total + loss
    assert total is not None
    return total, hidden


class _Step(torch.autograd.Function):
    """Forward: the actions up to the backward pass. Backward: the rest, from the gradient that arrives."""

    @staticmethod
    def forward(ctx: Any, run: ChainRun, states: int, *tensors: torch.Tensor) -> Any:
        run.advance(run.backward_starts)
        run.remember()
        ctx.run, ctx.states = run, states
        ctx.set_materialize_grads(False)  # or zeros the size of the last state would be made in backward
        last = [x.detach() for x in run.hidden[run.chain.steps]]
        ctx.mark_non_differentiable(*last)
        return run.loss(), *last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        run = ctx.run
        if gradient is None:  # nothing depends on the loss
            return (None,) * len(ctx.needs_input_grad)
        if run is None:
            raise RuntimeError("this step's backward has run already: its internal states are gone")
        ctx.run = None
        run.check_untouched()
        run.loss_gradient = gradient
        run.advance()
        initial = run.gradients.get(0, [None] * ctx.states)
        found = (None, None, *initial, *run.shadows.gradients())
        run.release()
        return found
