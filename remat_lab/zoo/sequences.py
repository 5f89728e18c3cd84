"""Small language models: a GPT of plain blocks, and an LSTM."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .layers import TokenCrossEntropy


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}")
        self.heads, self.dropout = heads, dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.project_in(x).chunk(3, dim=-1)
        )
        h = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.project_out(h.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear layers, each normalized first and added to its input (pre-norm)."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and an output layer that shares the embedding's weight.

    Parameters
    ----------
    vocabulary : int
    length : int, the most tokens in a sequence
    width, heads, blocks : int
    dropout : float
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        length: int = 128,
        width: int = 128,
        heads: int = 4,
        blocks: int = 4,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary) from int64 tokens of shape (batch, length)."""
        h = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        return self.head(self.norm(self.blocks(h)))


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers, and an output layer.

    Parameters
    ----------
    vocabulary, width, layers : int
    dropout : float
    unrolled : bool
        With True, one cell call per token and layer in place of torch's fused kernel, so that every time step
        shows as ops of its own.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 128,
        layers: int = 2,
        dropout: float = 0.1,
        unrolled: bool = False,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers)) if unrolled else None
        self.lstm = (
            None
            if unrolled
            else nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary) from int64 tokens of shape (batch, length)."""
        h = self.dropout(self.tokens(tokens))
        h = self.lstm(h)[0] if self.lstm is not None else self._step_by_step(h)
        return self.head(self.dropout(h))

    def _step_by_step(self, h: torch.Tensor) -> torch.Tensor:
        assert self.cells is not None
        zero = h.new_zeros(h.shape[0], h.shape[2])
        states = [(zero, zero) for _ in self.cells]
        outputs = []
        for step in h.unbind(1):
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(step if layer == 0 else self.dropout(step), states[layer])
                step = states[layer][0]
            outputs.append(step)
        return torch.stack(outputs, dim=1)


def gpt(**options) -> GPT:
    """A GPT; by default 4 blocks of width 128. Options are :class:`GPT`'s."""
    return GPT(**options)


def lstm(**options) -> LSTMLanguageModel:
    """An LSTM language model. Options are :class:`LSTMLanguageModel`'s."""
    return LSTMLanguageModel(**options)


def gpt_step(batch: int, length: int, vocabulary: int = 1000, **options):
    """(model, inputs, loss) for next-token prediction on random tokens."""
    return _language_step(gpt(vocabulary=vocabulary, length=length, **options), batch, length, vocabulary)


def lstm_step(batch: int, length: int, vocabulary: int = 1000, **options):
    """(model, inputs, loss) for next-token prediction on random tokens."""
    return _language_step(lstm(vocabulary=vocabulary, **options), batch, length, vocabulary)


def _language_step(model: nn.Module, batch: int, length: int, vocabulary: int):
    text = torch.randint(vocabulary, (batch, length + 1))
    # Copies: each side is a tensor of its own, as a data loader would give.
    return model, (text[:, :-1].clone(),), TokenCrossEntropy(text[:, 1:].clone())
