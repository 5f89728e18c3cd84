"""ResNets (He et al., arXiv 1512.03385) of bottleneck blocks."""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, each with batch normalization, added to the block's input.

    Parameters
    ----------
    channels, inner, out : int, channels of the input, of the 3x3 convolution and of the output
    stride : int
    dilation : int, of the 3x3 convolution
    stride_on_3x3 : bool
        The original network has the stride in the first 1x1 convolution (as here by default); later
        variants, and PSPNet, move it to the 3x3.
    """

    def __init__(
        self,
        channels: int,
        inner: int,
        out: int,
        stride: int = 1,
        dilation: int = 1,
        stride_on_3x3: bool = False,
    ):
        super().__init__()
        first, middle = (1, stride) if stride_on_3x3 else (stride, 1)
        self.conv1 = nn.Conv2d(channels, inner, 1, stride=first, bias=False)
        self.norm1 = batch_norm(inner)
        self.conv2 = nn.Conv2d(
            inner, inner, 3, stride=middle, padding=dilation, dilation=dilation, bias=False
        )
        self.norm2 = batch_norm(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.norm3 = batch_norm(out)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), batch_norm(out))
            if stride != 1 or channels != out
            else None
        )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.relu(self.norm1(self.conv1(x)))
        h = self.relu(self.norm2(self.conv2(h)))
        h = self.norm3(self.conv3(h))
        return self.relu(h + (x if self.shortcut is None else self.shortcut(x)))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch normalization with the constants of the published graphs."""
    return nn.BatchNorm2d(channels, eps=2e-5, momentum=0.1)


def stage(
    blocks: int,
    channels: int,
    inner: int,
    stride: int = 1,
    dilation: int = 1,
    stride_on_3x3: bool = False,
) -> nn.Sequential:
    """Bottlenecks in a row; the first one changes the resolution and the channels (to 4 times ``inner``)."""
    rows = []
    for i in range(blocks):
        rows.append(Bottleneck(channels, inner, 4 * inner, stride if i == 0 else 1, dilation, stride_on_3x3))
        channels = 4 * inner
    return nn.Sequential(*rows)


class ResNet(nn.Module):
    """A 7x7 convolution, pooling, four stages of bottlenecks, global pooling, a linear layer.

    Parameters
    ----------
    blocks : sequence of int, blocks per stage
    num_classes : int
    width : int, channels of the first convolution; stage s has 4 * width * 2^s
    """

    def __init__(
        self,
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        num_classes: int = 1000,
        width: int = 64,
        in_channels: int = 3,
    ):
        super().__init__()
        # The bias is redundant before a normalization, but the published graphs have it.
        self.conv = nn.Conv2d(in_channels, width, 7, stride=2, padding=3)
        self.norm = batch_norm(width)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        stages, channels = [], width
        for i, count in enumerate(blocks):
            stages.append(stage(count, channels, width * 2**i, stride=1 if i == 0 else 2))
            channels = 4 * width * 2**i
        self.stages = nn.Sequential(*stages)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, num_classes) from images of shape (batch, 3, height, width)."""
        h = self.pool(self.relu(self.norm(self.conv(x))))
        return self.linear(self.flatten(self.average(self.stages(h))))


def resnet50(num_classes: int = 1000, **options) -> ResNet:
    """ResNet-50. Options are :class:`ResNet`'s (``width=16`` for a laptop).

    With its loss, 176 nodes: equal to the published graph, node for node.
    """
    return ResNet((3, 4, 6, 3), num_classes, **options)


def resnet152(num_classes: int = 1000, **options) -> ResNet:
    """ResNet-152, 516 nodes with its loss, equal to the published graph."""
    return ResNet((3, 8, 36, 3), num_classes, **options)
