"""GoogLeNet (Szegedy et al., arXiv 1409.4842), with local response normalization and both auxiliary heads."""

from __future__ import annotations

import torch
from torch import nn

# Channels of each inception module: 1x1; 1x1 and 3x3; 1x1 and 5x5; 1x1 after pooling (table 1 of the paper).
# None is pooling between modules.
_MODULES = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
# Auxiliary heads read the outputs of these rows (modules 4a and 4d).
_HEADS_AFTER = (3, 6)


class Inception(nn.Module):
    """Four branches side by side; one ReLU after their concatenation, as in the published graph."""

    def __init__(self, channels: int, one: int, to3: int, three: int, to5: int, five: int, pooled: int):
        super().__init__()
        self.one = nn.Conv2d(channels, one, 1)
        self.three = nn.Sequential(
            nn.Conv2d(channels, to3, 1), nn.ReLU(), nn.Conv2d(to3, three, 3, padding=1)
        )
        self.five = nn.Sequential(nn.Conv2d(channels, to5, 1), nn.ReLU(), nn.Conv2d(to5, five, 5, padding=2))
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), nn.Conv2d(channels, pooled, 1)
        )
        self.relu = nn.ReLU()
        self.channels = one + three + five + pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = [self.one(x), self.three(x), self.five(x), self.pooled(x)]
        return self.relu(torch.cat(branches, dim=1))


def auxiliary_head(channels: int, side: int, scale: float, num_classes: int) -> nn.Sequential:
    """Classifies from the middle of the network. ``side`` is that of its input."""
    kernel = min(5, side)
    grid = (side - kernel) // 3 + 1
    inner, hidden = round(128 * scale), round(1024 * scale)
    return nn.Sequential(
        nn.AvgPool2d(kernel, stride=3),
        nn.Conv2d(channels, inner, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(inner * grid * grid, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )


class GoogLeNet(nn.Module):
    """Nine inception modules.

    Parameters
    ----------
    num_classes : int
    image : int, side of the (square) input images
    width : int, channels of the first convolution; the others are scaled alike
    dropout : float
    """

    def __init__(
        self,
        num_classes: int = 1000,
        image: int = 224,
        width: int = 64,
        dropout: float = 0.4,
        in_channels: int = 3,
    ):
        super().__init__()
        scale = width / 64
        # Halved by the first convolution and by two poolings, then by one before each row of None.
        side = image
        for _ in range(3):
            side = -(-side // 2)
        second = round(192 * scale)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 7, stride=2, padding=3),
            nn.ReLU(),
            pool(),
            response_norm(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, second, 3, padding=1),
            nn.ReLU(),
            response_norm(),
            pool(),
        )
        rows: list[nn.Module] = []
        heads: list[nn.Module] = []
        channels = second
        for i, row in enumerate(_MODULES):
            if row is None:
                rows.append(pool())
                side = -(-side // 2)
                continue
            module = Inception(channels, *(round(c * scale) for c in row))
            channels = module.channels
            rows.append(module)
            if i in _HEADS_AFTER:
                heads.append(auxiliary_head(channels, side, scale, num_classes))
        self.modules_and_pools = nn.ModuleList(rows)
        self.heads = nn.ModuleList(heads)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout), nn.Flatten(), nn.Linear(channels, num_classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Logits of shape (batch, num_classes): two auxiliary ones and the prediction; in eval mode just that."""
        h = self.stem(x)
        auxiliary: list[torch.Tensor] = []
        for i, module in enumerate(self.modules_and_pools):
            h = module(h)
            if self.training and i in _HEADS_AFTER:
                auxiliary.append(self.heads[len(auxiliary)](h))
        logits = self.classifier(h)
        return (*auxiliary, logits) if auxiliary else logits


def pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def response_norm() -> nn.LocalResponseNorm:
    """n=5, alpha=2e-5 per channel (torch divides its alpha by n), k=1."""
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)


def googlenet(num_classes: int = 1000, **options) -> GoogLeNet:
    """GoogLeNet, 134 nodes with its three losses, equal to the published graph."""
    return GoogLeNet(num_classes, **options)
