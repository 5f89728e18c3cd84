"""Layers and losses that several networks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


class Crop(nn.Module):
    """Cut the middle out of feature maps.

    By negative padding, which copies: in the published graphs a crop is a tensor of its own, whereas a slice
    in torch would be a view, without memory and hence no node of a plan.
    """

    def forward(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        bottom, right = x.shape[2] - height - top, x.shape[3] - width - left
        return F.pad(x, (-left, -right, -top, -bottom))


class CrossEntropy(nn.Module):
    """Mean cross-entropy of a network's output with fixed labels.

    Labels are a buffer, so that a captured step treats them as the resident data they are.

    Parameters
    ----------
    labels : int64 tensor, shape (batch, ...)
    weights : sequence of float
        For networks with auxiliary outputs: one weight per output, in the order the network returns them.
        A weight of 1 multiplies nothing.
    """

    labels: torch.Tensor

    def __init__(self, labels: torch.Tensor, weights: Sequence[float] = (1.0,)):
        super().__init__()
        self.register_buffer("labels", labels)
        self.weights = tuple(weights)

    def forward(self, output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
        outputs = (output,) if isinstance(output, torch.Tensor) else output
        # In evaluation a network leaves its auxiliary outputs out; the last is always the prediction.
        losses = [
            self._one(one, weight) for one, weight in zip(outputs, self.weights[-len(outputs) :], strict=True)
        ]
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _one(self, output: torch.Tensor, weight: float) -> torch.Tensor:
        loss = F.cross_entropy(output, self.labels)
        return loss if weight == 1 else weight * loss


class TokenCrossEntropy(CrossEntropy):
    """Mean cross-entropy over all tokens of logits of shape (batch, length, vocabulary)."""

    def _one(self, output: torch.Tensor, weight: float) -> torch.Tensor:
        loss = F.cross_entropy(output.flatten(0, 1), self.labels.flatten())
        return loss if weight == 1 else weight * loss
