"""Networks of the transformers library with random weights: nothing is downloaded.

The models are given labels and return their own loss.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "this network comes from the transformers library: pip install transformers"
        ) from error
    return transformers


def gpt2(
    batch: int,
    length: int,
    vocabulary: int = 50257,
    width: int = 768,
    heads: int = 12,
    blocks: int = 12,
    dropout: float = 0.1,
    **config: Any,
):
    """GPT-2 (124 M parameters by default) predicting the next token. ``config`` goes to GPT2Config."""
    transformers = _transformers()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary,
            n_positions=max(length, 1024),
            n_embd=width,
            n_head=heads,
            n_layer=blocks,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=vocabulary - 1,
            eos_token_id=vocabulary - 1,
            use_cache=False,  # the cache of keys and values is for generation, and is not an activation
            **config,
        )
    )
    model.loss_type = "ForCausalLM"  # the library would choose the same, and warn
    tokens = torch.randint(vocabulary, (batch, length))
    # Without a mask the model looks for several texts packed into one row, and what it finds decides which ops
    # run: control flow on data, which cannot be captured. A mask of four dimensions is used as it is.
    causal = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    return model, {"input_ids": tokens, "attention_mask": causal, "labels": tokens.clone()}, None


def bert(
    batch: int,
    length: int,
    vocabulary: int = 30522,
    width: int = 768,
    heads: int = 12,
    blocks: int = 12,
    dropout: float = 0.1,
    **config: Any,
):
    """BERT (110 M parameters by default) as a masked language model. ``config`` goes to BertConfig."""
    transformers = _transformers()
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocabulary,
            max_position_embeddings=max(length, 512),
            hidden_size=width,
            intermediate_size=4 * width,
            num_attention_heads=heads,
            num_hidden_layers=blocks,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            **config,
        )
    )
    tokens = torch.randint(vocabulary, (batch, length))
    return model, {"input_ids": tokens, "labels": tokens.clone()}, None


def resnet50(batch: int, image: int, num_classes: int = 1000, width: int = 64, **config: Any):
    """The library's ResNet-50 (strides on the 3x3 convolutions). ``config`` goes to ResNetConfig."""
    transformers = _transformers()
    model = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            num_labels=num_classes,
            embedding_size=width,
            hidden_sizes=[4 * width * 2**i for i in range(4)],
            problem_type="single_label_classification",
            **config,
        )
    )
    pixels = torch.randn(batch, 3, image, image)
    return model, {"pixel_values": pixels, "labels": torch.randint(num_classes, (batch,))}, None
