"""What the reference keeps of a step: copies of θ, g and m, and which of their entries share a norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acmo.quantise import dequantise, quantise
from acmo.rounding import find_seed, index_entries, round_randomly, rounds_randomly
from acmo.scopes import ROW_KINDS
from acmo.step_data import GroupOptions, Part, StepOptions

FLOAT16_MAX = torch.finfo(torch.float16).max


@dataclass
class Block:
    """One tensor's block of the vectors θ, g and m: copies, so that nothing is changed that autograd has saved."""

    part: Part
    j: int  # position in the part
    group: GroupOptions
    theta: Tensor
    g: Tensor
    m: Tensor


@dataclass
class Scope:
    """What shares its norms: all entries of some blocks, or by row (``dims``) the entries of each row of one block."""

    t: float
    members: list[int]  # positions of the blocks
    dims: tuple[int, ...] | None  # that norms are taken over, by row
    entries: int  # n of the unit step


def copy_blocks(parts: Sequence[Part], groups: Sequence[GroupOptions]) -> list[Block]:
    """Copy θ, the gradient and m of every tensor, in the precision of the arithmetic."""
    blocks: list[Block] = []
    for part in parts:
        for j, (p, g, m) in enumerate(zip(part.params, part.grads, part.moments, strict=True)):
            is_double = p.dtype == torch.float64 or (part.scope in ROW_KINDS and m.dtype == torch.float64)
            dtype = torch.float64 if is_double else torch.float32
            copies = p.clone().to(dtype), g.clone().to(dtype), m.clone().to(dtype)
            blocks.append(Block(part, j, groups[part.group], *copies))
            if part.moment_scales:
                blocks[-1].m = dequantise(m, part.moment_scales[j], dtype)
    return blocks


def find_scopes(blocks: Sequence[Block], groups: Sequence[GroupOptions]) -> list[Scope]:
    """Return the scopes, each with its t: one more than the newest step of its parameters, with a gradient or not."""
    keys = [{"global": 0, "group": x.part.group}.get(x.part.scope, n) for n, x in enumerate(blocks)]
    scopes = []
    for key in dict.fromkeys(keys):
        members = [n for n, k in enumerate(keys) if k == key]
        x = blocks[members[0]]
        idle = {"group": [groups[x.part.group]], "global": groups}.get(x.part.scope, [])
        steps = [blocks[n].part.steps[blocks[n].j] for n in members] + [t for group in idle for t in group.idle_steps]
        owner = x.part.owners[x.j]
        first = {"row": 1, "whole": 0, "column": 0, "spectral": 0}.get(x.part.scope)
        dims = None if first is None else tuple(range(first, x.theta.ndim))
        entries = sum([blocks[n].part.owners[blocks[n].j].numel() for n in members])
        if x.part.scope == "row":
            entries = math.prod(owner.shape[1:])
        elif x.part.scope == "column":
            dims, entries = ((0, 2) if owner.is_complex() else (0,)), owner.shape[0]
        scopes.append(Scope(1 + max(map(float, steps)), members, dims, entries))
    return scopes


def find_previous(x: Block, blocks: Sequence[Block], options: StepOptions, shape: torch.Size) -> Tensor:
    """Return β̂_prev: the tensor's own by row and at tensor scope, else that of the newest step in its group."""
    if x.part.scope in ROW_KINDS:
        return x.part.beta_hats[x.j].clone().view(shape)
    alone = options.norm_scope == "tensor"
    mine = [x] if alone else [y for y in blocks if y.part.group == x.part.group]
    steps = torch.stack([y.part.steps[y.j] for y in mine] + ([] if alone else x.group.idle_steps))
    beta_hats = torch.cat([y.part.beta_hats[y.j] for y in mine] + ([] if alone else x.group.idle_beta_hats))
    return beta_hats[steps == steps.max()].max()


def find_nonfinite(blocks: Sequence[Block], sums: Tensor) -> tuple[int, int] | None:
    """Return group and position of the first gradient that is not finite; None if it is another rank's."""
    bad = [x for x, finite in zip(blocks, torch.isfinite(sums).tolist(), strict=True) if not finite]
    return min([(x.part.group, x.part.indices[x.j]) for x in bad], default=None)


def store(x: Block, t: float, moves: Tensor) -> None:
    """Write θ, m and t; int8 only in rows that move. A float16 m saturates: an infinite one would become NaN."""
    p = x.part.params[x.j]
    if x.group.first_number is not None and rounds_randomly(x.part, x.group):
        seed = find_seed(x.part, x.group, x.j)
        p.copy_(round_randomly(x.theta, seed, index_entries(p, x.part.owners[x.j])))
    else:
        p.copy_(x.theta)
    x.part.steps[x.j].fill_(t)
    m = x.part.moments[x.j]
    if x.part.moment_scales:
        scale = x.part.moment_scales[x.j]
        quantise(x.m, m, scale, moves.flatten(1).any(1).expand(len(scale)))
    else:
        m.copy_(x.m.clamp(-FLOAT16_MAX, FLOAT16_MAX) if m.dtype == torch.float16 else x.m)
