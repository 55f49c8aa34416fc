"""What one step leaves to the next: the parts of every group with their norms, and the record that is reported."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress, islice, repeat
from operator import attrgetter, is_, is_not, itemgetter, methodcaller
from typing import Any

import torch
from torch import Tensor

from acmo.gather import PLAIN_TYPES, GroupLists, check_shapes, split_into_parts
from acmo.options import read_edited
from acmo.scopes import ROW_KINDS, ROW_SCOPES, resolve_kind
from acmo.state_tensors import moment_dtype
from acmo.step_data import (
    NORM_ROWS,
    RAW_GRAD_SQ,
    GroupOptions,
    Layout,
    Part,
    RowNorms,
    StepRecord,
    complete,
    scalar_dtype,
    select,
)

# Private to torch, and wrong arguments would crash it: only for the version that it was tested with. Elsewhere every
# attribute of every tensor is read at every step.
make_guards: Any = None
if torch.__version__.startswith("2.13."):
    make_guards = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)

KEPT_RECORDS = 4  # of other sets of parameters
MAX_LAYOUTS = 3  # of one set of parameters: gradients whose strides keep changing, or that are shared, have none
get_grad, get_version = attrgetter("grad"), attrgetter("_version")
get_device, get_dtype, get_is_sparse = attrgetter("device"), attrgetter("dtype"), attrgetter("is_sparse")
get_moment, get_step, get_beta_hat = itemgetter("momentum_buffer"), itemgetter("step"), itemgetter("beta_hat")
get_scale = methodcaller("get", "momentum_scale")


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


def watch_layouts(tensors: Sequence[Tensor]) -> Layout | None:
    """Return the layout of tensors; None where this torch cannot compare others with it in one call.

    One call takes a fifth of the time that reading the attributes does.
    """
    if make_guards is None:
        return None
    sizes, strides = ([list(get(x)) for x in tensors] for get in (Tensor.size, Tensor.stride))
    return Layout(make_guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check)


class CachedGroup:
    """The parts of one parameter group as the last step left them, with ‖m‖² of every moment.

    They are valid while the same parameters have gradients, their states hold the same tensors, and no version counter
    of a moment has changed. A moment that is edited through ``.data`` or NumPy changes no counter: the next step scales
    it by its old norm.
    """

    def __init__(
        self, group: dict[str, Any], lists: GroupLists, parts: list[Part], states: Mapping[Tensor, Any]
    ) -> None:
        self.lists = lists._replace(grads=[])  # a cache must not keep gradients alive
        self.parts = [with_grads(part, part.group, [], part.moment_sqs) for part in parts]
        self.params: list[Tensor] = list(group["params"])
        self.has_grad = list(map(is_not, map(get_grad, self.params), repeat(None)))
        self.options = read_edited(group)
        self.stateful = lists.params + lists.idle_params
        self.first_state = next((i for i, p in enumerate(states) if self.stateful and p is self.stateful[0]), 0)
        self.steps = lists.steps + lists.idle_steps
        self.beta_hats = lists.beta_hats + lists.idle_beta_hats
        self.scales = lists.scales if any(part.moment_scales for part in parts) else []
        self.plain_scales = [scale for scale in self.scales if scale is not None]  # vectors have none
        self.kinds = list_kinds(lists, parts)
        # A complex parameter's part holds views of it, and a DTensor's its local shard: both are made at every step.
        tensors = lists.params + lists.moments
        self.holds_parameters = PLAIN_TYPES.issuperset(map(type, tensors)) and not any(map(Tensor.is_complex, tensors))
        self.by_row = bool(parts) and parts[0].scope in ROW_KINDS  # nothing is cached of a moment
        position = {i: j for j, i in enumerate(lists.indices)}
        # Pick a part's gradients from the group's; a slice for one, where itemgetter returns no tuple.
        own = [[position[i] for i in part.indices] for part in parts]
        self.pickers = [itemgetter(*p) if len(p) > 1 else itemgetter(slice(p[0], p[0] + 1)) for p in own]
        self.version_sum = -1  # until a step has left ‖m‖² behind
        self.layout: Layout | None = None
        self.layouts_left = MAX_LAYOUTS

    def recall(
        self, k: int, group: dict[str, Any], states: Mapping[Tensor, Any]
    ) -> tuple[list[Part], GroupLists] | None:
        """Return the group's parts with the gradients of this step; None unless the cache is valid.

        The loops run in C: with a thousand small tensors this is a good part of a step.
        """
        params, lists = group["params"], self.lists
        grads = list(map(get_grad, params))
        try:
            stop = self.first_state + len(self.stateful)
            own: list[Any]
            is_near = self.first_state <= len(self.stateful)  # else skipping the states before takes longer
            if is_near and len(states) >= stop and all(map(is_, islice(states, self.first_state, stop), self.stateful)):
                own = list(islice(states.values(), self.first_state, stop))  # hashing a tensor is a call in Python
            else:
                own = list(map(states.get, self.stateful))
            valid = (
                len(params) == len(self.params)
                and all(map(is_, params, self.params))
                and list(map(is_not, grads, repeat(None))) == self.has_grad
                and all(map(is_, map(get_moment, own), lists.moments))
                and all(map(is_, map(get_step, own), self.steps))
                and all(map(is_, map(get_beta_hat, own if self.beta_hats else ()), self.beta_hats))
                and all(map(is_, map(get_scale, own if self.scales else ()), self.scales))
                # A sum: version counters never decrease.
                and (self.by_row or sum(map(get_version, lists.moments)) == self.version_sum)
                and read_edited(group) == self.options
            )
        except (KeyError, TypeError):  # no state, or not all of it
            return None
        if not valid:
            return None
        grads = grads if len(grads) == len(lists.params) else list(compress(grads, self.has_grad))
        layout = self.layout
        tensors = (*lists.params, *lists.moments, *grads, *self.plain_scales)
        if layout is None or not layout.matches(*tensors):  # p.data = … changes nothing above
            if list_kinds(lists, self.parts) != self.kinds:
                return None
            if not self.holds_parameters or any(map(get_is_sparse, grads)):
                lists = lists._replace(grads=grads)
                fresh = split_into_parts(k, group, lists, by_row=self.parts[0].scope in ROW_KINDS)
                own = [new._replace(moment_sqs=old.moment_sqs) for new, old in zip(fresh, self.parts, strict=True)]
                return own, lists
            check_shapes(lists.params, grads, lists.moments)
            self.layouts_left -= 1
            layout = self.layout = watch_layouts(tensors) if self.layouts_left > 0 else None
        if len(self.parts) == 1:
            only = self.parts[0]
            params, moments, steps, beta_hats = lists.params, lists.moments, lists.steps, lists.beta_hats
            kept = (only.moment_sqs, (), (), only.scope, only.moment_scales, layout)
            return [Part(k, only.indices, params, params, grads, moments, steps, beta_hats, *kept)], lists
        return [
            with_grads(p, k, list(pick(grads)), p.moment_sqs, layout)
            for p, pick in zip(self.parts, self.pickers, strict=True)
        ], lists

    def remember(self, parts: Sequence[Part], squares: Sequence[Any]) -> None:
        """Keep ‖m‖² of every moment, but no gradient."""
        self.parts = []
        for p, own in zip(parts, squares, strict=True):
            self.parts.append(with_grads(p, p.group, [], own))
        self.version_sum = sum(map(get_version, self.lists.moments))


def with_grads(part: Part, group: int, grads: list[Tensor], moment_sqs: Any, layout: Any = None) -> Part:
    """Return a part with other gradients. Not by _replace, which takes three times as long."""
    p = part
    state = (p.moments, p.steps, p.beta_hats, moment_sqs, p.shards, p.all_shards, p.scope, p.moment_scales, layout)
    return Part(group, p.indices, p.owners, p.params, grads, *state)


def list_kinds(lists: GroupLists, parts: Sequence[Part]) -> list[Any]:
    """List devices and dtypes of parameters and moments: as sets where all agree, which is quicker to compare."""
    collect = set if len(parts) == 1 else list
    devices = map(get_device, lists.params + lists.moments)
    return [collect(devices), collect(map(get_dtype, lists.params)), collect(map(get_dtype, lists.moments))]


class PartCache:
    """The cached groups of an optimizer, by the id of the group's dict."""

    def __init__(self) -> None:
        self.groups: dict[int, CachedGroup] = {}
        self.by_row: bool | None = None  # whether any group goes by row, which decides the parts of all of them

    def changes_scopes(self, by_row: bool) -> bool:
        """Return whether ``by_row`` is no longer what the cached groups were split for; then they are dropped."""
        changed = bool(self.groups) and by_row != self.by_row
        self.by_row = by_row
        if changed:
            self.groups.clear()
        return changed

    def enter(
        self,
        group: dict[str, Any],
        lists: GroupLists,
        parts: list[Part],
        groups: Sequence[dict[str, Any]],
        states: Mapping[Tensor, Any],
    ) -> None:
        """Keep a group's parts, and let go of the groups that were removed."""
        for cached in self.groups.values():
            if cached.layout is not None:
                cached.layout.row_call = None  # it may hold tensors that this group no longer has
        self.groups[id(group)] = CachedGroup(group, lists, parts, states)
        if len(self.groups) > len(groups):
            alive = set(map(id, groups))
            self.groups = {key: cached for key, cached in self.groups.items() if key in alive}

    def remember_norms(self, groups: Sequence[dict[str, Any]], parts: Sequence[Part], record: StepRecord) -> None:
        """Keep ‖m‖² of every moment as a step has left it; by row there is nothing to keep."""
        if not parts or parts[0].scope in ROW_KINDS:
            return
        squares, start = record.moment_sqs, 0
        if len(parts) == 1:
            self.groups[id(groups[parts[0].group])].remember(parts, [squares])
            return
        by_group: dict[int, tuple[list[Part], list[Any]]] = {}
        for part in parts:
            own, own_squares = by_group.setdefault(part.group, ([], []))
            own.append(part)
            own_squares.append(squares[start : start + len(part.params)])
            start += len(part.params)
        for k, (own, own_squares) in by_group.items():
            self.groups[id(groups[k])].remember(own, own_squares)


class StepLog:
    """What is kept of the steps. An object of its own: torch.compile drops what a step sets on its optimizer."""

    def __init__(self) -> None:
        self.record: StepRecord | None = None
        self.completed: StepRecord | None = None  # sharded: the last record whose ‖m_t‖² is known
        self.skipped: Tensor | int | None = None  # since the count in the param groups was last brought up to date
        self.applied = 0  # steps taken, as far as that is known at once
        self.applied_on_device: Tensor | int | None = None  # and those that only the device knows of
        self.counts: Tensor | None = None  # a kernel's own, of steps taken and skipped, not yet added to those above
        self.earlier: deque[StepRecord] = deque(maxlen=KEPT_RECORDS)
        # Of a skipped step: the first only, and none with a GradScaler, which skips steps by intention.
        self.warns = True
        self.has_new_skip = False  # of the last step, as far as that is known without waiting for a device

    def open(self, groups: Sequence[dict[str, Any]]) -> None:
        """Enter an empty record of the form that steps will have: then torch.compile needs one graph for all steps."""
        places: list[tuple[int, tuple[int, ...]]] = []
        for k, group in enumerate(groups):
            kinds: dict[Any, list[int]] = {}
            for i, p in enumerate(group["params"]):
                if p.grad is not None:
                    scope = resolve_kind(group, p)
                    kinds.setdefault((p.device, p.dtype, moment_dtype(p, group), scope), []).append(i)
            places += [(k, tuple(indices)) for indices in kinds.values()]
        if not places:
            return
        first = groups[places[0][0]]["params"][places[0][1][0]]
        device, dtype = first.device, scalar_dtype(first.device)
        n = sum(len(indices) for _, indices in places)
        norms = torch.zeros(NORM_ROWS, n, dtype=dtype, device=device)
        clips = groups[0]["max_grad_norm"] not in (None, torch.inf)
        clip_scale = torch.ones(1, dtype=dtype, device=device) if clips else 1.0
        false = torch.zeros((), dtype=torch.bool, device=device)
        rows, row_places = None, [(k, i) for k, indices in places for i in indices]
        if any(g["norm_scope"] in ROW_SCOPES or g["unit_step"] == "spectral" for g in groups):
            rows = RowNorms(*torch.zeros(len(RowNorms._fields), n, dtype=dtype, device=device).unbind())
        self.record = StepRecord(norms, clip_scale, false, (), tuple(places), rows=rows, row_places=tuple(row_places))
        self.skipped = torch.zeros((), dtype=torch.int32, device=device)
        self.applied_on_device = torch.zeros((), dtype=torch.int32, device=device)

    def enter(self, record: StepRecord) -> None:
        """Enter a step, without waiting for it."""
        if record.kernel_log is not None:  # the kernel has counted the step and selected the norms: nothing to launch
            if self.record is not None and not has_same_places(self.record, record):
                self.earlier.appendleft(self.record)
            self.counts, self.completed = record.kernel_log.counts, None
            self.record = record._replace(applied=record.kernel_log.ever_taken)
            return
        applied = record.applied
        new_skip: Tensor | bool = False
        if record.rows_skipped:  # rows are skipped by themselves, though the step is taken
            self.skipped, new_skip = 1 if self.skipped is None else self.skipped + 1, True
        elif record.rows is not None and applied is not False:
            any_skipped = record.rows.skipped.any()
            new_skip = any_skipped = any_skipped if applied is True else any_skipped & applied
            self.skipped = any_skipped.int() if self.skipped is None else self.skipped + any_skipped
        if applied is True:
            self.applied += 1
        # A step that only makes state (gradients and lr 0) is not taken, but nothing was skipped either.
        elif isinstance(applied, Tensor):
            was_skipped = torch.gt(has_gradient(record), applied)
            new_skip = was_skipped if record.rows is None else new_skip
            self.skipped = was_skipped.int() if self.skipped is None else self.skipped + was_skipped
            before = self.applied_on_device
            self.applied_on_device = applied.int() if before is None else before + applied
        else:
            new_skip = bool(has_gradient(record))
            self.skipped = (0 if self.skipped is None else self.skipped) + int(new_skip)
        if not torch.compiler.is_compiling() and self.warns:  # in this order: a compiled step has no guard on it
            # Only what is known already is read: nothing of a GPU, for which it would wait, and no fake tensor.
            is_known = type(new_skip) is bool or (type(new_skip) is Tensor and new_skip.is_cpu)
            self.has_new_skip = is_known and bool(new_skip)
        if applied is False:
            return
        if self.record is not None and has_same_places(self.record, record):
            self.completed = complete(self.record, record) if record.late else None
            self.record = select(record, self.record, applied) if isinstance(applied, Tensor) else record
        else:
            self.completed = None
            if self.record is not None:
                self.earlier.appendleft(self.record)
            self.record = record

    def collect_counts(self) -> None:
        """Add what a kernel has counted, without waiting for it."""
        if self.counts is None:
            return
        taken, skipped = self.counts.clone().unbind()
        self.counts.zero_()
        self.skipped = (0 if self.skipped is None else self.skipped) + skipped
        self.applied_on_device = taken if self.applied_on_device is None else self.applied_on_device + taken

    def count_steps(self) -> int:
        """Return how many steps were taken since the state was made or loaded."""
        self.collect_counts()
        return self.applied + int(self.applied_on_device or 0)

    def find_last(self) -> StepRecord | None:
        """Return the record of the last step that was taken."""
        records = [*self.earlier] if self.record is None else [self.record, *self.earlier]
        return next((record for record in records if bool(record.applied)), None)


def has_gradient(record: StepRecord) -> Tensor:
    """Return whether a gradient of line 1 is not 0, on any rank."""
    return (record.norms if record.all_ranks is None else record.all_ranks)[RAW_GRAD_SQ].any()


def has_same_places(one: StepRecord, other: StepRecord) -> bool:
    """Return whether two records are about the same parameters here, and the same groups on all ranks."""
    if one.places != other.places or one.norms.device != other.norms.device:
        return False
    return one.all_ranks is None or other.all_ranks is None or one.all_ranks.shape == other.all_ranks.shape
