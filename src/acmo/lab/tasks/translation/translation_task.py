"""``wmt14-ende`` and ``multi30k-ende``: English to German with a Transformer."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from acmo.lab.tasks.base import Recipe, Score, Split, Task
from acmo.lab.tasks.downloads import cache
from acmo.lab.tasks.translation import batches, corpus, sources
from acmo.lab.tasks.translation.evaluation import HeldOut, Look
from acmo.lab.tasks.translation.model import Net, build, token_losses
from acmo.lab.tasks.translation.store import Filters, Store, prepared

_ORDER = 2  # what a generator is for
QUICK = Look(beams=1, extra=20)


@dataclass(frozen=True)
class Size:
    """A size of a task.

    Args:
      net: its shape.
      vocabulary: of the joint BPE.
      recipe: its batch size is in tokens, of the longer side, filled-up ones included.
      pairs: how many are used to train on; None: all.
      valid: how to look during training; the test is always by beam search with 4 beams.
    """

    net: Net
    vocabulary: int
    recipe: Recipe
    pairs: int | None = None
    valid: Look = QUICK


# The paper's: 4 GPUs with 4,096 tokens each, fixed step size, clipping; the norm is not stated.
_PAPER = Recipe(steps=300_000, batch_size=4 * 4096, max_grad_norm=1.0, evaluate_every=5_000)


class Translation(Task):
    """English to German; by BLEU."""

    score = Score("bleu", "max")
    presets: ClassVar[Mapping[str, Size]]
    archives: ClassVar[Mapping[str, Sequence[sources.Archive | sources.Files]]]
    names: ClassVar[Mapping[str, Sequence[str]]]  # of files, without language; of several the first that is there
    official: ClassVar[Mapping[str, int]]  # pairs in the official files, by their names without language
    languages: ClassVar[tuple[str, str]] = sources.LANGUAGES
    filters: ClassVar[Filters] = Filters()
    smoothing: ClassVar[float] = 0.1
    shown: ClassVar[int] = 4  # sentences kept at every evaluation

    def __init__(
        self, size: str | None = None, net: str | None = None, data: Path | None = None, seed: int = 0
    ) -> None:
        super().__init__(size, net, data, seed)
        assert self.size is not None
        self.preset = self.presets[self.size]
        self.recipe = self.preset.recipe

    def texts(self, split: str) -> list[corpus.Text]:
        """Return the files of a split: in the folder given, or downloaded."""
        if self.data is not None:
            return corpus.find(self.data, self.names[split], self.languages)
        return sources.downloaded(self.archives[split], self.languages)

    def data_files(self) -> list[Path]:
        """Return the two files of every text."""
        texts = [text for split in ("train", "valid", "test") for text in self.texts(split)]
        return [path for text in texts for path in (text.source, text.target)]

    @cached_property
    def subset(self) -> str | None:
        """Return how the files differ from the official ones in their numbers of pairs; None if they do not."""
        parts = []
        for text in (text for split in ("train", "valid", "test") for text in self.texts(split)):
            name = text.source.name.removesuffix(".gz").rpartition(".")[0]
            official = self.official.get(name)
            count = None if official is None else sum(1 for _ in text.pairs())
            if count != official:
                parts.append(f"{name} has {count:,} pairs instead of {official:,}")
        return f"not the official data: {', '.join(parts)}" if parts else None

    def prepare(self) -> None:
        """Get the text, cut it into tokens, and see whether the test data is there and whole."""
        for text in self.texts("test"):
            corpus.held_out(text)
        _ = self._lengths, self._valid
        if os.environ.get("RANK", "0") == "0":
            print(f"{self.name}: {self._store.counts}", file=sys.stderr)
            if self.subset is not None:
                print(f"{self.name}: {self.subset}", file=sys.stderr)

    def facts(self) -> dict[str, Any]:
        """Return what the training data is, how many pairs were left out of it, and why; kept with the run."""
        store = self._store
        counts = {"pairs": asdict(store.counts), "vocabulary": len(store.bpe), "valid_cut": self._valid.cut}
        return {"hash": store.hash, **counts, **({} if self.subset is None else {"subset": self.subset})}

    @cached_property
    def _store(self) -> Store:
        positions = self.preset.net.positions - 1  # one is for the end mark
        filters = replace(self.filters, longest=min(self.filters.longest, positions))
        texts = self.texts("train")
        return prepared(texts, self.preset.vocabulary, filters, cache() / "translation", self.preset.pairs)[0]

    @cached_property
    def _lengths(self) -> np.ndarray[Any, Any]:
        longer: np.ndarray[Any, Any] = np.maximum(self._store.source.lengths(), self._store.target.lengths())
        return longer

    @cached_property
    def _valid(self) -> HeldOut:
        return self._held_out("valid")

    def _held_out(self, split: Split) -> HeldOut:
        pairs = [pair for text in self.texts(split) for pair in corpus.held_out(text)]
        return HeldOut(pairs, self._store.bpe, self.preset.net.positions)

    def model(self) -> nn.Module:
        """Return the Transformer of this size, for the vocabulary that the text has given."""
        return build(self.preset.net, len(self._store.bpe))

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Return all pairs once, in batches of like length and so many tokens."""
        return batches.bucketed(self._lengths, self.recipe.batch_size, self.generator(_ORDER, epoch))

    def collate(self, indices: Tensor, epoch: int) -> dict[str, Tensor]:
        """Return the pairs as padded tensors."""
        store = self._store
        return batches.batch(batches.gathered(store.source, indices), batches.gathered(store.target, indices))

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the label-smoothed cross-entropy, summed over target tokens, and how many there are."""
        return token_losses(model, batch, self.smoothing).sum(), len(batch["labels"])

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, Any]:
        """Return the loss per token and per sentence, without smoothing, and BLEU."""
        data = self._valid if split == "valid" else self._held_out(split)
        look = self.preset.valid if split == "valid" else Look(beams=4, extra=self.preset.valid.extra)
        tokens = self._eval_tokens()
        return data.losses(model, tokens, self.device) | data.bleu(model, look, tokens, self.device)

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return a few sentences of the validation data, their references, and the model's greedy translations."""
        numbers = list(range(0, len(self._valid.pairs), max(1, len(self._valid.pairs) // self.shown)))[: self.shown]
        look = Look(beams=1, extra=self.preset.valid.extra)
        outputs = self._valid.translations(model, look, numbers, self._eval_tokens(), self.device)
        return [
            {"source": self._valid.pairs[i][0], "reference": self._valid.pairs[i][1], "output": output}
            for i, output in zip(numbers, outputs, strict=True)
        ]

    def _eval_tokens(self) -> int:
        return min(4096, self.recipe.batch_size)


class WMT14(Translation):
    """WMT'14, 4.5 M pairs: Europarl, Common Crawl, News Commentary; newstest2013 to choose by, newstest2014 to test."""

    name = "wmt14-ende"
    data_folder = "wmt14"
    presets = MappingProxyType(
        {
            "small": Size(
                Net(layers=3, width=256, inner=1024, heads=4),
                vocabulary=16_000,
                recipe=Recipe(steps=20_000, batch_size=4096, max_grad_norm=1.0, evaluate_every=1_000),
                pairs=500_000,
                valid=Look(beams=1, sentences=500, extra=50),
            ),
            "paper": Size(Net(), vocabulary=37_000, recipe=_PAPER, valid=Look(beams=4, extra=50)),
        }
    )
    sizes = tuple(presets)
    archives = MappingProxyType(sources.WMT14)
    official = MappingProxyType({"newstest2013": 3_000, "newstest2014": 3_003})
    names = MappingProxyType(
        {
            "train": ("train", "europarl-v7.de-en+commoncrawl.de-en+news-commentary-v9.de-en"),
            "valid": ("newstest2013", "valid", "val", "dev"),
            "test": ("newstest2014", "test"),
        }
    )


class Multi30k(Translation):
    """Multi30k, 29,000 captions of pictures; val to choose by, test_2016_flickr to test."""

    name = "multi30k-ende"
    data_folder = "multi30k"
    presets = MappingProxyType(
        {
            "tiny": Size(
                Net(layers=2, width=128, inner=256, heads=4),
                vocabulary=4_000,
                recipe=Recipe(steps=400, batch_size=1024, max_grad_norm=1.0, evaluate_every=100),
                valid=Look(beams=1, sentences=200, extra=10),
            ),
            "small": Size(
                Net(layers=2, width=192, inner=512, heads=4),
                vocabulary=4_000,
                recipe=Recipe(epochs=10, batch_size=1200, max_grad_norm=1.0),
                valid=Look(beams=1, extra=15),
            ),
        }
    )
    sizes = tuple(presets)
    archives = MappingProxyType(sources.MULTI30K)
    official = MappingProxyType({"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000})
    names = MappingProxyType(
        {"train": ("train",), "valid": ("val", "valid", "dev"), "test": ("test_2016_flickr", "test2016", "test")}
    )
