"""From a module and example inputs to its joint ATen graph, without allocating.

Everything is traced as fake tensors: real, meta and fake parameters and inputs all become fake ones of the
same shape, strides, dtype and device, so a model of any size can be traced on a laptop.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from ..errors import CaptureError
from . import _torch_private as private
from .rewrite import check_where_made, drop_unused_statistics, refill_in_place
from .snapshot import unchanged

#: What :func:`trace` gives.
Traced: TypeAlias = """tuple[
    torch.fx.GraphModule, LossModule, StandIn, Signature, list[torch.Tensor], list[torch.Tensor]
]"""


@dataclass(frozen=True)
class Signature:
    """How a call's arguments are flattened: which leaves are tensors, and the constants between them."""

    spec: Any
    leaves: tuple[Any, ...]  # constants; None where a tensor goes
    tensor_at: tuple[int, ...]

    @classmethod
    def of(cls, inputs: Any, targets: Any) -> tuple[Signature, list[torch.Tensor]]:
        """(signature, its tensors) of inputs and targets as capture() takes them."""
        targets = tuple(targets) if isinstance(targets, (tuple, list)) else (targets,)
        return cls.of_call(*call_arguments(inputs), targets)

    @classmethod
    def of_call(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> tuple[Signature, list[torch.Tensor]]:
        """The same of a call's arguments."""
        leaves, spec = private.pytree.tree_flatten((args, kwargs, targets))
        at = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        tensors = [leaves[i] for i in at]
        constants = tuple(None if i in set(at) else leaf for i, leaf in enumerate(leaves))
        return cls(spec, constants, at), tensors

    def rebuild(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """(args, kwargs, targets) with these tensors in place."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.tensor_at, tensors, strict=True):
            leaves[i] = tensor
        return private.pytree.tree_unflatten(leaves, self.spec)


def call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor is one argument, a tuple or list several, a dict keyword arguments."""
    if isinstance(inputs, dict):
        return (), dict(inputs)
    if hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):  # transformers' BatchEncoding
        return (), {key: inputs[key] for key in inputs.keys()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


class LossModule(nn.Module):
    """The model and its loss as one module, so that the loss's own parameters count too."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor] | None):
        super().__init__()
        self.model = model
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._loss_function = None if isinstance(loss, nn.Module) else loss

    def forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> torch.Tensor:
        output = self.model(*args, **kwargs)
        compute = self.loss or self._loss_function
        return scalar_loss(
            output if compute is None else compute(output, *targets), given=compute is not None
        )


def scalar_loss(output: Any, *, given: bool) -> torch.Tensor:
    """The scalar in a model's output, or a CaptureError that says what was there instead."""
    if not given and not isinstance(output, torch.Tensor):
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, dict):
            loss = output.get("loss")
        if loss is None:
            raise CaptureError(
                f"the model returns a {type(output).__name__} without a loss: pass loss=, a function of the "
                "model's output that returns a scalar (transformers models return one when given labels=)"
            )
        output = loss
    if not isinstance(output, torch.Tensor):
        raise CaptureError(
            f"loss= returned a {type(output).__name__}: it must return a tensor with one element"
        )
    if output.numel() != 1:
        what = "loss= returned" if given else "the model returns"
        raise CaptureError(
            f"{what} a tensor of shape {tuple(output.shape)}: need one number to differentiate; pass loss=, for "
            "example lambda output: output.square().mean()"
        )
    return output


class Fake(Protocol):
    """A fake twin of a tensor; ``label`` names it in errors."""

    def __call__(self, tensor: torch.Tensor, label: str = ...) -> torch.Tensor: ...


class StandIn(nn.Module):
    """A LossModule whose parameters and buffers appear once each, under names without dots.

    The exporter takes every registered tensor as one input; a tied weight must therefore be one leaf, and a
    name with dots cannot be registered at the top.
    """

    def __init__(
        self, module: LossModule, signature: Signature, fake: Callable[[torch.Tensor], torch.Tensor]
    ):
        super().__init__()
        object.__setattr__(self, "target_module", module)  # not registered: its tensors are passed in
        self.signature = signature
        self.names: dict[str, str] = {}
        self.rebound: list[str] = []
        self.replaced: list[tuple[str, torch.Tensor]] = []
        for i, (name, parameter) in enumerate(module.named_parameters()):
            self.names[f"p{i}"] = name
            standin = nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
            self.register_parameter(f"p{i}", standin)
        for i, (name, buffer) in enumerate(module.named_buffers()):
            self.names[f"b{i}"] = name
            self.register_buffer(f"b{i}", fake(buffer))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The loss, and the new contents of the buffers in ``rebound``."""
        arguments = self.signature.rebuild(list(tensors))
        state = {name: getattr(self, standin) for standin, name in self.names.items()}
        with unchanged(self.target_module):  # the tracer runs this several times
            with _Registered(self.target_module) as registered:
                loss = torch.func.functional_call(self.target_module, state, arguments, tie_weights=True)
        if not loss.requires_grad:
            raise CaptureError(
                "the loss depends on nothing that requires a gradient: every parameter is frozen or detached"
            )
        given = {id(getattr(self, standin)): standin for standin in self.names}
        self.rebound = [given[id(old)] for old, _ in registered.rebound]
        self.replaced = registered.replaced
        own = [getattr(self, standin) for standin in self.names]
        shared = {private.storage_key(tensor) for tensor in (*own, *tensors, loss)}
        return loss, *(_held_by_nothing_else(new, shared) for _, new in registered.rebound)


def _held_by_nothing_else(tensor: torch.Tensor, shared: set[int]) -> torch.Tensor:
    """The tensor, without history, in a storage that is not in ``shared`` and is put there."""
    tensor = tensor.detach()
    if private.storage_key(tensor) in shared:
        tensor = tensor.clone()
    shared.add(private.storage_key(tensor))
    return tensor


class _Registered:
    """Compares the parameters, buffers and submodules of a module before and after a call of it.

    ``rebound`` has (old, new) of each buffer to which the call assigned another tensor, where an update in place
    would have changed the one it had. What a caller makes of that is the same: the buffer has new contents.
    ``replaced`` has (name, old) of each other tensor attribute to which the call assigned something else.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.rebound: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.replaced: list[tuple[str, torch.Tensor]] = []

    def __enter__(self) -> _Registered:
        before = self.module.register_forward_pre_hook(self._before, prepend=True)
        self._handles = [before, self.module.register_forward_hook(self._after)]
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, _args: Any) -> None:
        self._modules = {m: (dict(m._parameters), dict(m._buffers)) for m in module.modules()}
        self._plain = {m: _plain_tensors(m) for m in self._modules}
        self._storages = {
            id(tensor): private.storage_key(tensor)
            for groups in self._modules.values()
            for tensor in (*groups[0].values(), *groups[1].values())
            if tensor is not None
        }

    def _after(self, module: nn.Module, _args: Any, _output: Any) -> None:
        seen: set[int] = set()
        for path, child in module.named_modules():
            label = _label(_place(path), child)
            parameters, buffers = self._modules.get(child, ({}, {}))
            for name, tensor in (*child._parameters.items(), *child._buffers.items()):
                if tensor is not None and self._storages.get(id(tensor), 0) not in (
                    0,
                    private.storage_key(tensor),
                ):
                    raise CaptureError(
                        f"forward assigns to the .data of {name!r} of {label}: change a parameter between steps, and a "
                        f"buffer in place, as in self.{name}.copy_(...)"
                    )
            now = _plain_tensors(child)
            for name, old in self._plain.get(child, {}).items():
                if now.get(name) is not old:
                    self.replaced.append((f"{name!r} of {label}", old))
            for name, tensor in child._parameters.items():
                if tensor is not parameters.get(name):
                    raise CaptureError(
                        f"forward makes the parameter {name!r} of {label}: run the model once before capturing it"
                    )
            for name, new in child._buffers.items():
                old = buffers.get(name)
                if new is old or old is None or id(old) in seen:
                    continue
                seen.add(id(old))
                if any(new is given for known, _ in self._modules.values() for given in known.values()):
                    raise CaptureError(
                        f"forward assigns a parameter to the buffer {name!r} of {label}: copy it, as in "
                        f"self.{name}.copy_(...)"
                    )
                if new is None or _form(new) != _form(old):
                    raise CaptureError(
                        f"forward assigns to the buffer {name!r} of {label} something of another shape, dtype or "
                        f"device: update it in place, as in self.{name}.copy_(...)"
                    )
                self.rebound.append((old, new))


def _plain_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that are plain attributes of a module."""
    return {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def faker() -> Fake:
    """A function from any tensor to a fake twin; the same tensor always gives the same twin."""
    mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(tensor: torch.Tensor, label: str = "a tensor") -> torch.Tensor:
        if id(tensor) not in twins:
            check_plain(tensor, label)
            device = "cpu" if tensor.device.type == "meta" else tensor.device
            with mode:
                twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            twins[id(tensor)] = (tensor, twin.requires_grad_(tensor.requires_grad))
        return twins[id(tensor)][1]

    return fake


def check_plain(tensor: torch.Tensor, label: str) -> None:
    """Refuse what has no single strided storage."""
    if tensor.layout != torch.strided:
        raise CaptureError(f"{label} is {tensor.layout}: only dense tensors can be planned; call .to_dense()")
    if tensor.is_quantized:
        raise CaptureError(f"{label} is quantized: training needs floating-point tensors; dequantize it")
    known = (torch.Tensor, nn.Parameter, nn.Buffer, private.FakeTensor)
    if type(tensor) not in known and not isinstance(tensor, (nn.Parameter, private.FakeTensor)):
        raise CaptureError(
            f"{label} is a {type(tensor).__name__}: tensor subclasses are not supported; pass a plain tensor"
        )


class _Calls(TorchFunctionMode):
    """Labels every traced node with the outermost torch function that made it, and its module."""

    def __init__(self, path: list[str]):
        super().__init__()
        self.path, self.count = path, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        # The mode is off inside its own handler, so calls within this one get no label of their own.
        self.count += 1
        name = getattr(function, "__name__", "") or str(resolve_name(function))
        with private.annotation((self.path[-1], self.count, name)):
            return function(*args, **(kwargs or {}))


class _Draws:
    """Refuses random numbers that are not torch's: a plan would repeat those of the capture. Puts their states back."""

    def __enter__(self) -> _Draws:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
        self._torch = torch.get_rng_state()
        return self

    def __exit__(self, *_: Any) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

    def check(self, module: str) -> None:
        """``module`` is the path of the one that has just been run."""
        now = np.random.get_state(legacy=False)
        before: Any = self._numpy
        numpys = any(not np.array_equal(now["state"][key], before["state"][key]) for key in ("pos", "key"))
        if numpys or random.getstate() != self._python:
            where = f" in module {module!r}" if module else ""
            raise CaptureError(
                f"the model draws from {'numpy' if numpys else 'Python'}'s random numbers{where}: a plan would repeat "
                "the ones of the capture, and the path they choose, for ever. Multiply by torch's random numbers "
                "instead, or capture with what draws switched off (a probability of 0 for layer drop or stochastic "
                "depth)"
            )


@contextlib.contextmanager
def labelled(module: nn.Module, draws: _Draws) -> Iterator[list[str]]:
    """While active, calls of ``module`` label traced nodes. Yields the stack of module names."""
    path = [""]
    handles = []
    for name, child in module.named_modules():
        label = _place(name)

        def enter(_module: nn.Module, _args: Any, label: str = label) -> None:
            path.append(label)

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            draws.check(path.pop())

        handles.append(child.register_forward_pre_hook(enter, prepend=True))
        handles.append(child.register_forward_hook(leave))
    try:
        with _Calls(path):
            yield path
    finally:
        for handle in handles:
            handle.remove()


def _place(path: str) -> str:
    """A module's path in the model, from that in the LossModule."""
    return "" if path == "model" else path.removeprefix("model.")


def _label(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {path!r}" if path else type(module).__name__


def check_model(model: nn.Module) -> None:
    """Refuse, by name, modules known not to trace or to trace to something else than eager runs."""
    from .apply import PlannedModule

    for name, module in model.named_modules():
        label = _label(name, module)
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise CaptureError(
                f"{label} spreads a model over devices: capture the model itself, its .module, and wrap what "
                "apply() returns in DistributedDataParallel"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(f"{label} is compiled TorchScript: capture the Python module it was made from")
        if isinstance(module, PlannedModule):
            raise CaptureError(
                f"{label} follows a plan already: capture the model itself, its .model, and apply a plan to that"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise CaptureError(
                f"{label} changes its weight in forward (max_norm={module.max_norm}): set max_norm=None and "
                "renormalize the weight after optimizer.step(), under torch.no_grad()"
            )
        for own, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and torch.nn.parameter.is_lazy(tensor):
                raise CaptureError(
                    f"{label} does not know the shape of its {own} yet: run the model once before capturing it"
                )
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise CaptureError(f"{label} makes sparse gradients: set sparse=False")
        momentum = getattr(module, "momentum", 0.1)
        tracks = getattr(module, "track_running_stats", False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and tracks and momentum is None:
            if module.training:
                raise CaptureError(
                    f"{label} has momentum=None: the weight of its running average depends on a count in a "
                    "tensor; give it a momentum such as 0.1"
                )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        check_plain(tensor, f"{name!r}")


def trace(model: nn.Module, inputs: Any, loss: Callable[..., torch.Tensor] | None, targets: Any) -> Traced:
    """The joint graph of a model and its loss, how its inputs map back, the example tensors and their fakes.

    A model that chooses its path by the data (whether a mask masks anything, say) is traced on the path it takes
    under ``torch.compile``, if it has one, with a warning: eager may take another.

    Raises
    ------
    CaptureError
        Naming the op or construct, the module it is in, and what to do.
    """
    check_model(model)
    if isinstance(loss, nn.Module):
        check_model(loss)
    try:
        return _trace(model, inputs, loss, targets)
    except CaptureError as error:
        if not _depends_on_data(error.__cause__):
            raise
        try:
            with private.compiling():
                found = _trace(model, inputs, loss, targets)
        except CaptureError:
            raise error from error.__cause__
        warnings.warn(
            f"{type(model).__name__} chooses its path by data: captured is the path it takes under torch.compile; "
            "eager may take another, whose results can differ in the last bits",
            stacklevel=4,
        )
        return found


def _trace(model: nn.Module, inputs: Any, loss: Callable[..., torch.Tensor] | None, targets: Any) -> Traced:
    module = LossModule(model, loss)
    signature, tensors = Signature.of(inputs, targets)
    fake = faker()
    fakes = [fake(tensor, f"input {i}") for i, tensor in enumerate(tensors)]
    standin = StandIn(module, signature, fake)
    path: list[str] = [""]
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(unchanged(module))
            private.run_uncompiled(module)
            draws = stack.enter_context(_Draws())
            path = stack.enter_context(labelled(module, draws))
            for context in (private.eager_kernels(), private.quiet_fakes(), torch.enable_grad()):
                stack.enter_context(context)
            graph = private.export_joint(standin, tuple(fakes))
            draws.check("")
        private.describe_as_mutations(graph, standin.rebound)
        refill_in_place(graph)
        check_where_made(graph)
        _check_parameters(graph, standin)
        _check_constants(graph, standin)
        drop_unused_statistics(graph)
    except CaptureError:
        raise
    except Exception as error:
        raise _explained(error, path) from error
    return graph, module, standin, signature, tensors, fakes


def _check_parameters(graph_module: torch.fx.GraphModule, standin: StandIn) -> None:
    """Refuse a forward that changes a parameter: its gradient would be that of a tensor which is no more."""
    for kind, target, _ in private.output_descriptors(graph_module):
        if kind == "mutation" and isinstance(getattr(standin, target, None), nn.Parameter):
            name = standin.names[target].removeprefix("model.")
            raise CaptureError(
                f"forward changes the parameter {name!r} in place: change it between steps (after optimizer.step(), "
                "under torch.no_grad()) instead"
            )


def _check_constants(graph_module: torch.fx.GraphModule, standin: StandIn) -> None:
    """Refuse a tensor that forward both reads and replaces, unless it is a buffer: the graph holds the first."""
    constants = {id(getattr(graph_module, n.target)) for n in graph_module.graph.nodes if n.op == "get_attr"}
    for name, old in standin.replaced:
        if id(old) in constants:
            raise CaptureError(
                f"forward reads the tensor {name} and assigns another to it, which a plan would not see: make it a "
                "buffer (register_buffer)"
            )


def constant_names(graph_module: torch.fx.GraphModule, module: LossModule) -> dict[str, str]:
    """Names, in the model, of the tensors the graph holds itself."""
    known = {
        id(tensor): f"{path}.{name}"
        for path, child in module.named_modules()
        for name, tensor in _plain_tensors(child).items()
    }
    targets = {n.target for n in graph_module.graph.nodes if n.op == "get_attr"}
    found = {target: known.get(id(getattr(graph_module, target))) for target in targets}
    return {target: name for target, name in found.items() if name}


def _depends_on_data(error: BaseException | None) -> bool:
    """Whether tracing stopped because a number was read out of a tensor."""
    while error is not None:
        if isinstance(error, private.DataDependentOutputException):
            return True
        error = error.__cause__ or error.__context__
    return False


def _explained(error: Exception, path: list[str]) -> CaptureError:
    where = f" in module {path[-1]!r}" if path[-1] else ""
    op = getattr(error, "func", None)
    chain: BaseException | None = error
    while chain is not None and op is None:
        op = getattr(chain, "func", None)
        chain = chain.__cause__ or chain.__context__
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    if isinstance(op, torch._ops.OpOverload):
        if op.name() in ("aten::_local_scalar_dense", "aten::item"):
            return CaptureError(
                f"the model reads a number out of a tensor ({op}){where}: control flow and shapes that depend on "
                "data cannot be planned ahead; use tensor operations such as torch.where, or Python numbers (of "
                "library options: validate_args=False for torch.distributions, no layer drop in transformers)"
            )
        return CaptureError(
            f"{op}{where} makes a tensor whose shape depends on data: shapes must be known ahead; replace it by "
            "an operation of fixed shape (for a boolean mask: multiply by it, or torch.where)"
        )
    said = f"{type(error).__name__}: {first}"
    advice = next((then for words, then in _ADVICE if words in str(error)), "")
    return CaptureError(f"tracing stopped{where}: {f'{advice} (torch: {said[:200]})' if advice else said}")


_IN_PLACE = (
    "the model changes in place a tensor that is neither a parameter, a buffer nor an input: make it a buffer "
    "(register_buffer)"
)

# (words in an error of torch's, what to do)
_ADVICE = (
    (
        "numpy() is not supported",
        "the model takes a tensor to numpy: values that depend on data cannot be planned ahead; use torch operations",
    ),
    (
        "use_reentrant=True",
        "reentrant checkpoints cannot be captured: pass use_reentrant=False to torch.utils.checkpoint, or leave the "
        "checkpoint out, since a plan takes its place",
    ),
    (
        "expected to have an entirely functional graph",
        _IN_PLACE,
    ),
    (
        "Cannot access data pointer of Tensor",
        "a kernel outside torch, or a function made by torch.compile, reads the tensors themselves: use the plain "
        "function, or make it a custom op (torch.library)",
    ),
    ("FunctionalTensor on its own", "if the model calls functions made by torch.compile, use the plain ones"),
    ("mutating a non-functional tensor", _IN_PLACE),
)


def autocast_state(device: torch.device) -> str:
    """ "" if autocast is off on this device, else its dtype."""
    if not torch.is_autocast_enabled(device.type):
        return ""
    return str(torch.get_autocast_dtype(device.type))
