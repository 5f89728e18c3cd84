"""Benchmark networks in torch, and readers of graph files.

``build(name)`` gives a network, inputs and loss; ``names()`` lists the names; ``load_graph(path)`` reads a
graph file. Importing this package does not import torch: it comes with the first network that is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .files import load_graph

if TYPE_CHECKING:
    from .densenet import densenet161
    from .encoder_decoder import unet
    from .inception import googlenet
    from .networks import Step, build, names
    from .pyramid import pspnet
    from .resnet import resnet50, resnet152
    from .sequences import gpt, lstm
    from .vgg import vgg19

#: Names that load on first use: name -> module.
_LAZY = {
    "build": "networks",
    "names": "networks",
    "Step": "networks",
    "vgg19": "vgg",
    "resnet50": "resnet",
    "resnet152": "resnet",
    "densenet161": "densenet",
    "googlenet": "inception",
    "unet": "encoder_decoder",
    "pspnet": "pyramid",
    "gpt": "sequences",
    "lstm": "sequences",
}

__all__ = [
    "load_graph",
    "build",
    "names",
    "Step",
    "vgg19",
    "resnet50",
    "resnet152",
    "densenet161",
    "googlenet",
    "unet",
    "pspnet",
    "gpt",
    "lstm",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
