"""The parameter sets: shapes of real networks, in the order in which their modules hold them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParameterSet:
    """A named list of shapes.

    Attributes:
      key: its name on the command line.
      label: its name in the tables.
      shapes: of every tensor.
      large: whether the targets of large sets hold for it; such a set is far larger than any cache.
    """

    key: str
    label: str
    shapes: tuple[Shape, ...]
    large: bool = True

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes))

    def gradients(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Normal deviates: shared by all contenders, for none of them may change a gradient."""
        generator = torch.Generator().manual_seed(0)
        return [torch.empty(s).normal_(0.0, 0.01, generator=generator).to(dtype) for s in self.shapes]

    def params(self, gradients: list[Tensor]) -> list[Tensor]:
        """Parameters of one's own, with the shared gradients. What they hold is nothing to the time of a step."""
        made = [torch.ones_like(g).requires_grad_() for g in gradients]
        for p, g in zip(made, gradients, strict=True):
            p.grad = g
        return made


def linear(inputs: int, outputs: int) -> Iterator[Shape]:
    yield (outputs, inputs)
    yield (outputs,)


def norm(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


def resnet50() -> Iterator[Shape]:
    """He et al. 2016 as torchvision builds it, 1,000 classes: convolutions without bias, each before a batch norm."""

    def convolution(inputs: int, outputs: int, size: int) -> Iterator[Shape]:
        yield (outputs, inputs, size, size)
        yield from norm(outputs)

    yield from convolution(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from convolution(inputs, width, 1)
            yield from convolution(width, width, 3)
            yield from convolution(width, 4 * width, 1)
            if block == 0:  # the shortcut changes its width
                yield from convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    yield from linear(2048, 1000)


def transformer_base(vocabulary: int = 37_000, d: int = 512, hidden: int = 2048, layers: int = 6) -> Iterator[Shape]:
    """Vaswani et al. 2017 as `torch.nn.Transformer` builds it, with one embedding for both languages and the output."""

    def attention() -> Iterator[Shape]:
        yield (3 * d, d)
        yield (3 * d,)
        yield from linear(d, d)

    def layer(attentions: int) -> Iterator[Shape]:
        for _ in range(attentions):
            yield from attention()
        yield from linear(d, hidden)
        yield from linear(hidden, d)
        for _ in range(attentions + 1):
            yield from norm(d)

    yield (vocabulary, d)
    for attentions in (1, 2):  # encoder, decoder
        for _ in range(layers):
            yield from layer(attentions)
        yield from norm(d)


def gpt2_small(vocabulary: int = 50_257, context: int = 1024, d: int = 768, layers: int = 12) -> Iterator[Shape]:
    """Radford et al. 2019, the output tied to the embedding; its `Conv1D` weights are (inputs, outputs)."""
    yield (vocabulary, d)
    yield (context, d)
    for _ in range(layers):
        yield from norm(d)
        for inputs, outputs in ((d, 3 * d), (d, d)):
            yield (inputs, outputs)
            yield (outputs,)
        yield from norm(d)
        for inputs, outputs in ((d, 4 * d), (4 * d, d)):
            yield (inputs, outputs)
            yield (outputs,)
    yield from norm(d)


def small_net() -> Iterator[Shape]:
    """A perceptron for 8 x 8 digits."""
    for inputs, outputs in ((64, 100), (100, 32), (32, 10)):
        yield from linear(inputs, outputs)


def make(key: str, label: str, shapes: Callable[[], Iterator[Shape]], large: bool = True) -> ParameterSet:
    return ParameterSet(key, label, tuple(shapes()), large)


def single(parameters: int) -> ParameterSet:
    """One tensor of so many parameters."""
    millions = parameters // 1_000_000
    return make(f"{millions}m", f"one tensor of {millions} M", lambda: iter([(parameters,)]))


SETS = {
    s.key: s
    for s in (
        make("10k", "a 10 k-parameter net", small_net, large=False),
        make("1000x1000", "1,000 tensors of 1,000", lambda: iter([(1000,)] * 1000), large=False),
        make("resnet50", "ResNet-50", resnet50),
        make("transformer", "Transformer-base", transformer_base),
        single(100_000_000),
        make("10000x10000", "one matrix of 10,000 x 10,000", lambda: iter([(10_000, 10_000)])),
        make("gpt2", "GPT-2 small", gpt2_small),
    )
}
