"""The optimizers that are compared: each is built on parameters of its own and gives a step to call."""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from acmo import native
from acmo.optimizer import ACMo
from acmo.row_acmo import RowACMo
from acmo.scopes import resolve_scope

LR = 1e-4
# Beyond the gradient's norm: the clipping is done in full and multiplies by 1, which leaves the shared gradients alone.
MAX_NORM = 1e6

SGD, ADAMW, PLAIN = "SGD-momentum fused", "AdamW fused", "plain update (C)"
FUSED, CLIPPED, COUPLED = "ACMo fused", "ACMo fused, max_grad_norm", "ACMo fused, coupled decay"
ADAMW_CLIPPED, COMPILED = "AdamW fused + clip_grad_norm_", "ACMo compiled"
REFERENCE = "ACMo reference"
ROWS, ROWS_INT8 = "RowACMo fused", "RowACMo fused, int8 moments"
# Measured in every batch: what the others are compared with.
ANCHORS = (SGD, ADAMW, PLAIN)
NATIVE = (PLAIN, FUSED, CLIPPED, COUPLED, ROWS, ROWS_INT8)
# What the targets compare, and all that a quick run measures.
TARGETS = (*ANCHORS, *NATIVE, ADAMW_CLIPPED)


@dataclass
class Instance:
    """A contender on its parameters, which it keeps alive: its step, and the tensors that it keeps between steps."""

    params: list[Tensor]
    step: Callable[[], Any]
    state: Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class Contender:
    """How to build an optimizer, and what its step has to move.

    Attributes:
      name: in the tables.
      words: read and written per parameter by the update, each pass as tight as it can be (a pass for a norm reads 1,
        the in-place update of m and θ by g moves 5, Adam's of m, v and θ 7, `clip_grad_norm_` 3). An implementation
        that makes more passes moves more, and shows fewer GB/s here.
      moments: words of state per parameter, for the plan of what fits into memory together.
      build: makes it on parameters that have gradients.
      table_words: read and written in addition by parameters that go by column.
    """

    name: str
    words: float
    moments: float
    build: Callable[[list[Tensor]], Instance]
    table_words: float = 0.0

    def words_on(self, shapes: Sequence[Sequence[int]]) -> float:
        """Return the words per parameter on a set, whose tables go by column with scope "auto"."""
        by_column = sum(math.prod(shape) for shape in shapes if resolve_scope("auto", shape) == "column")
        return self.words + self.table_words * by_column / sum(map(math.prod, shapes))


def contenders(compiled: bool = False, targets_only: bool = False) -> list[Contender]:
    """All that can run here; those that need the C kernel only where it is."""
    out = (() if compiled else (COMPILED,)) + (NATIVE if native.kernel() is None else ())
    return [c for c in table() if c.name not in out and (not targets_only or c.name in (*TARGETS, COMPILED))]


def table() -> list[Contender]:
    """Those of the targets first, so that they are measured together."""
    return [
        Contender(SGD, 5, 1, lambda p: of(torch.optim.SGD(p, lr=LR, momentum=0.9, fused=True))),
        Contender(ADAMW, 7, 2, lambda p: of(torch.optim.AdamW(p, lr=LR, fused=True))),
        Contender(PLAIN, 5, 1, plain_update),
        Contender(FUSED, 6, 1, lambda p: of(ACMo(p, lr=LR, fused=True))),
        Contender(ROWS, 5, 1, lambda p: of(RowACMo(p, lr=LR, fused=True)), table_words=2),
        Contender(ROWS_INT8, 3.5, 0.25, int8_rows, table_words=1.25),
        Contender(CLIPPED, 6, 1, lambda p: of(ACMo(p, lr=LR, fused=True, max_grad_norm=MAX_NORM))),
        Contender(ADAMW_CLIPPED, 10, 2, adamw_and_clip),
        Contender(COUPLED, 7, 1, lambda p: of(ACMo(p, lr=LR, fused=True, weight_decay=1e-4))),
        Contender("ACMo foreach", 6, 1, lambda p: of(ACMo(p, lr=LR, foreach=True, fused=False))),
        Contender(COMPILED, 6, 1, compiled_acmo),
        Contender("SGD-momentum foreach", 5, 1, lambda p: of(torch.optim.SGD(p, lr=LR, momentum=0.9, foreach=True))),
        Contender("Adam fused", 7, 2, lambda p: of(torch.optim.Adam(p, lr=LR, fused=True))),
        Contender("AdamW foreach", 7, 2, lambda p: of(torch.optim.AdamW(p, lr=LR, foreach=True))),
        Contender("authors' CIFAR formula", 6, 1, authors_cifar),
        Contender("authors' NMT formula", 6, 1, authors_nmt),
        Contender(REFERENCE, 6, 1, lambda p: of(ACMo(p, lr=LR, foreach=False, fused=False))),
    ]


def of(opt: torch.optim.Optimizer, step: Callable[[], Any] | None = None) -> Instance:
    """An optimizer's own step, or one made from it."""
    return Instance(
        [p for group in opt.param_groups for p in group["params"]],
        opt.step if step is None else step,
        lambda: (x for state in opt.state.values() for x in state.values() if isinstance(x, Tensor)),
    )


def int8_rows(params: list[Tensor]) -> Instance:
    return of(RowACMo(params, lr=LR, fused=True, momentum_dtype=torch.int8))


def adamw_and_clip(params: list[Tensor]) -> Instance:
    opt = torch.optim.AdamW(params, lr=LR, fused=True)

    def step() -> None:
        clip_grad_norm_(params, MAX_NORM)
        opt.step()

    return of(opt, step)


def compiled_acmo(params: list[Tensor]) -> Instance:
    """As docs/scale.md says to compile it: the default backend, lr a Tensor."""
    torch.compiler.reset()  # each set is recompiled, and dynamo gives that up after a few
    opt = ACMo(params, lr=torch.tensor(LR))
    return of(opt, torch.compile(opt.step))


def plain_update(params: list[Tensor]) -> Instance:
    """``m = g + βm; θ −= αm`` in place: the kernel's pass 2 alone, with a fixed β.

    It also adds up Σm², which moves no memory.
    """
    kernel = native.kernel()
    if kernel is None:
        raise RuntimeError(f"the plain update needs the C kernel. {native.why_missing()}")
    moments = [torch.zeros_like(p) for p in params]
    grads = [p.grad for p in params if p.grad is not None]
    n = len(params)
    numel = array("q", (p.numel() for p in params))
    codes = array("q", (native.DTYPE_CODES[p.dtype] for p in params))
    p, m, g = (array("q", (x.data_ptr() for x in xs)) for xs in (params, moments, grads))
    coef = array("d", [1.0] * n + [0.0] * n + [0.9] * n + [1.0] * n + [LR] * n)
    update, threads = kernel.update, torch.get_num_threads()
    return Instance(params, lambda: update(numel, codes, codes, p, m, g, coef, threads), lambda: moments)


def authors_cifar(params: list[Tensor]) -> Instance:
    """Their CIFAR update, ``m = s (g + ‖g‖/(‖m‖+ε) m)``: plain torch operations, one norm a tensor, s = 0.5."""
    moments = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step() -> None:
        for p, m in zip(params, moments, strict=True):
            g = p.grad
            assert g is not None
            m.mul_(g.norm() / (m.norm() + 1e-8)).add_(g).mul_(0.5)
            p.add_(m, alpha=-LR)

    return Instance(params, step, lambda: moments)


def authors_nmt(params: list[Tensor]) -> Instance:
    """Their NMT update, one norm for all: a Python loop that adds up numbers, tensor by tensor, and s = 0.9."""
    moments = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step() -> None:
        norm_g = norm_m = 0.0
        for p, m in zip(params, moments, strict=True):
            g = p.grad
            assert g is not None
            norm_g += (g**2).sum().item()
            norm_m += (m**2).sum().item()
        ratio = norm_g**0.5 / (norm_m**0.5 + 1e-8)
        for p, m in zip(params, moments, strict=True):
            g = p.grad
            assert g is not None
            m.mul_(ratio).add_(g).mul_(0.9)
            p.add_(m, alpha=-LR)

    return Instance(params, step, lambda: moments)
