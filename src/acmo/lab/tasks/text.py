"""``text:char`` and ``text:bpe``: a small GPT on any UTF-8 text; tiny Shakespeare if none is given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.tasks.base import Recipe, Score, Split, Task
from acmo.lab.tasks.models.gpt import GPT, GPTShape
from acmo.lab.tasks.text_source import SHAKESPEARE_BYTES, Encoded, encode_bpe, encode_characters, find_files, read_text

_ORDER = 2  # what a generator is for


@dataclass(frozen=True)
class Net:
    """A net, its recipe (batch size in sequences), and the vocabulary of ``text:bpe``."""

    shape: GPTShape
    recipe: Recipe
    vocabulary: int


_TINY = Net(
    GPTShape(layers=2, width=128, heads=4, context=64),
    Recipe(steps=300, batch_size=32, schedule=Schedule("warmup:15it+cosine"), max_grad_norm=1.0, evaluate_every=100),
    vocabulary=1_000,
)
_NETS = MappingProxyType(
    {
        "tiny": _TINY,
        "tiny-64": replace(_TINY, shape=replace(_TINY.shape, width=64)),
        "tiny-256": replace(_TINY, shape=replace(_TINY.shape, width=256)),
        # nanoGPT's train_shakespeare_char.py; its rate decays to a tenth, here to 0.
        "small": Net(
            GPTShape(layers=6, width=384, heads=6, context=256, dropout=0.2),
            Recipe(
                steps=5_000,
                batch_size=64,
                schedule=Schedule("warmup:100it+cosine"),
                max_grad_norm=1.0,
                evaluate_every=250,
            ),
            vocabulary=4_000,
        ),
        # GPT-2, 124 M parameters, with the batches of nanoGPT's train_gpt2.py; for GPUs.
        "gpt2": Net(
            GPTShape(layers=12, width=768, heads=12, context=1024),
            Recipe(
                steps=20_000,
                batch_size=480,
                schedule=Schedule("warmup:1000it+cosine"),
                max_grad_norm=1.0,
                evaluate_every=1_000,
                accumulate=40,
            ),
            vocabulary=50_257,
        ),
    }
)


class Text(Task):
    """The next character or token of a text, by bits per byte; a GPT of 2 layers takes half a minute on a core.

    The first 90 % of the text are for training, the next 5 % for validation, the last 5 % for the test. An epoch goes
    once over the training text, in windows that start elsewhere each time.
    """

    name = "text"
    data_folder = "tinyshakespeare"
    score = Score("bits_per_byte", "min")
    sizes = ("char", "bpe")
    nets = tuple(_NETS)
    shown = 100  # tokens that are generated at every evaluation

    def __init__(
        self, size: str | None = None, net: str | None = None, data: Path | None = None, seed: int = 0
    ) -> None:
        super().__init__(size, net, data, seed)
        self.net = self.net or self.nets[0]
        self.preset = _NETS[self.net]
        self.recipe = self.preset.recipe

    def prepare(self) -> None:
        """Get the text and cut it into tokens."""
        context = self.preset.shape.context
        for name, part in (("training", self._text.train), ("validation", self._text.valid), ("test", self._text.test)):
            if len(part.tokens) <= 2 * context:
                raise LabError(
                    f"the text has {len(part.tokens)} tokens for {name}, too few for a context of {context}: give a "
                    f"longer text"
                )

    def facts(self) -> dict[str, Any]:
        """Return how many bytes the text has, and how many tokens."""
        text = self._text
        sizes = {name: len(part.tokens) for name, part in (("train", text.train), ("valid", text.valid))}
        own = {} if text.bytes == SHAKESPEARE_BYTES else {"subset": "a text of one's own"}
        return {**own, "bytes": text.bytes, "vocabulary": text.vocabulary, "tokens": sizes}

    def data_files(self) -> Sequence[Path]:
        """Return the files of the text."""
        return find_files(self.data)

    @cached_property
    def _text(self) -> Encoded:
        content = "\n".join([read_text(path) for path in self.data_files()])
        return encode_bpe(content, self.preset.vocabulary) if self.size == "bpe" else encode_characters(content)

    @cached_property
    def _stream(self) -> Tensor:
        return self._text.train.tokens.to(self.device)

    def model(self) -> nn.Module:
        """Return the GPT of this size, for the vocabulary that the text has given."""
        return GPT(self.preset.shape, self._text.vocabulary)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Return where the windows start, shuffled; a last batch that is smaller is left out."""
        context, draw = self.preset.shape.context, self.generator(_ORDER, epoch)
        first = int(torch.randint(context, (1,), generator=draw))
        starts = torch.arange(first, len(self._stream) - context, context)
        order = starts[torch.randperm(len(starts), generator=draw)]
        whole = len(order) // self.recipe.batch_size * self.recipe.batch_size
        if whole == 0:
            raise LabError(f"the text has {len(order)} windows, fewer than one batch of {self.recipe.batch_size}")
        return torch.split(order[:whole], self.recipe.batch_size)

    def collate(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return windows of the text, and the same moved by one token."""
        places = indices.to(self.device)[:, None] + torch.arange(self.preset.shape.context + 1, device=self.device)
        windows = self._stream[places].long()
        return windows[:, :-1], windows[:, 1:]

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the cross-entropy, summed over tokens."""
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="sum"), targets.numel()

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, Any]:
        """Return nats per token and bits per byte of the whole split, each token predicted once."""
        part = self._text.valid if split == "valid" else self._text.test
        tokens, context = part.tokens.to(self.device).long(), self.preset.shape.context
        inputs = torch.cat([tokens.new_tensor([self._text.start]), tokens[:-1]])
        whole = len(tokens) // context * context
        total = torch.zeros((), dtype=torch.float64)
        rows = [torch.split(x[:whole].view(-1, context), 64) for x in (inputs, tokens)]
        windows = list(zip(*rows, strict=True))
        for x, y in [*windows, (inputs[whole:][None], tokens[whole:][None])]:
            if x.numel():
                total += self.loss(model, (x, y))[0].double().cpu()
        return {"loss": float(total) / len(tokens), "bits_per_byte": float(total) / log(2) / part.bytes}

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the beginning of the validation text, and how the model continues it, by its likeliest tokens."""
        context = self.preset.shape.context
        prompt = self._text.valid.tokens[: context // 2].long()
        reference = self._text.valid.tokens[context // 2 :][: self.shown].long()
        tokens = prompt.to(self.device)
        for _ in range(self.shown):
            tokens = torch.cat([tokens, model(tokens[None, -context:])[0, -1:].argmax(-1)])
        decode = self._text.decode
        written = decode(tokens[len(prompt) :].tolist())
        return [{"source": decode(prompt.tolist()), "reference": decode(reference.tolist()), "output": written}]
