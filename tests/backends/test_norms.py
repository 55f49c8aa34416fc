"""Sums of squares: precise at any size, for any layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acmo.backends import foreach as norms
from acmo.backends import tensor_layout


@pytest.mark.parametrize("numel", [1, 1023, 1024, 1025, 2**18 + 3, 3_000_000])
@pytest.mark.parametrize("fill", ["constant", "normal", "skewed"])
def test_a_float32_sum_of_squares_is_right_to_a_millionth(numel, fill):
    torch.manual_seed(0)
    x = {"constant": torch.full((numel,), 1.1), "normal": torch.randn(numel), "skewed": torch.randn(numel).abs() ** 3}
    truth = x[fill].double().square().sum()
    assert abs(norms.sum_squares([x[fill]])[0] / truth - 1) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_summed_as_precisely(dtype):
    x = torch.randn(300_000).to(dtype)
    assert abs(norms.sum_squares([x])[0] / x.double().square().sum() - 1) < 1e-6


def test_a_tensors_sum_has_the_same_bits_alone_and_among_others():
    xs = [torch.randn(n) for n in (3, 5000, 1024, 0, 100_000)]
    assert torch.equal(norms.sum_squares(xs), torch.stack([norms.sum_squares([x])[0] for x in xs]))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(40, -1),
        lambda x: x.view(5, 4, 6, 10).to(memory_format=torch.channels_last),
        lambda x: x[3, 4],
        lambda x: x[:0],
    ],
)
def test_every_layout_counts_every_entry_once(view):
    x = view(torch.randn(20, 60))
    assert norms.sum_squares([x])[0].item() == pytest.approx(x.double().square().sum().item(), rel=1e-6)


def test_inner_products_are_precise_beside_large_ones():
    x, y = torch.randn(100_000), torch.randn(100_000)
    got, truth = norms.sum_products([x], [y])[0], torch.dot(x.double(), y.double())
    assert abs(got - truth) < 1e-6 * x.norm() * y.norm()


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_a_permuted_tensor_is_dense_and_a_cut_one_is_not(order, shape):
    x = torch.zeros(shape).permute(*order)
    assert tensor_layout.is_dense(x)
    wide = torch.zeros(*shape[:-1], 2 * shape[-1] + 2)[..., : shape[-1] + 1]
    assert tensor_layout.is_dense(wide) == (wide.numel() == shape[-1] + 1)
