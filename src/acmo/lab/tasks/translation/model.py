"""Transformers after Vaswani et al. (2017): `transformers`' Marian, initialised as its authors and fairseq do."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from acmo.lab.errors import missing_extra

PAD, EOS = 0, 1  # the first two of every vocabulary; decoding starts with PAD, as Marian does


@dataclass(frozen=True)
class Net:
    """A shape: as many layers in the encoder as in the decoder.

    Args:
      layers: of each of the two.
      width: of embeddings and states.
      inner: of the feed-forward parts.
      heads: of the attention.
      dropout: after embeddings and in front of every residual sum.
      positions: the longest sequence, its end mark included.
    """

    layers: int = 6
    width: int = 512
    inner: int = 2048
    heads: int = 8
    dropout: float = 0.1
    positions: int = 512


def build(net: Net, vocabulary: int) -> nn.Module:
    """Return a new `MarianMTModel`: post-LN, ReLU, sinusoidal positions, one matrix for embeddings and output.

    The tables of positions are parameters that need no gradient: the lab's optimizers get only those that do.

    Args:
      net: its shape.
      vocabulary: how many tokens there are, of both languages together.
    """
    try:
        from transformers import MarianConfig, MarianMTModel
    except ImportError:
        raise missing_extra("transformers", "translation") from None
    config: Any = MarianConfig(
        vocab_size=vocabulary,
        max_position_embeddings=net.positions,
        encoder_layers=net.layers,
        decoder_layers=net.layers,
        encoder_ffn_dim=net.inner,
        decoder_ffn_dim=net.inner,
        encoder_attention_heads=net.heads,
        decoder_attention_heads=net.heads,
        d_model=net.width,
        dropout=net.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    initialise(model)
    return model


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Draw Xavier-uniform matrices, biases 0, embeddings N(0, 1/width); N(0, 0.02) is too small for post-LN."""
    for name, p in model.named_parameters():
        if not p.requires_grad or "layer_norm" in name:
            continue
        if p.dim() < 2:
            nn.init.zeros_(p)
        elif "shared" in name:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)
            p[PAD] = 0
        else:
            nn.init.xavier_uniform_(p)


def token_losses(model: Any, batch: dict[str, Tensor], smoothing: float) -> Tensor:
    """Return the cross-entropy of every target token of a batch, as (tokens,), sentence after sentence.

    Smoothing spreads its share over the whole vocabulary (Szegedy et al., 2016). Logits are made for real tokens alone:
    what only fills up a batch costs no row of the largest matrix product.
    """
    states = model.model(
        input_ids=batch["source"],
        attention_mask=batch["source_mask"],
        decoder_input_ids=batch["target_in"],
        use_cache=False,
    ).last_hidden_state
    real = states.flatten(0, 1).index_select(0, batch["places"])
    return cross_entropy(model.lm_head(real).float(), batch["labels"], label_smoothing=smoothing, reduction="none")
