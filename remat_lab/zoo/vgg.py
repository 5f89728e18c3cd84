"""VGG-19 (Simonyan and Zisserman, arXiv 1409.1556, configuration E)."""

from __future__ import annotations

import torch
from torch import nn

# Convolutions per stage; each stage ends in pooling. The channels double up to eight times the first's.
_STAGES = (2, 2, 4, 4, 4)


class VGG(nn.Module):
    """3x3 convolutions with ReLU and max pooling, then three linear layers with dropout.

    Parameters
    ----------
    num_classes : int
    image : int, side of the (square) input images
    width : int, channels of the first stage
    hidden : int, units of the two hidden linear layers; default 64 times ``width`` (4096, as published)
    dropout : float
    stages : sequence of int, convolutions per stage
    """

    def __init__(
        self,
        num_classes: int = 1000,
        image: int = 224,
        width: int = 64,
        hidden: int | None = None,
        dropout: float = 0.5,
        stages: tuple[int, ...] = _STAGES,
        in_channels: int = 3,
    ):
        super().__init__()
        hidden = 64 * width if hidden is None else hidden
        channels, side = in_channels, image
        features: list[nn.Module] = []
        for stage, convolutions in enumerate(stages):
            for _ in range(convolutions):
                features.append(nn.Conv2d(channels, width * min(2**stage, 8), 3, padding=1))
                features.append(nn.ReLU())
                channels = width * min(2**stage, 8)
            features.append(nn.MaxPool2d(2, ceil_mode=True))
            side = -(-side // 2)
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side * side, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, num_classes) from images of shape (batch, 3, image, image)."""
        return self.classifier(self.features(x))


def vgg19(num_classes: int = 1000, **options) -> VGG:
    """VGG-19: 16 convolutions and 3 linear layers. Options are :class:`VGG`'s.

    With its loss, 46 nodes: equal to the published graph, node for node.
    """
    return VGG(num_classes, **options)
