"""PSPNet (Zhao et al., arXiv 1612.01105): a dilated ResNet-101 and pooling at four scales."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .resnet import batch_norm, stage

_GRIDS = (6, 3, 2, 1)


class PooledBatchNorm(nn.BatchNorm2d):
    """Batch normalization that accepts one value per channel, which torch refuses in training.

    The coarsest pooling leaves one value per channel and image, and the published graph has one image. The
    result is then the bias; a variance of one value says nothing, so the running statistics keep still.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.numel() == x.shape[1]:
            return torch.batch_norm(
                x, self.weight, self.bias, None, None, True, 0.0, self.eps, torch.backends.cudnn.enabled
            )
        return super().forward(x)


def convolution(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, normalization, ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride=stride, padding=kernel // 2, bias=False),
        batch_norm(out),
        nn.ReLU(),
    )


class PyramidPooling(nn.Module):
    """Average over grids of four sizes, convolve, resize, and put the results beside the input."""

    def __init__(self, channels: int, side: int):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.AvgPool2d(max(side // grid, 1)),
                nn.Conv2d(channels, channels // 4, 1, bias=False),
                PooledBatchNorm(channels // 4, eps=2e-5, momentum=0.1),
                nn.ReLU(),
            )
            for grid in _GRIDS
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *(resized(branch(x), x) for branch in self.branches)], dim=1)


def resized(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bilinear, to the height and width of ``like``."""
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


class PSPNet(nn.Module):
    """Segmentation network with an auxiliary head after the third stage.

    Parameters
    ----------
    num_classes : int
    image : int, side of the (square) input images; sets the pooling windows
    width : int, channels of the first convolution
    blocks : sequence of int, residual blocks per stage
    dropout : float
    """

    def __init__(
        self,
        num_classes: int = 17,
        image: int = 713,
        width: int = 64,
        blocks: tuple[int, int, int, int] = (3, 4, 23, 3),
        dropout: float = 0.1,
        in_channels: int = 3,
    ):
        super().__init__()
        self.stem = nn.Sequential(
            convolution(in_channels, width, stride=2),
            convolution(width, width),
            convolution(width, 2 * width),
            nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        )
        self.stage1 = stage(blocks[0], 2 * width, width, stride_on_3x3=True)
        self.stage2 = stage(blocks[1], 4 * width, 2 * width, stride=2, stride_on_3x3=True)
        # From here on dilation takes the place of strides: the maps stay at an eighth of the image.
        self.stage3 = stage(blocks[2], 8 * width, 4 * width, dilation=2)
        self.stage4 = stage(blocks[3], 16 * width, 8 * width, dilation=4)
        self.auxiliary = nn.Sequential(
            convolution(16 * width, 8 * width),
            nn.Dropout(dropout),
            nn.Conv2d(8 * width, num_classes, 3, padding=1),
        )
        self.pyramid = PyramidPooling(32 * width, image // 8)
        self.head = nn.Sequential(
            convolution(64 * width, 8 * width), nn.Dropout(dropout), nn.Conv2d(8 * width, num_classes, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Logits of shape (batch, num_classes, image, image): auxiliary and prediction; in eval mode just that."""
        middle = self.stage3(self.stage2(self.stage1(self.stem(x))))
        logits = resized(self.head(self.pyramid(self.stage4(middle))), x)
        if not self.training:
            return logits
        return resized(self.auxiliary(middle), x), logits


def pspnet(num_classes: int = 17, **options) -> PSPNet:
    """PSPNet, 385 nodes with its two losses (auxiliary weight 0.4), equal to the published graph."""
    return PSPNet(num_classes, **options)
