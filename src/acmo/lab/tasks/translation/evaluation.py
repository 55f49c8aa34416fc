"""How good a model is on held-out sentences: loss a token and a sentence, and BLEU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acmo.lab.errors import missing_extra
from acmo.lab.tasks.translation.batches import batch, padded
from acmo.lab.tasks.translation.bpe import BPE
from acmo.lab.tasks.translation.decoding import translate
from acmo.lab.tasks.translation.model import token_losses


@dataclass(frozen=True)
class Look:
    """How closely to look.

    Args:
      beams: 1: greedy.
      sentences: translate the first so many alone; None: all. The loss is of all, always.
      extra: tokens that a translation may have more than its source.
    """

    beams: int = 4
    sentences: int | None = None
    extra: int = 50


class HeldOut:
    """Sentences to measure by.

    Args:
      pairs: of text.
      bpe: to cut them with.
      longest: tokens of a sentence, end mark included; what has more is cut, and counted.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], bpe: BPE, longest: int) -> None:
        self.pairs, self.bpe = pairs, bpe
        whole = [bpe.encode(side) for side in zip(*pairs, strict=True)]
        self.cut = sum(max(map(len, pair)) > longest for pair in zip(*whole, strict=True))
        self.source, self.target = ([_cut(line, longest) for line in side] for side in whole)

    def losses(self, model: Any, tokens: int, device: torch.device) -> dict[str, float]:
        """Return the cross-entropy, not smoothed, in nats, per token and per sentence as in the paper's figure."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for numbers in self._groups(range(len(self.source)), tokens):
            made = batch(*(padded([side[i] for i in numbers]) for side in (self.source, self.target)))
            moved = {key: value.to(device) for key, value in made.items()}
            total += token_losses(model, moved, smoothing=0.0).double().sum().cpu()
            count += len(made["labels"])
        return {"loss": float(total) / count, "loss_per_sentence": float(total) / len(self.source)}

    def translations(
        self, model: Any, look: Look, numbers: Sequence[int], tokens: int, device: torch.device
    ) -> list[str]:
        """Return the model's translations of these sentences, as text."""
        found: dict[int, list[int]] = {}
        # A sentence's beams are rows of the batch: as many fewer sentences.
        for group in _shown(list(self._groups(numbers, max(1, tokens // look.beams)))):
            source: Tensor = padded([self.source[i] for i in group]).to(device)
            found |= zip(group, translate(model, source, beams=look.beams, extra=look.extra), strict=True)
        return self.bpe.decode([found[i] for i in numbers])

    def bleu(self, model: Any, look: Look, tokens: int, device: torch.device) -> dict[str, Any]:
        """Return BLEU (0 to 100) by sacrebleu, with its signature."""
        numbers = range(len(self.pairs))[: look.sentences]
        score = bleu(self.translations(model, look, numbers, tokens, device), [self.pairs[i][1] for i in numbers])
        how = "greedy" if look.beams == 1 else f"beam {look.beams}"
        return {**score, "decoding": how, "translated": len(numbers)}

    def _groups(self, numbers: Sequence[int], tokens: int) -> Iterator[list[int]]:
        """Return groups of similar length, the longest first: a lack of memory shows at once."""
        lengths = {i: max(len(self.source[i]), len(self.target[i])) for i in numbers}
        ordered = sorted(numbers, key=lambda i: -lengths[i])
        at = 0
        while at < len(ordered):
            size = max(1, tokens // lengths[ordered[at]])
            yield ordered[at : at + size]
            at += size


def bleu(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return the BLEU of a corpus of plain text, with sacrebleu's own tokenization (13a), to be comparable."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise missing_extra("sacrebleu", "translation") from None
    metric = BLEU()
    score = metric.corpus_score(list(outputs), [list(references)])
    return {"bleu": float(score.score), "bleu_signature": str(metric.get_signature())}


def _cut(line: list[int], longest: int) -> list[int]:
    return line if len(line) <= longest else [*line[: longest - 1], line[-1]]


def _shown(groups: list[list[int]]) -> Iterator[list[int]]:
    """Return the groups, with a bar where someone looks: a beam search over thousands of sentences takes minutes."""
    from rich import get_console
    from rich.progress import track

    console = get_console()  # that of `acmo train`, whose own bar this one goes below
    yield from track(groups, "translating", console=console, transient=True, disable=not console.is_terminal)
