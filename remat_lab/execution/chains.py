"""Chains of real modules: measure them, run plans on them, train with them.

chain = Chain.from_rnn(cell, 1000, loss=..., inputs=..., targets=...)     or Chain.from_sequential(...)
plan = solve(chain, "6%", "rotor")
run = execute(chain, plan)              # sets .grad, measures
net = apply_chain(chain, plan)          # loss, state = net(inputs, targets, state) in a training loop
"""

from __future__ import annotations

import time as clock
from typing import Any

import numpy as np
import torch
from torch import nn

from ..chain import Chain
from ..errors import CaptureError
from ..plan import Plan
from ..schedule import Schedule
from ..simulate import simulate
from .chain_costs import chain_as_it_was, chain_levels, measured_costs, naming
from .chain_run import ChainRun
from .execute import accumulate, schedule_of, synchronize
from .measure import Levels, Measurement, meter_for, process_peak
from .stages import Call, RecurrentStages, SequentialStages, Stages, State, flatten, tensors_in

#: Steps of a recurrent chain that are measured; the middle ones stand for all but the first and the last.
PROBED = 6


class ModelChain(Chain):
    """A Chain that can run: measured costs, and the modules and tensors they were measured on.

    ``keeps_input`` is true: torch's autograd graph holds the step's input by reference, beside what it saves.

    Attributes
    ----------
    stages : Stages
    call : Call, the inputs, targets and initial state it was measured with
    autocast : the dtype it was measured under, or None
    """

    def __init__(self, steps: int, stages: Stages, call: Call, **costs: Any):
        super().__init__(steps, keeps_input=True, time_unit="s", **costs)
        self.stages, self.call, self._costs = stages, call, costs
        self.autocast = autocast_dtype(self.device)

    def of_length(self, steps: int) -> ModelChain:
        """The same recurrent chain for fewer or more steps: the middle steps' costs are repeated.

        Raises
        ------
        ValueError
            If the chain is not recurrent.
        """
        if steps == self.steps:
            return self
        if not isinstance(self.stages, RecurrentStages):
            raise ValueError(f"this chain has {self.steps} stages and no other length")
        if steps < 1:
            raise ValueError(f"a sequence needs at least one step, got {steps}")
        costs = {k: stretched(v, steps) if np.ndim(v) else v for k, v in self._costs.items()}
        chain = ModelChain(steps, self.stages.of_length(steps), self.call, **costs)
        chain.autocast = self.autocast
        return chain

    @property
    def device(self) -> torch.device:
        return self.call.initial[0].device


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def stretched(values: np.ndarray, steps: int) -> np.ndarray:
    """Per-step values for another length: the first, the middle one repeated, the last."""
    middle = values[len(values) // 2]
    first, last = values[0], values[-1]
    return np.array([first, *[middle] * (steps - 2), last][-steps:] if steps > 1 else [last])


# -- making one ----------------------------------------------------------------------------------------------
def from_sequential(
    model: nn.Sequential, inputs: Any, *, loss: Any = None, targets: Any = None
) -> ModelChain:
    """Measure the modules of an ``nn.Sequential`` as the stages of a chain.

    A module whose output shares its input's memory (a view, an activation in place, an identity) belongs to
    the stage before it.

    Parameters
    ----------
    model : nn.Sequential
    inputs : tensor, or nested tuples of tensors, for the first module
    loss : ``loss(output, targets)``, or ``loss(output)`` without targets; a function or a module; default:
        the mean of the output's squares
    targets : passed to the loss

    Raises
    ------
    CaptureError
        If a module fails, changes its input in place and is the first, or returns something else than tensors; if
        the loss fails or is not one number; or if the model has a forward of its own, besides its modules in a row.
    TypeError
        If ``model`` is no nn.Sequential.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model must be an nn.Sequential, got {type(model).__name__}; wrap its stages in one")
    if not len(model):
        raise CaptureError("an nn.Sequential without modules has no stages")
    if type(model).forward is not nn.Sequential.forward:
        raise CaptureError(
            f"{type(model).__name__} has a forward of its own, which need not run its modules in a row: give those, in "
            "an nn.Sequential"
        )
    with naming("the inputs"):
        initial, spec = flatten(inputs)
    call = Call(inputs, targets, initial)
    stages = SequentialStages(model, _groups(model, inputs), loss)
    stages.specs[0] = spec
    costs = measured_costs(stages, call, len(stages.groups))
    return ModelChain(len(stages.groups), stages, call, **costs, name=type(model).__name__)


def _groups(model: nn.Sequential, inputs: Any) -> list[nn.Sequential]:
    """The stages: modules joined to the one before where they share memory with it."""
    groups: list[list[nn.Module]] = []
    with chain_as_it_was(model, []), torch.no_grad():
        x = inputs
        for i, (name, module) in enumerate(model._modules.items()):
            before = flatten(x)[0]
            versions = [a._version for a in before]
            with naming(f"stage {len(groups) + 1}, module {name!r} ({type(module).__name__})"):
                x = module(x)
                flatten(x)
            changed = versions != [a._version for a in before]
            if changed and not i:
                raise CaptureError(
                    f"the first module ({type(module).__name__}) changes the model's input in place, so it cannot run "
                    "again: set inplace=False"
                )
            owners = {a.untyped_storage().data_ptr() for a in before}
            shares = any(a.untyped_storage().data_ptr() in owners for a in flatten(x)[0])
            if groups and (changed or shares):
                groups[-1].append(module)
            else:
                groups.append([module])
    return [nn.Sequential(*group) for group in groups]


def from_rnn(
    cell: nn.Module,
    steps: int,
    *,
    inputs: Any = None,
    targets: Any = None,
    state: Any = None,
    loss: Any = None,
    loss_at: str = "end",
    batch: int = 1,
) -> ModelChain:
    """Measure a recurrent cell as a chain of ``steps`` equal steps.

    Parameters
    ----------
    cell : ``cell(x_t, state)`` gives the next state (LSTMCell, GRUCell, RNNCell), or (output, next state)
        (nn.LSTM, nn.GRU, nn.RNN on pieces of a sequence; any module of that form)
    steps : int, T
    inputs : x_1..x_T: a tensor whose first axis is time, or a list; default: random, of ``batch`` rows and
        ``cell.input_size`` columns
    targets : per step if the loss is at every step, else whole
    state : the initial state; default: zeros like the one the cell makes by itself
    loss : as in :func:`from_sequential`; it is given the output (the first tensor of the state if none)
    loss_at : "end", or "every": the sum of every step's

    Raises
    ------
    CaptureError
        As :func:`from_sequential`; also if the cell changes its state in place.
    ValueError
        On a wrong ``loss_at``, or fewer inputs or targets than steps.
    """
    if not isinstance(cell, nn.Module):
        raise TypeError(f"cell must be a torch.nn.Module, got {type(cell).__name__}")
    if loss_at not in ("end", "every"):
        raise ValueError(f"loss_at must be 'end' or 'every', got {loss_at!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number, at least 1, got {steps!r}")
    if inputs is None:
        weight = next(cell.parameters())
        if not hasattr(cell, "input_size"):
            raise ValueError(f"give inputs: {type(cell).__name__} does not say its input size")
        inputs = torch.randn(steps, batch, cell.input_size, dtype=weight.dtype, device=weight.device)
    _enough(inputs, steps, "inputs")
    if loss_at == "every" and targets is not None:
        _enough(targets, steps, "targets")
    with chain_as_it_was(cell, []), torch.no_grad(), naming(f"step 1 ({type(cell).__name__})"):
        result = cell(inputs[0]) if state is None else cell(inputs[0], state)
    gives_output = isinstance(cell, nn.RNNBase) or (state is not None and _is_pair(result, state))
    example = result[1] if gives_output else result
    flat, spec = flatten(example if state is None else state)
    initial = [torch.zeros_like(x) for x in flat] if state is None else flat
    stages = RecurrentStages(cell, steps, spec, loss, loss_at, gives_output)
    call = Call(inputs, targets, initial)
    probed = min(steps, PROBED)
    costs = measured_costs(stages.of_length(probed), call, probed, into=stages)
    costs = {k: stretched(v, steps) if np.ndim(v) and probed < steps else v for k, v in costs.items()}
    return ModelChain(steps, stages, call, **costs, name=type(cell).__name__)


def _is_pair(result: Any, state: Any) -> bool:
    """Whether a result is (output, state): its second part is built like the state, itself it is not."""
    if not isinstance(result, tuple) or len(result) != 2 or flatten(result)[1] == flatten(state)[1]:
        return False
    return flatten(result[1])[1] == flatten(state)[1]


def _enough(sequence: Any, steps: int, what: str) -> None:
    if len(sequence) < steps:
        raise ValueError(f"{what} holds {len(sequence)} steps, the chain has {steps}")


# -- running -------------------------------------------------------------------------------------------------
def execute_chain(
    chain: Chain,
    plan: Plan | Schedule | None = None,
    *,
    measure: bool = True,
    inputs: Any = None,
    targets: Any = None,
    state: Any = None,
) -> Measurement:
    """Run one training step of a chain as planned: sets ``.grad``, adding to what is there, and moves buffers once.

    Gradients are bit-equal to plain backpropagation's where each parameter is used once per step (a cell of
    linear maps): contributions are added in the same order, from the last step to the first. A parameter
    used several times within a step has those summed first, and may differ in the last bit.

    Parameters and errors: as :func:`remat_lab.execute`. ``state`` is the initial state.
    """
    chain = model_chain(chain)
    chain.stages.check_modules()
    schedule = schedule_on(chain, plan)
    call = call_of(chain, inputs, targets, state)
    levels = (
        chain_levels(chain, chain.stages, schedule, call) if measure else Levels(*[np.zeros(0, np.int64)] * 2)
    )
    run = ChainRun(chain, chain.stages, schedule, call)
    started = clock.perf_counter()
    run.advance()
    synchronize(run.device)
    seconds = clock.perf_counter() - started
    with torch.no_grad():
        for parameter, gradient in zip(run.shadows.parameters, run.shadows.gradients()):
            if gradient is not None:
                accumulate(parameter, gradient, True)
        for x, gradient in zip(call.initial, run.gradients.get(0, [])):
            if gradient is not None and x.is_leaf:
                accumulate(x, gradient, True)
    run.release()
    return Measurement(
        bytes=levels.after,
        during=levels.during,
        loss=run.loss(),
        seconds=seconds,
        baseline=chain.input_bytes,
        recomputed_ops=schedule.recomputed_ops,
        process_bytes=process_peak(),
        schedule=schedule,
        method=getattr(plan, "method", ""),
        budget=None if getattr(plan, "in_slots", False) else getattr(plan, "budget", None),
    )


def plain_chain(chain: ModelChain, *, measure: bool = True) -> Measurement:
    """Standard backpropagation of the same steps in eager torch, by the same instrument; adds to ``.grad``."""
    chain = model_chain(chain)
    stages, call = chain.stages, chain.call
    stages.check_modules()

    def step() -> torch.Tensor:
        hidden, total = call.initial, None
        for t in range(1, chain.steps + 1):
            hidden, loss = stages.step(t, hidden, call, stages.has_loss(t))
            if loss is not None:
                total = loss if total is None else total + loss
        assert total is not None
        del hidden, loss
        total.backward()
        return total.detach()

    levels = Levels(*[np.zeros(0, np.int64)] * 2)
    if measure:
        with chain_as_it_was(stages.module, call.initial):
            step()
        with chain_as_it_was(stages.module, call.initial):
            meter = meter_for(chain.device)
            with meter:
                step()
            levels = meter.levels
    started = clock.perf_counter()
    loss = step()
    synchronize(chain.device)
    return Measurement(
        bytes=levels.after[:1],
        during=levels.during[:1],
        loss=loss,
        seconds=clock.perf_counter() - started,
        baseline=chain.input_bytes,
        recomputed_ops=0,
        process_bytes=process_peak(),
        method="standard backpropagation",
    )


def model_chain(chain: Any) -> ModelChain:
    """The chain, if it is one of real modules; else TypeError."""
    if not isinstance(chain, ModelChain):
        raise TypeError(f"chain must come from Chain.from_sequential or Chain.from_rnn, got {chain!r}")
    return chain


def schedule_on(chain: Chain, plan: Plan | Schedule | None) -> Schedule:
    """The plan's schedule on ``chain.joint``.

    Raises
    ------
    ValueError
        If it was made for another chain.
    InvalidSchedule
        If it cannot run.
    """
    if plan is None:
        return Schedule.vanilla(chain.joint)
    schedule = schedule_of(plan)
    theirs, ours = schedule.joint, chain.joint
    if theirs.op_names == ours.plain.op_names:  # by a method that knows no alternatives
        of_plain = np.flatnonzero(ours.op_plain)
        actions = schedule.actions
        schedule = Schedule(ours, np.where(actions >= 0, of_plain[np.maximum(actions, 0)], actions))
    elif theirs.op_names == ours.op_names and theirs.n_values == ours.n_values:
        schedule = Schedule(ours, schedule.actions)  # the same ops, perhaps under other costs
    else:
        raise ValueError(f"the plan is for {theirs!r}, the chain is {chain!r}: solve for this chain")
    simulate(schedule)
    return schedule


def call_of(chain: ModelChain, inputs: Any, targets: Any, state: Any) -> Call:
    """What a run works on: what is given, and the chain's own for the rest."""
    stages, own = chain.stages, chain.call
    inputs = own.inputs if inputs is None else inputs
    targets = own.targets if targets is None else targets
    if isinstance(stages, RecurrentStages):
        _enough(inputs, chain.steps, "inputs")
        wanted = [x for x in tensors_in(inputs) if x.requires_grad]
        if wanted:
            raise ValueError("inputs require a gradient: put the layers that make them into the cell")
        initial = _initial(own, inputs, stages) if state is None else flatten(state)[0]
    else:
        initial = flatten(inputs)[0]
    return Call(inputs, targets, initial)


def _initial(own: Call, inputs: Any, stages: RecurrentStages) -> State:
    """The chain's own initial state, or zeros for another batch size, as the cell makes them."""
    if inputs is own.inputs or _shape(inputs[0]) == _shape(own.inputs[0]):
        return own.initial
    with chain_as_it_was(stages.cell, []), torch.no_grad():
        result = stages.cell(inputs[0])
    flat, _ = flatten(result[1] if stages.gives_output else result)
    return [torch.zeros_like(x) for x in flat]


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, torch.Tensor) else None
