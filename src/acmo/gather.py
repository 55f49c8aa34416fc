"""From parameter groups to the parts of a step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from acmo import sharding
from acmo.newton_schulz import limit_entries
from acmo.scopes import resolve_kind
from acmo.state_tensors import complete_state
from acmo.step_data import Part, Shards, view_as_real

PLAIN_TYPES = {Tensor, Parameter}


class GroupLists(NamedTuple):
    """The tensors of one parameter group in a step; the idle parameters have state, but no gradient."""

    params: list[Tensor]
    grads: list[Tensor]
    moments: list[Tensor]
    steps: list[Tensor]
    beta_hats: list[Tensor]
    scales: list[Tensor | None]  # of int8 moments
    indices: list[int]
    idle_params: list[Tensor]
    idle_steps: list[Tensor]
    idle_beta_hats: list[Tensor]


def fill_lists(group: dict[str, Any], states: Mapping[Tensor, Any], lists: GroupLists) -> None:
    """Fill the lists from a group, and create state where there is none."""
    keeps_beta_hat = group["psi"] != "identity"
    for i, p in enumerate(group["params"]):
        if p.grad is not None:
            own = states[p]
            lists.params.append(p)
            lists.grads.append(p.grad)
            lists.moments.append(complete_state(own, p, group))
            lists.steps.append(own["step"])
            if keeps_beta_hat:
                lists.beta_hats.append(own["beta_hat"])
            lists.scales.append(own.get("momentum_scale"))
            lists.indices.append(i)
        elif own := states.get(p):
            complete_state(own, p, group)
            lists.idle_params.append(p)
            lists.idle_steps.append(own["step"])
            if keeps_beta_hat:
                lists.idle_beta_hats.append(own["beta_hat"])


def split_into_parts(k: int, group: dict[str, Any], lists: GroupLists, *, by_row: bool) -> list[Part]:
    """Split the lists of group k so that the tensors of a part agree in device, dtypes, sharding and scope.

    ``by_row``: some group goes by row; then a tensor at tensor scope is one row.
    """
    scopes = [resolve_kind(group, p) for p in lists.params]
    scopes = ["whole" if by_row and scope == "tensor" else scope for scope in scopes]
    params, grads, moments = list(lists.params), list(lists.grads), list(lists.moments)
    shards: list[Shards] = [()] * len(params)
    all_shards = shards
    if not torch.compiler.is_compiling():
        if not PLAIN_TYPES.issuperset(map(type, params)):
            all_shards = [sharding.sharding_groups(p) if sharding.is_dtensor(p) else () for p in params]
            shards = sharding.take_local_shards(params, grads, moments, scopes)
        grads = [g.to_dense() if g.is_sparse else g for g in grads]  # m is dense, and every entry of θ moves anyway
        check_shapes(params, grads, moments)
    kinds: dict[Any, list[int]] = {}
    for j, (p, m) in enumerate(zip(params, moments, strict=True)):
        kinds.setdefault((p.device, p.dtype, m.dtype, shards[j], all_shards[j], scopes[j]), []).append(j)
    batches = [own for kind, positions in kinds.items() for own in split_matrices(kind, positions, params)]
    return [
        Part(
            group=k,
            indices=tuple([lists.indices[j] for j in positions]),
            owners=[lists.params[j] for j in positions],
            params=view_as_real([params[j] for j in positions]),
            grads=view_as_real([grads[j] for j in positions]),
            moments=view_as_real([moments[j] for j in positions]),
            steps=[lists.steps[j] for j in positions],
            beta_hats=[sharding.local(lists.beta_hats[j]) for j in positions] if lists.beta_hats else [],
            shards=shards[positions[0]],
            all_shards=all_shards[positions[0]],
            scope=scopes[positions[0]],
            moment_scales=[sharding.local(lists.scales[j]) for j in positions if lists.scales[j] is not None],
        )
        for positions in batches
    ]


def split_matrices(kind: tuple[Any, ...], positions: list[int], params: Sequence[Tensor]) -> list[list[int]]:
    """Cut the positions of spectral matrices so that a part is small: its temporaries are, and caches hold it.

    Matrices of one shape stay together. Other kinds are not cut, nor are matrices that are cut over ranks: one message
    has them all.
    """
    device, *_, shards, _, scope = kind
    if scope != "spectral" or shards:
        return [positions]
    most = limit_entries(device)
    first = {shape: j for j, shape in reversed([(j, params[j].shape) for j in positions])}
    batches: list[list[int]] = []
    size = most
    for j in sorted(positions, key=lambda j: (first[params[j].shape], j)):
        size += params[j].numel()
        if size > most:
            batches.append([])
            size = params[j].numel()
        batches[-1].append(j)
    return batches


def check_shapes(params: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Tensor]) -> None:
    """Raise unless parameter, gradient and moment agree in shape: the backends rely on it."""
    for p, g, m in zip(params, grads, moments, strict=True):
        if not p.shape == g.shape == m.shape:
            raise RuntimeError(
                f"a parameter of shape {tuple(p.shape)} has a gradient of shape {tuple(g.shape)} and a "
                f"momentum_buffer of shape {tuple(m.shape)}: was its data replaced? Then clear optimizer.state[p]"
            )
