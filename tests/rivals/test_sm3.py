"""SM3: the memory it promises, the bound it keeps, and two second opinions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from acmo.rivals import SM3
from tests.support.rival_twins import assert_alike, twins


def state_bytes(optimizer: SM3) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)}  # fmt: skip
    return sum(storages.values())


@pytest.mark.parametrize("shape", [(1000, 500), (64, 32, 3, 3), (77,), ()], ids=str)
def test_state_without_momentum_has_the_sum_of_dimensions(shape: tuple[int, ...]):
    p = nn.Parameter(torch.randn(shape))
    p.grad = torch.randn_like(p)
    optimizer = SM3([p], momentum=0.0)
    optimizer.step()
    assert state_bytes(optimizer) == 4 * (sum(shape) or 1)
    with_momentum = SM3([p], momentum=0.9)
    with_momentum.step()
    assert state_bytes(with_momentum) == 4 * ((sum(shape) or 1) + p.numel())


def test_for_vectors_it_is_adagrad():
    one, two = twins(7)
    ours = SM3([one], lr=0.1, momentum=0.0, weight_decay=0.1)
    assert_alike(ours, torch.optim.Adagrad([two], lr=0.1, eps=0.0, weight_decay=0.1), rtol=1e-12)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_denominator_never_shrinks_nor_falls_below_adagrads(shape: list[int], seed: int):
    """Claim 2 of the paper."""
    generator = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = SM3([p], momentum=0.0)
    total, last = torch.zeros_like(p), torch.zeros_like(p)
    for _ in range(5):
        p.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        total = total + p.grad.square()
        optimizer.step()
        nu = torch.stack([optimizer.state[p][f"accumulator_{i}"].expand(shape) for i in range(len(shape))]).amin(0)
        assert (nu >= total * (1 - 1e-12)).all()
        assert (nu >= last).all()
        last = nu


def test_a_gradient_that_was_always_zero_moves_nothing():
    p = nn.Parameter(torch.ones(3, 2))
    optimizer = SM3([p])
    p.grad = torch.zeros(3, 2)
    optimizer.step()
    assert torch.equal(p, torch.ones(3, 2))
    p.grad[0] = 1.0
    optimizer.step()
    assert (p[0] < 1).all()
    assert torch.equal(p[1:], torch.ones(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (5,), ()], ids=str)
def test_pytorch_optimizer_agrees(shape: tuple[int, ...]):
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    one, two = twins(*shape)
    assert_alike(SM3([one], lr=0.1, momentum=0.8), pytorch_optimizer.SM3([two], lr=0.1, momentum=0.8))


@pytest.mark.slow
def test_optax_agrees():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    p = nn.Parameter(torch.randn(4, 3))
    ours, theirs = SM3([p], lr=0.1, momentum=0.9), optax.chain(optax.scale_by_sm3(0.9, 1.0, 1e-30), optax.scale(-0.1))
    x = jax.numpy.asarray(p.detach().numpy().copy())
    state = theirs.init(x)
    for _ in range(10):
        p.grad = torch.randn_like(p)
        updates, state = theirs.update(jax.numpy.asarray(p.grad.numpy()), state, x)
        x = optax.apply_updates(x, updates)
        ours.step()
        assert_close(p.detach(), torch.tensor(x.tolist()), rtol=1e-5, atol=1e-5)


def test_complex_parameters_are_an_error():
    with pytest.raises(ValueError, match=r"real.*complex64"):
        SM3([nn.Parameter(torch.zeros(3, dtype=torch.complex64))])
