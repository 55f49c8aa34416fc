"""A step inside backward: every parameter steps as soon as its gradient is complete, and the gradient is freed."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import ParamsT

from acmo.gather import GroupLists, fill_lists, split_into_parts
from acmo.optimizer import ACMo
from acmo.options import check_groups
from acmo.projections import couples_parameters
from acmo.scopes import has_rows
from acmo.sharding import is_dtensor
from acmo.skip_warning import warn_of_skip
from acmo.step_data import NORM_ROWS, GroupOptions, NonFiniteGradient, RowNorms, StepRecord, read_rows
from acmo.step_memory import CachedGroup, read_options

Place = tuple[int, int]  # group, and position in it
Self = TypeVar("Self", bound="StepsInBackward")
# A second group that is never at lr 0. Otherwise a parameter with lr 0 and gradient 0 would look like the first step of
# torch.distributed.checkpoint, which must not count: that rule is about all parameters.
OTHER_PARAMETERS = GroupOptions(1.0, 0.0, 0.0, 0.0, False, 1.0, False, [], [])


def step_in_backward(model_or_params: Module | ParamsT, cls: type[ACMo], **options: Any) -> "StepsInBackward":
    """Return an optimizer that steps each parameter during backward, and frees its gradient at once.

    The steps are those of ``backward(); opt.step()``, but gradients never exist all together. Call ``opt.step()`` after
    each backward as usual: it marks the end of the step, for schedulers and telemetry. ``opt.remove()`` removes the
    hooks; then it is an ordinary optimizer. Its state dict is that of ``cls``; so are its copies and pickles.

    Raise where a step needs more than the gradient of one parameter after one backward: ``norm_scope="global"`` and
    ``"group"``, ``max_grad_norm``, ``process_group``, sharded parameters, gradient accumulation, GradScaler, closures.

    Args:
      model_or_params: a module, parameters, named parameters or parameter groups (see `acmo.param_groups`).
      cls: `acmo.RowACMo`, or `acmo.ACMo` with a ``norm_scope`` of one parameter or less.
      **options: those of ``cls``.

    Example:
      >>> import torch, acmo
      >>> model = torch.nn.Linear(4, 3)
      >>> opt = acmo.step_in_backward(model, acmo.RowACMo, lr=1e-3)
      >>> model(torch.ones(1, 4)).square().sum().backward()
      >>> model.weight.grad is None
      True
      >>> opt.step()
    """
    if not (isinstance(cls, type) and issubclass(cls, ACMo)):
        raise TypeError(f"step_in_backward needs acmo.RowACMo or another subclass of acmo.ACMo, got {cls!r}")
    if isinstance(model_or_params, DistributedDataParallel):
        raise TypeError(
            "DistributedDataParallel averages gradients after the hooks of backward, so every rank would step by its "
            "own: call backward() and step() with an ordinary optimizer"
        )
    params = list(model_or_params.named_parameters()) if isinstance(model_or_params, Module) else model_or_params
    return make_class(cls)(params, **options)  # type: ignore[arg-type]


class StepsInBackward(ACMo):
    """What `step_in_backward` adds to a class. Without hooks, as a copy is, it steps as that class does."""

    _plain_class: type[ACMo]
    _handles: list[Any] | None = None  # of the hooks; None: an ordinary optimizer

    def __init__(self, params: ParamsT, **options: Any) -> None:
        super().__init__(params, **options)
        if self._process_group is not None:
            raise ValueError(
                "process_group is for norms over ranks, which need all gradients, and inside backward there is one at "
                "a time: leave it out"
            )
        for group in self.param_groups:
            refuse_second_hook(group["params"])
        self._handles = []
        for group in self.param_groups:
            self._register_hooks(group)

    def remove(self) -> None:
        """Remove the hooks: from now on ``step()`` takes the steps."""
        for handle in self._handles or ():
            handle.remove()
        self._end_round()
        self._handles = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, whose parameters step inside backward as well."""
        if self._handles is not None:
            refuse_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            refuse_shards(self.param_groups[-1]["params"])
            refuse_options(self.param_groups[-1])
            if self._handles is not None:
                refuse_second_hook(self.param_groups[-1]["params"])
        except Exception:
            self.param_groups.pop()
            raise
        if self._handles is not None:
            self._register_hooks(self.param_groups[-1])

    def _register_hooks(self, group: dict[str, Any]) -> None:
        """Register the hooks. A frozen parameter can have none; if it is unfrozen later, ``step()`` steps it."""
        assert self._handles is not None
        for p in group["params"]:
            if p.requires_grad:
                self._handles.append(p.register_post_accumulate_grad_hook(self._step_parameter))

    def _reset_caches(self) -> None:
        super()._reset_caches()
        self._records: dict[Place, StepRecord] = {}  # of the parameters that have stepped since the last step()
        self._places: dict[Tensor, Place] = {}
        self._cached: dict[Tensor, CachedGroup] = {}  # one parameter each
        self._by_row = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the class that was given; its groups must be such that they can step inside backward."""
        if self._handles is not None:
            for mine, saved in zip(self.param_groups, state_dict.get("param_groups", ()), strict=False):
                refuse_options({**mine, **saved})
        super().load_state_dict(state_dict)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """End the step. Nothing is left to do, except for gradients that did not come from backward."""
        if self._handles is None:
            return super()._step(closure)
        if closure is not None:
            raise RuntimeError(
                "a closure calls backward, which has already taken the step: call backward() and then step() without it"
            )
        self._refuse_grad_scaler()
        self._end_round()
        # torch.distributed.checkpoint makes state so; and a parameter that was frozen has no hook.
        if any([p.grad is not None for group in self.param_groups for p in group["params"]]):  # noqa: C419
            super()._step(None)
        return None

    def _step_parameter(self, p: Tensor) -> None:
        """Step one parameter and free its gradient: the hook. Its cost does not depend on the other parameters."""
        place = self._find_place(p)
        if place is None or p.grad is None:  # it was taken out of the groups; or another hook has freed the gradient
            return
        grad_mode = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if place in self._records:
                raise RuntimeError(
                    f"{self._name(place)} got a second gradient since the last opt.step(). The first one has been "
                    f"applied and freed, so gradients cannot be accumulated inside backward: call opt.step() after "
                    f"every backward, or use an ordinary optimizer"
                )
            self._refuse_grad_scaler()
            if not self._records:
                self._begin_round()
            self._records[place] = self._execute_one(p, place)
        finally:
            torch._C._set_grad_enabled(grad_mode)
            p.grad = None

    def _execute_one(self, p: Tensor, place: Place) -> StepRecord:
        """Take the step of one parameter, as if it were a group of its own."""
        k, i = place
        group = {**self.param_groups[k], "params": [p]}
        if names := group.get("param_names"):
            group["param_names"] = [names[i]]
        cached = self._cached.get(p)
        recalled = None if cached is None else cached.recall(0, group, self.state)
        if cached is None or recalled is None:
            refuse_options(group)
            if not self.state.get(p):
                self._check_parameters(group)
            lists = GroupLists([], [], [], [], [], [], [], [], [], [])
            fill_lists(group, self.state, lists)
            parts = split_into_parts(0, group, lists, by_row=self._by_row)
            cached = CachedGroup(group, lists, parts, {})  # of one parameter: its state is found by its hash
        else:
            parts, lists = recalled
        try:
            number = sum(len(other["params"]) for other in self.param_groups[:k]) + i
            record = self._execute(parts, [read_options(group, lists, number), OTHER_PARAMETERS], [group])
        except NonFiniteGradient as error:
            self._cached.pop(p, None)
            error.args = (
                f"the gradient of {self._name(place)} is not finite; it was not changed, but parameters whose "
                f"gradients were complete before have stepped",
            )
            raise error from None
        by_row = read_rows(record) is not None
        cached.remember(parts, [None if by_row else record.moment_sqs])
        self._cached[p] = cached
        return record._replace(moment_sqs=(), places=((k, (i,)),), row_places=(place,) if by_row else ())

    def _begin_round(self) -> None:
        """Look at what the first parameter of a step sees, and the others rely on: whether a group goes by row."""
        by_row = has_rows(self.param_groups)
        if by_row != self._by_row or not self._cached:
            check_groups(self.param_groups)
            self._cached.clear()
            self._by_row = by_row

    def _end_round(self) -> None:
        """Enter what the parameters' steps computed as one step."""
        if not self._records:
            return
        record, skipped = merge_records(self._records)
        self._records = {}
        log = self._step_log
        log.skipped = skipped if log.skipped is None else log.skipped + skipped
        log.enter(record)
        if log.warns and record.norms.is_cpu and int(log.skipped):
            log.warns = False
            warn_of_skip(self.param_groups, stacklevel=4)

    def _refuse_grad_scaler(self) -> None:
        if hasattr(self, "grad_scale") or hasattr(self, "found_inf"):
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            raise RuntimeError(
                "a GradScaler looks for overflow after backward, when the scaled gradients have been applied and "
                "freed: use bfloat16, which needs no scaler, or an ordinary optimizer"
            )

    def _find_place(self, p: Tensor) -> Place | None:
        """Return group and position of a parameter; None if it is in no group any more."""
        place = self._places.get(p)
        if place is not None:
            k, i = place
            if k < len(self.param_groups) and i < len(params := self.param_groups[k]["params"]) and params[i] is p:
                return place
        self._places = {q: (k, i) for k, group in enumerate(self.param_groups) for i, q in enumerate(group["params"])}
        return self._places.get(p)

    def _name(self, place: Place) -> str:
        k, i = place
        names = self.param_groups[k].get("param_names")
        return f"parameter {names[i]!r}" if names else f"parameter {i} of group {k}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return object.__new__, (self._plain_class,), self.__getstate__()

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        twin.__class__ = self._plain_class  # type: ignore[assignment]
        return twin


@cache
def make_class(cls: type[ACMo]) -> type[StepsInBackward]:
    """Return the class that steps inside backward as ``cls`` does outside."""
    return type(f"{cls.__name__}InBackward", (StepsInBackward, cls), {"_plain_class": cls, "__doc__": cls.__doc__})


def refuse_options(group: Mapping[str, Any]) -> None:
    """Raise where a group's options need more than one gradient."""
    if group["norm_scope"] in ("global", "group"):
        raise ValueError(
            f"norm_scope={group['norm_scope']!r} needs the norm of many gradients, which is known only after backward: "
            f"use 'row', 'column', 'auto' or 'tensor', or step after backward"
        )
    if group["max_grad_norm"] is not None:
        raise ValueError(
            f"max_grad_norm={group['max_grad_norm']} needs the norm of all gradients, which is known only after "
            f"backward: leave it out, or step after backward"
        )
    if couples_parameters(group["projection"]):
        raise ValueError(
            f"projection={group['projection']!r} needs all parameters, which have stepped only after backward: use "
            f"scope='tensor', or step after backward"
        )
    if group["differentiable"]:
        raise ValueError("differentiable=True: autograd cannot record a step inside backward: step after backward")


def refuse_shards(params: list[Tensor]) -> None:
    """Raise for DTensors: where a row is cut over ranks, its step sends a message."""
    if any(map(is_dtensor, params)):
        raise ValueError(
            "a parameter is a DTensor: where rows are cut over ranks a step sends a message, which must not get "
            "between those of backward: step after backward"
        )


def refuse_second_hook(params: list[Tensor]) -> None:
    """Raise if another optimizer steps one of the parameters inside backward."""
    for p in params:
        for hook in (getattr(p, "_post_accumulate_grad_hooks", None) or {}).values():
            if isinstance(getattr(hook, "__self__", None), StepsInBackward):
                raise ValueError(
                    "a parameter already steps inside backward: call remove() of that optimizer before you make another"
                )


def merge_records(records: Mapping[Place, StepRecord]) -> tuple[StepRecord, Tensor | int]:
    """Return one record of all parameters' steps, and whether one of them was skipped as a whole (by row none is).

    In the norms, a parameter that was skipped counts as 0.
    """
    own = [records[place] for place in sorted(records)]
    first = own[0]
    device = first.norms.device
    norms = torch.cat([record.norms[:NORM_ROWS].to(device) for record in own], dim=1)
    rows: RowNorms | None = None
    all_rows = [own_rows for record in own if (own_rows := read_rows(record)) is not None]
    if all_rows:
        fields = zip(*all_rows, strict=True)
        rows = RowNorms(*(torch.cat([x.to(device) for x in field]) for field in fields))
    applied: Tensor | bool = True
    skipped: Tensor | int = 0
    if not all([record.applied is True for record in own]):  # noqa: C419
        each = torch.stack([torch.as_tensor(record.applied, device=device) for record in own])
        norms = torch.where(each, norms, 0.0)
        applied, skipped = each.any(), (~each).any().int()
        if all([isinstance(record.applied, bool) for record in own]):  # noqa: C419
            applied, skipped = bool(applied), int(skipped)
    record = StepRecord(
        norms,
        first.clip_scale,
        applied,
        (),
        tuple([place for record in own for place in record.places]),
        rows=rows,
        row_places=tuple([place for record in own for place in record.row_places]),
    )
    return record, skipped
