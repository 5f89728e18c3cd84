"""capture(): a torch model's forward and backward as a graph that can be planned, and run again as planned.

Nothing is allocated: parameters and inputs may be real, fake or on the meta device, and a network of hundreds of
gigabytes of activations is captured in seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import CaptureError, RematError
from ..graph import ComputationGraph
from ..joint import JointGraph
from .as_captured import AsCaptured
from .layers import layers
from .program import Program
from .signature import Signature, autocast_state
from .standin import LossModule, StandIn
from .storages import StorageGraph, build, tensors_of
from .tracing import constant_names, trace

if TYPE_CHECKING:
    from ..explain import Explanation
    from ..plan import Plan
    from ..schedule import Schedule
    from .apply import PlannedModule
    from .measure import Measurement


@dataclass(frozen=True, eq=False)
class CapturedModel:
    """A model's training step: what can be planned, and what it takes to run a plan.

    Attributes
    ----------
    joint : JointGraph
        Forward and backward ATen ops. Values are storages; views cost nothing.
    graph : ComputationGraph
        The forward part, one node per op: what planning and execution use.
    layers : ComputationGraph
        The forward part, one node per layer's primary output: what the papers draw. Its joint graph is
        ``joint``, so plans on it run, too.
    model : nn.Module
    inputs : list of tensor
        The example tensors, in the order of the arguments; ``fake_inputs`` are their fake twins.
    storages, graph_module, loss_module, standin, signature, as_captured
        The ties between the graph and the model, for execution.
    """

    model: nn.Module
    inputs: list[torch.Tensor]
    fake_inputs: list[torch.Tensor]
    storages: StorageGraph
    graph_module: torch.fx.GraphModule
    loss_module: LossModule
    standin: StandIn
    signature: Signature
    as_captured: AsCaptured
    training: bool = True
    autocast: str = ""  # the dtype it was captured under, if any
    warm: list[bool] = field(default_factory=list, repr=False)  # not empty once every op has run

    @property
    def joint(self) -> JointGraph:
        return self.storages.joint

    @property
    def graph(self) -> ComputationGraph:
        return self.joint.graph

    @cached_property
    def layers(self) -> ComputationGraph:
        return layers(self.storages)

    @property
    def captured(self) -> CapturedModel:
        """Itself: the view that methods made for torch models plan on."""
        return self

    @property
    def takes_targets(self) -> bool:
        """Whether the loss was captured with ``targets=``."""
        return bool(self.signature.rebuild(list(self.inputs))[2])

    @property
    def name(self) -> str:
        return self.joint.name

    @cached_property
    def input_names(self) -> list[str]:
        """The name of each example tensor, as in the call."""
        return input_names(self.signature)

    @cached_property
    def device(self) -> torch.device:
        """Where the model's tensors are (CPU for a model captured on the meta device)."""
        return next(
            tensor.device
            for node in self.storages.residents
            for _, tensor in tensors_of(node)
            if tensor.dim() or tensor.device.type != "cpu"
        )

    @cached_property
    def resident_value(self) -> dict[str, int]:
        """The value of each parameter, buffer and input, by target."""
        return {target: self.storages.value_of[node] for node, target in self.storages.residents.items()}

    def target_name(self, target: str) -> str:
        """The name of a parameter, buffer or input for people."""
        return self.joint.value_names[self.resident_value[target]]

    @cached_property
    def program(self) -> Program:
        """The graph as functions to run."""
        return Program(self.storages, self.graph_module)

    def with_model(self, model: nn.Module, loss: nn.Module | None = None) -> CapturedModel:
        """The same capture for another model of the same modules (a copy), and its loss if that is a module."""
        loss = self.loss_module.loss if loss is None else loss
        return replace(
            self, model=model, loss_module=LossModule(model, loss or self.loss_module._loss_function), warm=[]
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModel:
        # What was traced is never changed, and fake tensors cannot be copied.
        return self.with_model(copy.deepcopy(self.model, memo), copy.deepcopy(self.loss_module.loss, memo))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a captured model cannot be pickled: save model.state_dict() and the plan (plan.save(path)), capture "
            "the model again, and read the plan with rl.Plan.load(path, captured)"
        )

    def with_joint(self, joint: JointGraph) -> CapturedModel:
        """The same model with other costs on its ops and values."""
        other = replace(self, storages=replace(self.storages, joint=joint))
        if "program" in self.__dict__:
            other.__dict__["program"] = self.program  # it depends on no cost
        return other

    def calibrate(self, **options: Any) -> CapturedModel:
        """:func:`remat_lab.calibrate` of this model: measured workspaces, sizes and times."""
        from .calibrate import calibrate

        return calibrate(self, **options)

    def with_time(self, time: str) -> CapturedModel:
        """The same with op times by "flop" or "paper", without a run."""
        from .calibrate import with_time

        return with_time(self, time)

    def execute(self, plan: Plan | Schedule | None = None, **options: Any) -> Measurement:
        """:func:`remat_lab.execute` of this model."""
        from .execute import execute

        return execute(self, plan, **options)

    def explain(self, plan: Plan | Schedule | None = None) -> Explanation:
        """Where the plain step's peak is, by category and module, and what bounds every plan; no run needed.

        With a plan: also why it helps, or does not.
        """
        from ..explain import explain

        return explain(self, plan)

    def apply(self, plan: Plan | Schedule | None = None, **options: Any) -> PlannedModule:
        """:func:`remat_lab.apply` of this model: a module for an ordinary training loop."""
        from .apply import apply

        return apply(self, plan, **options)

    def __repr__(self) -> str:
        return f"CapturedModel({self.joint!r}, baseline {self.joint.baseline} bytes)"


def capture(
    model: nn.Module,
    inputs: Any,
    loss: Callable[..., torch.Tensor] | None = None,
    *,
    targets: Any = (),
    name: str = "",
) -> CapturedModel:
    """Capture one training step of a model, without running it.

    Parameters
    ----------
    model : nn.Module
        In the mode (train or eval) it will run in. Parameters may be real or on the meta device.
    inputs : tensor, tuple or dict
        One argument, several, or keyword arguments. Only shapes, dtypes and devices matter; tensors on the meta
        device stand for CPU ones.
    loss : callable, optional
        ``loss(output, *targets)`` returns a scalar. Default: the model returns the scalar itself, or an output
        with a ``.loss``.
    targets : tensor or tuple of tensors
        Passed to ``loss`` after the model's output; inputs like the others.
    name : str
        Default: the model's class.

    Notes
    -----
    What a capture fixes: the path taken by Python control flow; Python numbers and attributes read in forward and in
    the loss (dropout probabilities, coefficients, counters, random numbers that are not torch's); tensors that are
    neither parameters, buffers nor inputs; which modules there are, and the hooks on them. Capture again after
    changing one. Parameters, buffers and inputs are read at every call; buffers are updated as in eager, in place
    also where forward assigns to them. The model is left as it was, whatever its forward keeps on the way. What
    ``torch.compile`` made of modules is captured as it runs in eager.

    Under autocast, eager casts a weight that is used twice once and keeps the copy; a captured model casts at each
    use, as ``torch.autocast(..., cache_enabled=False)`` does. Gradients equal that mode's bit for bit.

    Raises
    ------
    CaptureError
        If the model cannot be captured; the message names the op or construct and what to do.

    >>> # cap = capture(net, images, torch.nn.functional.cross_entropy, targets=labels)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be callable, got {type(loss).__name__}")
    if loss is None and not (isinstance(targets, tuple) and not targets):
        raise ValueError("targets= are arguments of loss=: pass a loss")
    graph_module, module, standin, signature, tensors, fakes = trace(model, inputs, loss, targets)
    try:
        names = {**standin.names, **constant_names(graph_module, module)}
        storages = build(graph_module, names, input_names(signature), name or type(model).__name__)
    except (RematError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(
            f"{type(model).__name__} was traced to a graph that cannot be planned: {error}"
        ) from error
    cap = CapturedModel(
        model,
        tensors,
        fakes,
        storages,
        graph_module,
        module,
        standin,
        signature,
        AsCaptured(module, standin),
        training=model.training,
    )
    return replace(cap, autocast=autocast_state(cap.device))


def input_names(signature: Signature) -> list[str]:
    """ "input 0", "target 0", or the keyword of each tensor argument."""
    args, kwargs, targets = signature.rebuild([_Slot(i) for i in range(len(signature.tensor_at))])
    names: dict[int, str] = {}
    for prefix, group in (("input", enumerate(args)), ("", kwargs.items()), ("target", enumerate(targets))):
        for key, argument in group:
            found = [leaf for leaf in _leaves(argument) if isinstance(leaf, _Slot)]
            for k, slot in enumerate(found):
                label = f"{prefix} {key}".strip()
                names[slot.index] = label if len(found) == 1 else f"{label}[{k}]"
    return [names[i] for i in range(len(names))]


@dataclass(frozen=True)
class _Slot:
    index: int


def _leaves(argument: Any) -> list[Any]:
    from ._torch_private import pytree

    return pytree.tree_leaves(argument)
