"""What a step by row reports on foreach: sums and cosines of each tensor, from the norms of its rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from acmo.backends.row_layout import Rows
from acmo.step_data import RowNorms


class RowVectors(NamedTuple):
    """What is known of every row of a part after its step."""

    G_raw: Tensor
    G: Tensor
    M: Tensor
    N: Tensor
    kept: Tensor  # ‖m_t − g‖
    ones: Tensor
    moves: Tensor
    stays: Tensor
    has_moment: Tensor  # and moves
    rests: Tensor  # stays, or ‖m_t‖ is rounding
    skips: Tensor
    cosines: Tensor | None  # between step and gradient, where they do not follow from the norms: of spectral steps


def measure_rows(x: RowVectors, rows: Rows) -> RowNorms:
    """Return the sums and cosines of each tensor, over the rows that moved.

    ⟨m_t, g⟩ and ⟨m_{t−1}, g⟩ follow from the norms.
    """
    squares = torch.stack((x.G_raw, x.G, x.M, x.N, x.kept)).square()
    G_sq, N_sq, kept_sq = squares[1], squares[3], squares[4]
    twice = N_sq - (G_sq + kept_sq)  # 2⟨m_t − g, g⟩
    turned = torch.lt(twice, 0) & x.has_moment
    cos = torch.add(G_sq, twice, alpha=0.5) / (x.G * x.N) if x.cosines is None else x.cosines
    cos = cos.masked_fill(x.rests, 0.0)
    sums = squares[:4].masked_fill(x.stays, 0.0)
    table = torch.stack((*sums.unbind(), x.ones, x.moves, x.skips, cos, turned))
    raw, grad, before, after, count, took_part, skipped, cos_sum, turned_rows = torch.stack(
        [own.sum(1) for own in torch.split(table, rows.sizes, dim=1)], dim=1
    ).unbind()
    lowest = torch.split(cos.masked_fill(x.stays, torch.inf), rows.sizes)
    cos_min = torch.stack([own.min() if own.numel() else own.new_full((), torch.inf) for own in lowest])
    return RowNorms(raw, grad, before, after, count, took_part, skipped, cos_min, cos_sum, turned_rows)
