"""From parameter groups to the parts of a step, and a cache that lets later steps skip the look at every state."""

from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter, is_, is_not, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from acmo import sharding
from acmo.options import read_edited
from acmo.scopes import ROW_KINDS, ROW_SCOPES, resolve_kind
from acmo.state_tensors import complete_state
from acmo.step_data import GroupOptions, Part, Shards, StepRecord, view_as_real

PLAIN_TYPES = {Tensor, Parameter}
get_grad, get_version, get_shape = attrgetter("grad"), attrgetter("_version"), attrgetter("shape")
get_device, get_dtype, get_is_sparse = attrgetter("device"), attrgetter("dtype"), attrgetter("is_sparse")
get_moment, get_step, get_beta_hat = itemgetter("momentum_buffer"), itemgetter("step"), itemgetter("beta_hat")


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
        for positions in kinds.values()
    ]


def check_shapes(params: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Tensor]) -> None:
    """Raise unless parameter, gradient and moment agree in shape: the backends rely on it."""
    for p, g, m in zip(params, grads, moments, strict=True):
        if not p.shape == g.shape == m.shape:
            raise RuntimeError(
                f"a parameter of shape {tuple(p.shape)} has a gradient of shape {tuple(g.shape)} and a "
                f"momentum_buffer of shape {tuple(m.shape)}: was its data replaced? Then clear optimizer.state[p]"
            )


def read_options(group: dict[str, Any], lists: GroupLists, first_number: int) -> GroupOptions:
    """Read a group's numbers, which schedulers change between steps; ``first_number`` is its first parameter's."""
    lr, decay, decoupled = group["lr"], group["weight_decay"], group["decoupled_weight_decay"]
    lr = lr.reshape(()) if isinstance(lr, Tensor) and lr.ndim else lr
    lr = lr if group["lr_scale"] == 1 else lr * group["lr_scale"]
    return GroupOptions(
        lr,
        group["momentum"],
        group["delta"],
        0.0 if decoupled else decay,
        decoupled,
        1 - lr * decay if decoupled else 1.0,
        group["maximize"],
        lists.idle_steps,
        lists.idle_beta_hats,
        first_number if group["stochastic_rounding"] else None,
    )


class CachedGroup:
    """The parts of one parameter group as the last step left them, with ‖m‖² of every moment.

    They are valid while the same parameters have gradients, their states hold the same tensors, and no version counter
    of a moment has changed. A moment that is edited through ``.data`` or NumPy changes no counter: the next step scales
    it by its old norm.
    """

    def __init__(self, group: dict[str, Any], lists: GroupLists, parts: list[Part]) -> None:
        self.lists, self.parts = lists._replace(grads=[]), parts  # a cache must not keep gradients alive
        self.params: list[Tensor] = list(group["params"])
        self.has_grad = list(map(is_not, map(get_grad, self.params), repeat(None)))
        self.options = read_edited(group)
        self.stateful = lists.params + lists.idle_params
        self.steps = lists.steps + lists.idle_steps
        self.beta_hats = lists.beta_hats + lists.idle_beta_hats
        self.kinds = list_kinds(lists, parts)
        # A complex parameter's part holds views of it, and a DTensor's its local shard: both are made at every step.
        tensors = lists.params + lists.moments
        self.holds_parameters = PLAIN_TYPES.issuperset(map(type, tensors)) and not any(map(Tensor.is_complex, tensors))
        self.by_row = group["norm_scope"] in ROW_SCOPES  # nothing is cached of a moment
        self.version_sum = -1  # until a step has left ‖m‖² behind

    def recall(
        self, k: int, group: dict[str, Any], states: Mapping[Tensor, Any]
    ) -> tuple[list[Part], GroupLists] | None:
        """Return the group's parts with the gradients of this step; None unless the cache is valid.

        The loops run in C: with a thousand small tensors this is a good part of a step.
        """
        params, lists = group["params"], self.lists
        grads = list(map(get_grad, params))
        try:
            own: list[Any] = list(map(states.get, self.stateful))
            valid = (
                len(params) == len(self.params)
                and all(map(is_, params, self.params))
                and list(map(is_not, grads, repeat(None))) == self.has_grad
                and all(map(is_, map(get_moment, own), lists.moments))
                and all(map(is_, map(get_step, own), self.steps))
                and all(map(is_, map(get_beta_hat, own if self.beta_hats else ()), self.beta_hats))
                # A sum: version counters never decrease.
                and (self.by_row or sum(map(get_version, lists.moments)) == self.version_sum)
                and read_edited(group) == self.options
                and list_kinds(lists, self.parts) == self.kinds  # p.data = … changes nothing above
            )
        except (KeyError, TypeError):  # no state, or not all of it
            return None
        if not valid:
            return None
        grads = grads if len(grads) == len(lists.params) else list(compress(grads, self.has_grad))
        if not self.holds_parameters or any(map(get_is_sparse, grads)):
            lists = lists._replace(grads=grads)
            fresh = split_into_parts(k, group, lists, by_row=self.parts[0].scope in ROW_KINDS)
            return [new._replace(moment_sqs=old.moment_sqs) for new, old in zip(fresh, self.parts, strict=True)], lists
        shapes = list(map(get_shape, lists.params))
        if shapes != list(map(get_shape, grads)) or shapes != list(map(get_shape, lists.moments)):
            check_shapes(lists.params, grads, lists.moments)
        if len(self.parts) == 1:
            only = self.parts[0]
            params, moments, steps, beta_hats = lists.params, lists.moments, lists.steps, lists.beta_hats
            kept = (only.moment_sqs, (), (), only.scope, only.moment_scales)
            return [Part(k, only.indices, params, params, grads, moments, steps, beta_hats, *kept)], lists
        by_index = dict(zip(lists.indices, grads, strict=True))
        return [part._replace(group=k, grads=[by_index[i] for i in part.indices]) for part in self.parts], lists

    def remember(self, parts: Sequence[Part], squares: Sequence[Any]) -> None:
        """Keep ‖m‖² of every moment, but no gradient."""
        self.parts = []
        for p, own in zip(parts, squares, strict=True):
            none: list[Tensor] = []  # not _replace, which takes three times as long
            state = (p.moments, p.steps, p.beta_hats, own, p.shards, p.all_shards, p.scope, p.moment_scales)
            self.parts.append(Part(p.group, p.indices, p.owners, p.params, none, *state))
        self.version_sum = sum(map(get_version, self.lists.moments))


def list_kinds(lists: GroupLists, parts: Sequence[Part]) -> list[Any]:
    """List devices and dtypes of parameters and moments: as sets where all agree, which is quicker to compare."""
    collect = set if len(parts) == 1 else list
    devices = map(get_device, lists.params + lists.moments)
    return [collect(devices), collect(map(get_dtype, lists.params)), collect(map(get_dtype, lists.moments))]


class PartCache:
    """The cached groups of an optimizer, by the id of the group's dict."""

    def __init__(self) -> None:
        self.groups: dict[int, CachedGroup] = {}

    def enter(
        self, group: dict[str, Any], lists: GroupLists, parts: list[Part], groups: Sequence[dict[str, Any]]
    ) -> None:
        """Keep a group's parts, and let go of the groups that were removed."""
        self.groups[id(group)] = CachedGroup(group, lists, parts)
        if len(self.groups) > len(groups):
            alive = set(map(id, groups))
            self.groups = {key: cached for key, cached in self.groups.items() if key in alive}

    def remember_norms(self, groups: Sequence[dict[str, Any]], parts: Sequence[Part], record: StepRecord) -> None:
        """Keep ‖m‖² of every moment as a step has left it; by row there is nothing to keep."""
        squares, start = record.moment_sqs, 0
        if len(parts) == 1:
            known = None if parts[0].scope in ROW_KINDS else squares
            self.groups[id(groups[parts[0].group])].remember(parts, [known])
            return
        by_group: dict[int, tuple[list[Part], list[Any]]] = {}
        for part in parts:
            if part.scope in ROW_KINDS:
                by_group.setdefault(part.group, ([], []))[0].append(part)
                by_group[part.group][1].append(None)
                continue
            own, own_squares = by_group.setdefault(part.group, ([], []))
            own.append(part)
            own_squares.append(squares[start : start + len(part.params)])
            start += len(part.params)
        for k, (own, own_squares) in by_group.items():
            self.groups[id(groups[k])].remember(own, own_squares)
