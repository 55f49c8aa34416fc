"""A GPT in the form of nanoGPT: pre-LN blocks, learned positions, one matrix for embedding and output, no biases."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


@dataclass(frozen=True)
class GPTShape:
    """The shape of a GPT.

    Args:
      layers: blocks of attention and feed-forward parts.
      width: of embeddings and states.
      heads: of the attention.
      context: how many tokens it sees.
      dropout: after embeddings, attention and feed-forward parts.
    """

    layers: int
    width: int
    heads: int
    context: int
    dropout: float = 0.0


class GPT(nn.Module):
    """Predict each next token of a sequence.

    Args:
      shape: its shape.
      vocabulary: how many tokens there are.
    """

    def __init__(self, shape: GPTShape, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self._initialise(shape.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (N, T, vocabulary) of tokens (N, T)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    @torch.no_grad()
    def _initialise(self, layers: int) -> None:
        """Draw weights as GPT-2 does: N(0, 0.02), and smaller where they add to the residual stream."""
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 / sqrt(2 * layers) if name.endswith("out.weight") else 0.02)


class Block(nn.Module):
    """Attention and a feed-forward part, each with a norm before it and a sum after it."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.rate = shape.heads, shape.dropout
        self.norm = nn.LayerNorm(width, bias=False)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.inner_norm = nn.LayerNorm(width, bias=False)
        self.inner_in = nn.Linear(width, 4 * width, bias=False)
        self.inner_out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states (N, T, width) after the block."""
        n, t, width = x.shape
        queries, keys, values = self.attention_in(self.norm(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = scaled_dot_product_attention(queries, keys, values, is_causal=True, dropout_p=rate)
        x = x + self.dropout(self.attention_out(seen.transpose(1, 2).reshape(n, t, width)))
        added: Tensor = self.dropout(self.inner_out(gelu(self.inner_in(self.inner_norm(x)))))
        return x + added
