"""PyTorch and the optax twin on the same arrays, each stored its own way, given the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import Tensor

from acmo import ACMo, RowACMo
from tests.support.jax_suites import stepper

Tree = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
# By row, as PyTorch stores them; the twin gets them with the first axis last.
ROW_SHAPES: Shapes = {
    "bias": (5,), "edge": (24, 3), "filters": (4, 3, 2, 2), "head": (40, 4), "kernel": (5, 7), "narrow": (6, 1),
    "one": (1, 6), "scale": (), "wide": (3, 30),
}  # fmt: skip


def draw(shapes: Shapes, seed: int, dtype: type = np.float64) -> Iterator[Tree]:
    """Trees of deviates, of a size that changes from one to the next."""
    rng = np.random.default_rng(seed)
    while True:
        trees = [{k: np.exp(rng.normal()) * rng.standard_normal(s) for k, s in shapes.items()} for _ in range(2)]
        is_complex = np.issubdtype(dtype, np.complexfloating)
        yield {k: np.asarray(x + 1j * trees[1][k] if is_complex else x, dtype) for k, x in trees[0].items()}


def turn(x: Any) -> Any:
    """Turn (out, in, …) into (in, …, out)."""
    return np.moveaxis(x, 0, -1) if np.ndim(x) > 1 else x


class Pair:
    """An optimizer of PyTorch and its twin; the keys of ``shapes`` are in the order of their names."""

    def __init__(
        self,
        shapes: Shapes,
        build: Callable[[list[Tensor]], ACMo],
        twin: Any,
        dtype: type = np.float64,
        turned: bool = True,
    ) -> None:
        self.grads = draw(shapes, 1, dtype)
        start = next(draw(shapes, 0, dtype))
        self.turn = turn if turned else lambda x: x
        self.torch = {k: torch.tensor(x, requires_grad=True) for k, x in start.items()}
        self.opt = build(list(self.torch.values()))
        self.params = {k: jnp.asarray(self.turn(x)) for k, x in start.items()}
        self.state = twin.init(self.params)
        self.step_twin = stepper(twin)

    def step(self, grads: Tree | None = None) -> None:
        grads = next(self.grads) if grads is None else grads
        for k, p in self.torch.items():
            p.grad = torch.tensor(grads[k])
        self.opt.step()
        grads = {k: jnp.asarray(self.turn(g)) for k, g in grads.items()}
        self.params, self.state = self.step_twin(self.params, self.state, grads)

    def assert_equal(self, tolerance: float = 1e-10) -> None:
        """Compare parameters, moments and angles; PyTorch's are NaN where no row took part."""
        mu, angles = (optax.tree.get(self.state, key) for key in ("mu", "angles"))
        for k, p in self.torch.items():
            m = self.opt.state[p]["momentum_buffer"].numpy()
            np.testing.assert_allclose(self.params[k], self.turn(p.detach().numpy()), tolerance, tolerance, err_msg=k)
            np.testing.assert_allclose(mu[k], self.turn(m), tolerance, tolerance, err_msg=k)
        order = [id(p) for group in self.opt.param_groups for p in group["params"]]
        by_param = dict(zip(order, self.opt.telemetry()["tensors"], strict=True))
        reports = [by_param[id(p)] for p in self.torch.values()]
        for key, found in angles._asdict().items():
            expected = np.nan_to_num([report[key] for report in reports])
            np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=key)


def make_row_pair(twin: Any, dtype: type = np.float64, turned: bool = True, **options: Any) -> Pair:
    """Return RowACMo and its twin on `ROW_SHAPES`."""
    return Pair(ROW_SHAPES, lambda params: RowACMo(params, foreach=True, **options), twin, dtype, turned)
