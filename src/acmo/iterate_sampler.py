"""Algorithm 1's return line: an iterate drawn with probability proportional to its step size."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class IterateSampler:
    r"""Draw what one of the steps left behind, in one pass and with one copy of the parameters.

    After N steps, the parameters that step s left behind are held with probability :math:`\alpha_s / \sum_i \alpha_i`
    (a weighted reservoir; α is the first group's lr; steps that the optimizer skipped do not count). Theorem 4.1 is a
    statement about this iterate. It works with any ``torch.optim.Optimizer``.

    Args:
      optimizer: the optimizer to follow; a step post hook is registered with it.
      seed: of the draw; two samplers with the same seed and steps draw the same iterate.

    Example:
      >>> import torch, acmo
      >>> w = torch.nn.Parameter(torch.ones(2))
      >>> opt = acmo.ACMo([w], lr=0.1)
      >>> sampler = acmo.IterateSampler(opt, seed=0)
      >>> for _ in range(3):
      ...     opt.zero_grad()
      ...     w.square().sum().backward()
      ...     opt.step()
      >>> 1 <= sampler.step <= sampler.steps == 3
      True
      >>> [tuple(x.shape) for x in sampler.sample()]
      [(2,)]
    """

    def __init__(self, optimizer: Optimizer, seed: int = 0) -> None:
        self.optimizer = optimizer
        self.steps = 0  # counted so far
        self.step = 0  # the one that is held
        self._total = 0.0
        self._held: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(seed)
        self._note_taken()
        self._handles = [
            optimizer.register_step_post_hook(lambda *_: self._after_step()),
            optimizer.register_load_state_dict_post_hook(lambda *_: self._note_taken()),  # its count starts again
        ]

    def sample(self) -> list[Tensor]:
        """Return the drawn iterate: a copy of each parameter, in the order of the param groups."""
        if not self._held:
            raise RuntimeError("IterateSampler has seen no step yet: call optimizer.step() first")
        return [x.clone() for x in self._held]

    @torch.no_grad()
    def restore(self) -> None:
        """Write the drawn iterate into the optimizer's parameters."""
        for parameter, value in zip(self._parameters(), self.sample(), strict=True):
            parameter.copy_(value)

    def remove(self) -> None:
        """Remove the sampler from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to draw as the unbroken one would."""
        return {
            "steps": self.steps,
            "step": self.step,
            "total": self._total,
            "held": [x.clone() for x in self._held],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`, before or after the optimizer's own is loaded."""
        shapes = [tuple(p.shape) for p in self._parameters()]
        if state["held"] and [tuple(x.shape) for x in state["held"]] != shapes:
            raise ValueError(f"the state holds {[tuple(x.shape) for x in state['held']]}, the optimizer has {shapes}")
        self.steps, self.step, self._total = state["steps"], state["step"], state["total"]
        self._held = [x.to(p, copy=True) for x, p in zip(state["held"], self._parameters(), strict=False)]
        self._generator.set_state(state["generator"].cpu())
        self._note_taken()

    def __reduce__(self) -> Any:
        raise TypeError("an IterateSampler follows its optimizer and cannot be copied or pickled: use its state_dict()")

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _note_taken(self) -> None:
        """Note how many steps were taken; None if the optimizer does not count them: then every call is one."""
        log = getattr(self.optimizer, "_step_log", None)
        self._taken: int | None = None if log is None else log.count_steps()

    @torch.no_grad()
    def _after_step(self) -> None:
        before = self._taken
        self._note_taken()
        if before is not None and self._taken == before:
            return  # skipped, or without a gradient, or only making state
        self.steps += 1
        alpha = float(self.optimizer.param_groups[0]["lr"])
        self._total += alpha
        draw = torch.rand((), dtype=torch.float64, generator=self._generator).item()
        # The first step is held whatever its weight, so that there always is something to return.
        if draw * self._total < alpha or not self._held:
            self.step = self.steps
            parameters = self._parameters()
            if [(x.shape, x.dtype) for x in self._held] != [(p.shape, p.dtype) for p in parameters]:
                self._held = [p.detach().clone() for p in parameters]
            else:
                for held, parameter in zip(self._held, parameters, strict=True):
                    held.copy_(parameter)
