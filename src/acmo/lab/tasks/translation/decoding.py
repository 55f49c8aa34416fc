"""Translating: greedily for a quick look, by beam search for a score.

Beam search is our own, because `transformers` ranks hypotheses otherwise than the papers do: it divides the sum of
log-probabilities by |Y|^α, the GNMT paper (and so "length penalty 0.6" in the Transformer's) by ((5 + |Y|) / 6)^α,
which rewards length less: from 10 to 20 tokens by a factor of 1.36, not 1.52. No α turns one form into the other, and
re-ranking what `generate` returns cannot bring back what it has pruned. |Y| counts the end mark, as in tensor2tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from acmo.lab.tasks.translation.model import EOS, PAD

Advance = Callable[[Tensor, Tensor | None], Tensor]


def translate(model: Any, source: Tensor, *, beams: int, extra: int, alpha: float = 0.6) -> list[list[int]]:
    """Return the tokens that the model translates these sentences with, without end marks.

    Args:
      model: in eval mode.
      source: (sentences, length), filled up with PAD.
      beams: hypotheses that are followed; 1: greedy.
      extra: no translation is longer than its source by more tokens than that: what bounds the time.
      alpha: of GNMT's length penalty.
    """
    mask = (source != PAD).long()
    encoded = model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
    limits = (mask.sum(1) + extra).clamp(max=model.config.max_position_embeddings)
    advance = _stepper(model, encoded.repeat_interleave(beams, 0), mask.repeat_interleave(beams, 0))
    if beams == 1:
        return greedy(advance, limits)
    return beam_search(advance, limits, beams, alpha)


def greedy(advance: Advance, limits: Tensor) -> list[list[int]]:
    """Return the likeliest token, again and again.

    Args:
      advance: log-probabilities (rows, vocabulary) after one more token in each row.
      limits: (sentences,) the most tokens a translation may have, end mark included.
    """
    last = torch.full_like(limits, PAD)
    done = torch.zeros_like(limits, dtype=torch.bool)
    tokens = []
    for step in range(1, int(limits.max()) + 1):
        best = advance(last, None).argmax(-1)
        last = torch.where(done, PAD, best)
        tokens.append(last)
        done |= (last == EOS) | (limits <= step)
        if bool(done.all()):
            break
    return [_without_marks(row) for row in torch.stack(tokens, 1).tolist()]


def gnmt(length: int, alpha: float) -> float:
    """Return what the sum of log-probabilities is divided by (Wu et al., 2016, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def beam_search(advance: Advance, limits: Tensor, beams: int, alpha: float) -> list[list[int]]:
    """Return the best finished hypotheses by log-probability over length penalty.

    A sentence is done when no hypothesis that is still open can beat its best finished one, even were all its further
    tokens certain and its length the most that is allowed; so nothing is lost by ending there.

    Args:
      advance: log-probabilities (rows, vocabulary) after one more token in each row; rows that moved are given first.
      limits: (sentences,) the most tokens a translation may have, end mark included.
      beams: hypotheses to follow.
      alpha: of the length penalty.
    """
    n, device = len(limits), limits.device
    rows = torch.arange(n, device=device)[:, None] * beams
    scores = torch.full((n, beams), -torch.inf, device=device)
    scores[:, 0] = 0  # all beams begin alike: follow one of them
    tokens = torch.full((n, beams, 0), PAD, device=device)
    last, moved = torch.full((n * beams,), PAD, device=device), None
    found = torch.full((n,), -torch.inf, device=device)
    results: list[list[int]] = [[] for _ in range(n)]
    highest = torch.tensor([gnmt(limit, alpha) for limit in limits.tolist()], device=device)
    for step in range(1, int(limits.max()) + 1):
        grown = scores[:, :, None] + advance(last, moved).view(n, beams, -1)
        vocabulary = grown.shape[-1]
        # Twice as many, since up to half of them end here.
        best, places = grown.flatten(1).topk(min(2 * beams, beams * vocabulary))
        origin, token = places // vocabulary, places % vocabulary
        ends = token == EOS
        final = limits <= step  # at its limit, every hypothesis ends
        ranked = (best / gnmt(step, alpha)).masked_fill(~(ends | final[:, None]), -torch.inf)
        ranked[:, beams:] = -torch.inf  # the others are no beams, but stand in for those that end
        top, which = ranked.max(1)
        for i in (top > found).nonzero().flatten().tolist():
            j = int(which[i])
            results[i] = _without_marks([*tokens[i, int(origin[i, j])].tolist(), int(token[i, j])])
        found = torch.maximum(found, top)
        scores, kept = best.masked_fill(ends | final[:, None], -torch.inf).topk(beams)
        if bool((final | (scores[:, 0] / highest <= found)).all()):
            break
        origin, last = origin.gather(1, kept), token.gather(1, kept)
        tokens = torch.cat([tokens.gather(1, origin[:, :, None].expand(-1, -1, tokens.shape[2])), last[:, :, None]], 2)
        moved, last = (rows + origin).flatten(), last.flatten()
    return results


def _stepper(model: Any, encoded: Tensor, mask: Tensor) -> Advance:
    """Return one step of the decoder, with all before it cached."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache  # it is there: the model is one of its

    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))

    def advance(last: Tensor, moved: Tensor | None) -> Tensor:
        if moved is not None:
            # All beams of a sentence attend to the same source: only their own tokens move.
            cache.self_attention_cache.reorder_cache(moved)  # type: ignore[arg-type]
        states = model.model(
            encoder_outputs=(encoded,),
            attention_mask=mask,
            decoder_input_ids=last[:, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        logits = model.lm_head(states[:, -1]).float()
        logits[:, PAD] = -torch.inf  # it is a filler and the beginning, never a word
        return torch.log_softmax(logits, -1)

    return advance


def _without_marks(tokens: list[int]) -> list[int]:
    return [t for t in tokens[: tokens.index(EOS)] if t != PAD] if EOS in tokens else [t for t in tokens if t != PAD]
