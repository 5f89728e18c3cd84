"""U-Net (Ronneberger et al., arXiv 1505.04597), with unpadded convolutions and cropped skip connections."""

from __future__ import annotations

import torch
from torch import nn

from .layers import Crop

_LEVELS = 4


def double_convolution(channels: int, out: int) -> nn.Sequential:
    """Two unpadded 3x3 convolutions; together they take 2 pixels off each edge of the image."""
    return nn.Sequential(nn.Conv2d(channels, out, 3), nn.ReLU(), nn.Conv2d(out, out, 3), nn.ReLU())


class UNet(nn.Module):
    """Four levels down, four up. Images of side ``image`` give maps of side :func:`output_side`.

    Parameters
    ----------
    num_classes : int
    width : int, channels at full resolution; they double with each level
    dropout : float, at the two lowest levels
    """

    def __init__(self, num_classes: int = 2, width: int = 64, dropout: float = 0.5, in_channels: int = 1):
        super().__init__()
        wide = [width * 2**level for level in range(_LEVELS + 1)]
        self.down = nn.ModuleList(
            double_convolution(in_channels if level == 0 else wide[level - 1], wide[level])
            for level in range(_LEVELS + 1)
        )
        self.dropout = nn.Dropout(dropout)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        # The last up-convolution keeps its 2 * width channels, as in the published graph (and not in the paper).
        grown = [max(wide[level], 2 * width) for level in range(_LEVELS)]
        self.grow = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(wide[level + 1], grown[level], 2, stride=2), nn.ReLU())
            for level in range(_LEVELS)
        )
        self.crop = Crop()
        self.up = nn.ModuleList(
            double_convolution(wide[level] + grown[level], wide[level]) for level in range(_LEVELS)
        )
        self.score = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, num_classes, side, side) from images of shape (batch, 1, image, image)."""
        skips = []
        h = x
        for level, convolutions in enumerate(self.down):
            h = convolutions(h)
            if level >= _LEVELS - 1:
                h = self.dropout(h)
            if level < _LEVELS:
                skips.append(h)
                h = self.pool(h)
        for level in reversed(range(_LEVELS)):
            h = self.grow[level](h)
            skip = self.crop(skips[level], h.shape[2], h.shape[3])
            h = self.up[level](torch.cat([skip, h], dim=1))
        return self.score(h)


def output_side(image: int) -> int:
    """Side of the output for images of side ``image``; 572 gives 388.

    Raises
    ------
    ValueError
        If the image is too small for unpadded convolutions.
    """
    sides = []
    side = image - 4
    for _ in range(_LEVELS):
        sides.append(side)
        side = -(-side // 2) - 4
    for skip in reversed(sides):
        side = 2 * side
        if side < 6 or side > skip:
            raise ValueError(f"image must be at least 173 for a U-Net without padding, got {image}")
        side -= 4
    return side


def unet(num_classes: int = 2, **options) -> UNet:
    """U-Net, 60 nodes with its loss, equal to the published graph."""
    return UNet(num_classes, **options)
