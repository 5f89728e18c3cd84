"""build(): a benchmark network with example inputs and its loss, by name.

The seven networks of Kusumoto et al. (arXiv 1905.11722) have the batch and image size of the graphs published
with the paper as their defaults. Captured so, at layer granularity, they compare with those graphs thus:

===========  =====  =====  =====  ==========================  =======================================
name         batch  image  nodes  bytes, edges, parameters    total time, convolution 10, others 1
===========  =====  =====  =====  ==========================  =======================================
vgg19           32    224     46  equal                       equal
resnet50        32    224    176  equal                       equal
resnet152       32    224    516  equal                       equal
densenet161     32    224    568  equal                       equal
googlenet       32    224    134  equal                       equal
unet             8    572     60  equal                       267 for 231
pspnet           1    713    385  equal                       equal
===========  =====  =====  =====  ==========================  =======================================

The one difference: U-Net's four transposed convolutions count as convolutions here. In the published graphs
they do not, since the name of their function does not start with "Conv".

What it takes to be equal, since those graphs were captured from Chainer:

* Max pooling covers the whole image (``ceil_mode``), except in DenseNet-161.
* A reshape is a node of the size of its input, although it makes a view: capture counts it alike, and plans
  treat it as free to make.
* A crop (U-Net) is a node, too; here it copies (:class:`remat_lab.zoo.layers.Crop`).
* ResNet-50 and -152 have the stride of a block in its first 1x1 convolution, and a bias in the first layer.
* GoogLeNet has a ReLU after each concatenation in place of one per branch, and adds its three losses unweighted.
* U-Net's last up-convolution keeps its number of channels.
* PSPNet normalizes one value per channel when the batch is one image, which torch refuses
  (:class:`remat_lab.zoo.pyramid.PooledBatchNorm`).
* Labels are int64, which torch wants, where the graphs have int32. Labels are resident, not nodes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from . import huggingface, sequences
from .densenet import densenet161
from .encoder_decoder import output_side, unet
from .inception import googlenet
from .layers import CrossEntropy
from .pyramid import pspnet
from .resnet import resnet50, resnet152
from .vgg import vgg19


class Step(NamedTuple):
    """One training step: ``loss(model(*inputs))``.

    ``inputs`` is a tuple of tensors, or a dict of keyword arguments; ``loss`` is None where the model returns
    its loss itself. ``remat_lab.capture(*step)`` captures it.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...] | dict[str, torch.Tensor]
    loss: nn.Module | None


@dataclass(frozen=True)
class _Recipe:
    """``make(batch, **sizes and options)`` gives a Step's three parts."""

    make: Callable[..., tuple[Any, Any, Any]]
    batch: int
    sizes: dict[str, int]


def names() -> list[str]:
    """The names :func:`build` knows."""
    return list(_RECIPES)


def build(
    name: str,
    *,
    batch: int | None = None,
    image: int | None = None,
    length: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    **options: Any,
) -> Step:
    """A network in training mode, random inputs and a loss.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    batch : int, optional
        Default: that of the published graphs (32; U-Net 8, PSPNet 1), 4 for sequences.
    image : int, optional
        Side of the square images. Default: that of the published graphs (224; U-Net 572, PSPNet 713).
    length : int, optional
        Tokens per sequence, for networks that read sequences (default 128).
    device : optional
        "meta" makes a network of any size without allocating it, enough to capture and plan it.
    seed : int
        Of weights, inputs and labels. The global random state is left as it was.
    **options
        The network's own: ``num_classes``, ``width`` (channels of the first layer; all others scale alike),
        and what else its class takes.

    Raises
    ------
    ValueError
        For an unknown name (the message lists the closest) or a size the network cannot have.
    TypeError
        For an option the network does not take.

    >>> model, inputs, loss = build("resnet50", batch=2, image=64, width=8)
    >>> loss(model(*inputs)).shape
    torch.Size([])
    """
    if name not in _RECIPES:
        close = difflib.get_close_matches(str(name), names(), n=3, cutoff=0.4)
        raise ValueError(f"there is no network {name!r}. Closest: {', '.join(close or names())}")
    recipe = _RECIPES[name]
    sizes = {"batch": recipe.batch, **recipe.sizes}
    for key, size in (("batch", batch), ("image", image), ("length", length)):
        if size is None:
            continue
        if key not in sizes:
            raise TypeError(f"{name} takes no {key}; its sizes are {', '.join(sizes)}")
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{key} must be a positive int, got {size!r}")
        sizes[key] = size
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        with torch.device(device if device is not None else torch.get_default_device()):
            model, inputs, loss = recipe.make(**sizes, **options)
    return Step(model.train(), inputs, loss)


def _classifier(
    network: Callable[..., nn.Module], *, knows_image: bool = False, weights: tuple[float, ...] = (1.0,)
) -> Callable[..., tuple[Any, Any, Any]]:
    """A maker for image classifiers. Some need to know the image's size when they are made."""

    def make(batch: int, image: int, num_classes: int = 1000, in_channels: int = 3, **options: Any):
        if knows_image:
            options["image"] = image
        model = network(num_classes, in_channels=in_channels, **options)
        labels = torch.randint(num_classes, (batch,))
        return model, (torch.randn(batch, in_channels, image, image),), CrossEntropy(labels, weights)

    return make


def _unet(batch: int, image: int, num_classes: int = 2, in_channels: int = 1, **options: Any):
    side = output_side(image)
    model = unet(num_classes, in_channels=in_channels, **options)
    labels = torch.randint(num_classes, (batch, side, side))
    return model, (torch.randn(batch, in_channels, image, image),), CrossEntropy(labels)


def _pspnet(batch: int, image: int, num_classes: int = 17, in_channels: int = 3, **options: Any):
    model = pspnet(num_classes, image=image, in_channels=in_channels, **options)
    labels = torch.randint(num_classes, (batch, image, image))
    loss = CrossEntropy(labels, weights=(0.4, 1.0))
    return model, (torch.randn(batch, in_channels, image, image),), loss


_RECIPES = {
    "vgg19": _Recipe(_classifier(vgg19, knows_image=True), 32, {"image": 224}),
    "resnet50": _Recipe(_classifier(resnet50), 32, {"image": 224}),
    "resnet152": _Recipe(_classifier(resnet152), 32, {"image": 224}),
    "densenet161": _Recipe(_classifier(densenet161), 32, {"image": 224}),
    "googlenet": _Recipe(
        _classifier(googlenet, knows_image=True, weights=(1.0, 1.0, 1.0)), 32, {"image": 224}
    ),
    "unet": _Recipe(_unet, 8, {"image": 572}),
    "pspnet": _Recipe(_pspnet, 1, {"image": 713}),
    "gpt": _Recipe(sequences.gpt_step, 4, {"length": 128}),
    "lstm": _Recipe(sequences.lstm_step, 4, {"length": 128}),
    "gpt2-small-random": _Recipe(huggingface.gpt2, 4, {"length": 128}),
    "bert-base-random": _Recipe(huggingface.bert, 4, {"length": 128}),
    "hf-resnet50-random": _Recipe(huggingface.resnet50, 4, {"image": 224}),
}
