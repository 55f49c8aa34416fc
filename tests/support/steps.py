"""An optimizer after one step, and the same run twice: under a backend and the reference, or compiled and eager."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from acmo import ACMo
from tests.support.backends import REFERENCE


def stepped(backend, **options):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.1, **backend, **options)
    p.grad = torch.ones(3)
    opt.step()
    return p, opt


class Twins:
    """Run the same steps under a backend and under the reference."""

    def __init__(self, backend, **options):
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(4, 3, generator=generator) for _ in range(3)]
        self.params = [[nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        self.opts = [ACMo(p, lr=0.1, **b, **options) for p, b in zip(self.params, (backend, REFERENCE), strict=True)]
        self.generator = generator

    def step(self, t, step=None, without=()):
        for k, (p, q) in enumerate(zip(*self.params, strict=True)):
            g = torch.randn(p.shape, generator=self.generator) * 3.0 ** (t % 3)
            p.grad, q.grad = (None, None) if k in without else (g.clone(), g.clone())
        (step or self.opts[0].step)()
        self.opts[1].step()

    def assert_close(self):
        for p, q in zip(*self.params, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                *(o.state[x]["momentum_buffer"] for o, x in zip(self.opts, (p, q), strict=True)), rtol=1e-5, atol=1e-5
            )


def run_compiled(
    kind: type[ACMo], shapes: Sequence[tuple[int, ...]], steps: int
) -> tuple[list[Tensor], list[Tensor], int]:
    """Take the same steps compiled and eager, with an lr that falls.

    Args:
      kind: the optimizer.
      shapes: of the parameters.
      steps: how many.

    Returns:
      The parameters after the compiled steps and after the eager ones, and how many graphs were compiled.
    """
    torch._dynamo.reset()
    first = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    one, other = (kind(params, lr=torch.tensor(0.1), weight_decay=0.1) for params in (first, second))
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(one.step, fullgraph=True, backend=counter)
    for t in range(steps):
        for opt in (one, other):
            opt.param_groups[0]["lr"].fill_(0.1 / (t + 1))
        for p, q in zip(first, second, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        step()
        other.step()
    return list(first), list(second), counter.frame_count
