"""The Python state of a model, to be put back after its forward has run on fake tensors.

Whatever a forward keeps on its way (an activation for inspection, a table it makes once, a counter) would
otherwise stay in the model as a fake tensor, and change what the next run does.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import _torch_private as private

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_SEQUENCES = (list, collections.deque)
_OPAQUE = (
    torch.Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
_DEPTH = 5  # of containers and plain objects below a module; modules below modules are followed to any depth


class Snapshot:
    """What the attributes of modules, and the containers and plain objects in them, hold now."""

    def __init__(self, *roots: Any):
        self._kept: dict[int, tuple[Any, list[Any]]] = {}
        self._classes: dict[type, dict[str, Any]] = {}
        self._caches: dict[int, tuple[Any, int]] = {}
        self._globals: dict[int, tuple[dict[Any, Any], dict[Any, Any]]] = {}
        waiting = [(root, 0) for root in roots]
        while waiting:
            found, depth = waiting.pop()
            if isinstance(found, nn.Module):
                depth = 0
                self._keep_class(type(found), waiting)
            container = _container(found)
            if container is None or id(container) in self._kept or depth > _DEPTH:
                continue
            items = list(container.items() if isinstance(container, _MAPPINGS) else container)
            self._kept[id(container)] = container, items
            children = [v for _, v in items] if isinstance(container, _MAPPINGS) else items
            waiting.extend((child, depth + 1) for child in children)

    def restore(self) -> None:
        """Put everything back that has changed since; nothing else is touched."""
        for container, before in self._kept.values():
            if isinstance(container, _MAPPINGS):
                if not _same([x for kv in container.items() for x in kv], [x for kv in before for x in kv]):
                    container.clear()
                    container.update(before)
            elif not _same(list(container), before):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)
        for owner, attributes in self._classes.items():
            for name, value in vars(owner).copy().items():
                if name.startswith("__"):
                    continue
                if name not in attributes:
                    delattr(owner, name)
                elif value is not attributes[name]:
                    setattr(owner, name, attributes[name])
        for names, known in self._globals.values():
            for name in [name for name, value in names.items() if _traced(value)]:
                if name in known:
                    names[name] = known[name]
                else:
                    del names[name]
        for cached, misses in self._caches.values():
            if cached.cache_info().misses != misses:
                cached.cache_clear()

    def _keep_class(self, owner: type, waiting: list[tuple[Any, int]]) -> None:
        """Class attributes; in the class's file, cached functions, and names and tables that may get traced tensors."""
        for part in owner.__mro__:
            if part in self._classes or part.__module__.partition(".")[0] in (
                "torch",
                "builtins",
                "typing",
                "abc",
            ):
                continue
            self._classes[part] = dict(vars(part))
            waiting.extend(
                (value, 1) for value in vars(part).values() if type(value) in (*_MAPPINGS, *_SEQUENCES)
            )
            file = sys.modules.get(part.__module__)
            if (
                file is not None and id(vars(file)) not in self._globals
            ):  # much else may change here: see restore()
                found = [value for value in vars(file).values() if type(value) in _MAPPINGS]
                self._globals.update({id(names): (names, dict(names)) for names in (vars(file), *found)})
            for value in (*vars(part).values(), *(vars(file).values() if file else ())):
                if isinstance(value, functools._lru_cache_wrapper):
                    self._caches[id(value)] = value, value.cache_info().misses


@contextlib.contextmanager
def unchanged(*roots: Any) -> Iterator[None]:
    """Put the state of these modules back at the end, whatever happens."""
    snapshot = Snapshot(*roots)
    try:
        yield
    finally:
        snapshot.restore()


def _container(found: Any) -> Any:
    """What holds the state of an object: itself if it is a container, its attributes, or nothing."""
    if type(found) in (*_MAPPINGS, *_SEQUENCES, set):
        return found
    if isinstance(found, nn.Module):
        return vars(found)
    if isinstance(found, _OPAQUE) or type(found).__module__.partition(".")[0] in (
        "torch",
        "builtins",
        "logging",
    ):
        return None
    attributes = getattr(found, "__dict__", None)
    return attributes if type(attributes) is dict else None


def _traced(value: Any) -> bool:
    return isinstance(value, (private.FakeTensor, private.FunctionalTensor))


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before))
