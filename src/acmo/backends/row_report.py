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
    stays: Tensor
    lacks_moment: Tensor  # or stays
    vanishes: Tensor | None  # ‖m_t‖ is rounding; None: of no row
    skips: Tensor
    cosines: Tensor | None  # between step and gradient, where they do not follow from the norms: of spectral steps


def measure_rows(x: RowVectors, rows: Rows) -> RowNorms:
    """Return the sums and cosines of each tensor, over the rows that moved.

    ⟨m_t, g⟩ and ⟨m_{t−1}, g⟩ follow from the norms.
    """
    squares = torch.stack((x.G_raw, x.G, x.M, x.N, x.kept)).square()
    raw_sq, G_sq, M_sq, N_sq, kept_sq = squares.unbind()
    gained = N_sq - kept_sq  # ‖g‖² + 2⟨m_t − g, g⟩
    turned = torch.lt(gained, G_sq).masked_fill_(x.lacks_moment, False)
    cos = torch.lerp(G_sq, gained, 0.5) / (x.G * x.N) if x.cosines is None else x.cosines
    cos = cos if x.vanishes is None else cos.masked_fill(x.vanishes, 0.0)
    table = torch.stack((raw_sq, G_sq, M_sq, N_sq, cos, x.ones, turned, x.ones, x.skips))
    table[:7].masked_fill_(x.stays, 0.0)
    raw, grad, before, after, cos_sum, took_part, turned_rows, count, skipped = join_columns(
        [own.sum(1) for own in torch.split(table, rows.sizes, dim=1)]
    ).unbind()
    lowest = torch.split(table[4].masked_fill(x.stays, torch.inf), rows.sizes)
    cos_min = join_columns([own.min() if own.numel() else own.new_full((), torch.inf) for own in lowest])
    return RowNorms(raw, grad, before, after, count, took_part, skipped, cos_min, cos_sum, turned_rows)


def join_columns(columns: list[Tensor]) -> Tensor:
    """Return tensors of one shape as a new last axis."""
    return torch.stack(columns, dim=-1) if len(columns) > 1 else columns[0].unsqueeze(-1)
