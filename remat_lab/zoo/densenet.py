"""DenseNet-161 (Huang et al., arXiv 1608.06993): every layer reads all earlier outputs of its block."""

from __future__ import annotations

import torch
from torch import nn

from .resnet import batch_norm


class DenseLayer(nn.Module):
    """Normalize, ReLU and convolve twice (1x1, then 3x3), and put the result beside the input."""

    def __init__(self, channels: int, growth: int):
        super().__init__()
        self.norm1 = batch_norm(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = batch_norm(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(self.relu(self.norm1(x)))
        h = self.conv2(self.relu(self.norm2(h)))
        # One concatenation after each layer, as in the published graph: memory grows quadratically in a block.
        return torch.cat([x, h], dim=1)


def transition(channels: int) -> nn.Sequential:
    """Between blocks: half the channels, half the resolution."""
    return nn.Sequential(
        batch_norm(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels // 2, 1, bias=False),
        nn.AvgPool2d(2),
    )


class DenseNet(nn.Module):
    """Four dense blocks with transitions between them.

    Parameters
    ----------
    num_classes : int
    width : int, channels of the first convolution
    growth : int, channels each layer adds; default half of ``width`` (48, as published)
    blocks : sequence of int, layers per block
    """

    def __init__(
        self,
        num_classes: int = 1000,
        width: int = 96,
        growth: int | None = None,
        blocks: tuple[int, ...] = (6, 12, 36, 24),
        in_channels: int = 3,
    ):
        super().__init__()
        growth = width // 2 if growth is None else growth
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False),
            batch_norm(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        rows: list[nn.Module] = []
        channels = width
        for i, layers in enumerate(blocks):
            if i:
                rows.append(transition(channels))
                channels //= 2
            for _ in range(layers):
                rows.append(DenseLayer(channels, growth))
                channels += growth
        self.blocks = nn.Sequential(*rows)
        self.head = nn.Sequential(
            batch_norm(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, num_classes) from images of shape (batch, 3, height, width)."""
        return self.head(self.blocks(self.stem(x)))


def densenet161(num_classes: int = 1000, **options) -> DenseNet:
    """DenseNet-161, 568 nodes with its loss, equal to the published graph."""
    return DenseNet(num_classes, **options)
