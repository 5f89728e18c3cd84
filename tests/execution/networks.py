"""Small networks, one for each kind of op that once went wrong somewhere.

Each returns (model, inputs, loss, targets).
"""

import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(64, 8)), torch.randn(128, 64), F.cross_entropy, labels(128, 8)


def labels(n, classes):
    return torch.randint(0, classes, (n,))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        h += self.short(x)
        return self.relu(h)


def conv():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        Residual(16, 16),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return net, torch.randn(8, 3, 32, 32), F.cross_entropy, labels(8, 10)


def dropout():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 128),
        nn.RReLU(),
        nn.AlphaDropout(0.1),
        nn.Linear(128, 10),
    )
    return net, torch.randn(16, 3, 16, 16), F.cross_entropy, labels(16, 10)


class Block(nn.Module):
    def __init__(self, width, heads, p):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.p = heads, p

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        x = x + self.project(h.transpose(1, 2).reshape(batch, length, width))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.p)


class Gpt(nn.Module):
    """Token embedding tied to the head, positions, blocks."""

    def __init__(self, vocabulary=64, width=32, heads=4, depth=3, length=32, p=0.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, p) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def gpt(p=0.0):
    tokens = torch.randint(0, 64, (8, 33))
    return Gpt(p=p), {"tokens": tokens[:, :-1].clone(), "targets": tokens[:, 1:].clone()}, None, ()


def gpt_dropout():
    return gpt(0.1)


class Recurrent(nn.Module):
    def __init__(self, kind, p):
        super().__init__()
        self.rnn = kind(16, 32, 2, batch_first=True, dropout=p)
        self.drop = nn.Dropout(p)  # of a transposed view: its mask follows the strides
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.drop(self.rnn(x)[0]))


def lstm():
    return Recurrent(nn.LSTM, 0.2), torch.randn(8, 24, 16), lambda y: y.square().mean(), ()


def gru():
    return Recurrent(nn.GRU, 0.0), torch.randn(8, 8, 16), lambda y: y.square().mean(), ()


class CellLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 32)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h).square().mean()


def cells():
    return CellLoop(), torch.randn(8, 12, 16), None, ()


class Up(nn.Module):
    """A small U-Net: upsampling, concatenation, transposed convolution."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.mix, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = F.leaky_relu(self.down1(x), 0.1, inplace=True)
        b = F.silu(self.down2(F.max_pool2d(a, 2)))
        b = F.interpolate(F.avg_pool2d(b, 2), scale_factor=2, mode="bilinear", align_corners=False)
        mixed = F.relu(self.mix(torch.cat([a, self.up(b)], 1)))
        return self.head(F.interpolate(mixed, scale_factor=2))


def unet():
    return Up(), torch.randn(4, 3, 32, 32), F.cross_entropy, torch.randint(0, 2, (4, 64, 64))


NETWORKS = {
    function.__name__: function for function in (mlp, conv, dropout, gpt, gpt_dropout, lstm, gru, cells, unet)
}
