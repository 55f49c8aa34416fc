"""The state of an optimizer: how it is created, saved, loaded and copied."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from acmo.scopes import describe_scope, resolve_kind
from acmo.skip_warning import warn_of_skip
from acmo.state_checks import check_state_dict, match_states
from acmo.state_formats import convert_state_dict, name_dtype
from acmo.state_tensors import copy_moment, moment_dtype
from acmo.step_data import scalar_dtype
from acmo.step_memory import PartCache, StepLog
from acmo.telemetry import telemetry

Self = TypeVar("Self", bound="StatefulOptimizer")


class StatefulOptimizer(Optimizer):
    """An optimizer whose state is saved, loaded and copied as that of ACMo: all but the step itself."""

    _process_group: Any
    _inside_zero: bool = False  # its param groups are overwritten before every step
    _over_ranks: bool

    def _reset_caches(self) -> None:
        """Drop everything that is derived from the state."""
        self._cache = PartCache()
        self._kernel_tables: dict[Any, Any] = {}  # of the Triton kernels
        self._step_log = StepLog()

    def __repr__(self) -> str:
        """Return torch's text; by row it also has the number of parameters that go by row, by column and whole."""
        shown = copy.copy(self)
        shown.param_groups = []
        for group in self.param_groups:
            kinds = [resolve_kind(group, p) for p in group["params"]]
            shown.param_groups.append({**group, "norm_scope": describe_scope(group["norm_scope"], kinds)})
            if group["unit_step"] != "spectral":
                del shown.param_groups[-1]["spectral"]  # nothing reads it
        return Optimizer.__repr__(shown)

    def state_dict(self) -> dict[str, Any]:
        """Return a state dict as torch's: ``skipped_steps`` is in every group, process group and callables in none."""
        self._save_skipped_steps()
        state = super().state_dict()
        for group in state["param_groups"]:
            group["projection"] = None  # not without the key: torch's flattened state dicts ask for every one
            group["psi"] = None if callable(group["psi"]) else group["psi"]
            for key in ("momentum_dtype", "ns_dtype"):
                group[key] = name_dtype(group[key])
        return state

    def telemetry(self) -> dict[str, Any]:
        """Return norms, β̂ and angles of the last step that was taken, as floats; ``{}`` before the first.

        Keys: ``grad_norm`` (raw, before clip and decay), ``moment_norm`` (‖m_t‖), ``beta_hat``, ``cos_grad_moment``
        (between g_t and m_{t−1}), ``cos_update_grad`` (m_t and g_t), ``cos_update_moment`` (m_t and m_{t−1}), NaN where
        undefined; ``clip_scale``, ``skipped_steps``; ``scopes``: the same per group or per tensor, where that is the
        scope. By row β̂ and the cosines with m_{t−1} are left out, ``cos_update_grad`` is the mean over the rows, and
        ``tensors`` has per parameter its ``group`` and ``index``, ``cos_min``, ``cos_mean`` and ``turned_share`` (rows
        whose gradient turned against the moment).

        The angles are free: they follow from norms that the step computes anyway. Reading them may wait for the
        device, and never communicates: for sharded parameters ‖m_t‖ and the angles are those of the step before, NaN at
        first.
        """
        return telemetry(self._step_log, self.param_groups[0]["norm_scope"], self.skipped_steps)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ACMo, SGD, Adam(W) or Muon; what it lacks is kept. A state that does not fit changes nothing.

        The options of ACMo's and SGD's groups replace those of the live groups, as in torch. Of Adam only ``exp_avg``,
        ``step`` and ``maximize`` are taken, of Muon the ``momentum_buffer``: their ``lr`` and ``weight_decay`` are for
        steps of another length. Moments become int8, or stop being it, as the live group's ``momentum_dtype`` asks.
        """
        loaded: list[dict[str, Any]] = []
        before = self.param_groups

        def check(_: Optimizer, state: dict[str, Any]) -> None:  # runs after the hooks that users have registered
            convert_state_dict(state, self.param_groups)
            check_state_dict(state, self.param_groups, self.defaults)
            loaded.append(state)

        def restore(_: Optimizer) -> None:  # runs before the hooks that users have registered
            restore_dropped(self.state, self.param_groups, before, self.defaults, loaded[0])
            self._reset_caches()

        handles = (
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            with torch.inference_mode(False):  # tensors of inference mode have no version counters
                super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    @property
    def skipped_steps(self) -> int:
        """Return how many steps were skipped because a gradient was not finite. Reading it may wait for the device."""
        log = self._step_log
        log.collect_counts()
        saved, new = max((int(group["skipped_steps"]) for group in self.param_groups), default=0), int(log.skipped or 0)
        if new and log.warns:
            log.warns = False
            warn_of_skip(self.param_groups, stacklevel=3)
        return saved + new

    def _save_skipped_steps(self) -> None:
        """Bring the count in the param groups, which is what gets saved, up to date."""
        self._set_skipped_steps(self.skipped_steps)

    def _set_skipped_steps(self, skipped: int | Tensor) -> None:
        for group in self.param_groups:
            group["skipped_steps"] = skipped
        if self._step_log.skipped is not None:
            self._step_log.skipped = self._step_log.skipped * 0

    def __getstate__(self) -> dict[str, Any]:
        self._save_skipped_steps()
        own = {key: getattr(self, key) for key in ("_process_group", "_inside_zero", "_over_ranks")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "defaults" in state:  # unpickled or copied, not loaded
            self._reset_caches()
            for group in self.param_groups:
                for key, value in self.defaults.items():
                    group.setdefault(key, value)

    def __copy__(self: Self) -> Self:
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update(self.__dict__)  # what is derived from the state is shared as the state is
        return twin

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        callables = [group[key] for group in (self.defaults, *self.param_groups) for key in ("projection", "psi")]
        for live in (self._process_group, *callables):
            memo[id(live)] = live  # a copy of a process group would be another one
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin


def restore_dropped(
    state: dict[Tensor, Any],
    groups: Sequence[dict[str, Any]],
    before: Sequence[dict[str, Any]],
    defaults: dict[str, Any],
    state_dict: dict[str, Any],
) -> None:
    """Restore what torch's load drops (options that the state lacks) and casts (all to the parameter's dtype)."""
    for group, old in zip(groups, before, strict=True):
        for key in defaults:
            group.setdefault(key, old[key])
        group["projection"] = old["projection"]  # the live one: what is saved is a placeholder
        for key in ("dampening", "nesterov"):  # SGD's, without meaning here
            group.pop(key, None)
    dtypes = {id(p): moment_dtype(p, group) for group in groups for p in group["params"]}
    for _, p, saved in match_states(state_dict, groups):
        mine = state[p]
        mine.pop("momentum_scale", None)
        if saved.get("momentum_buffer") is not None:
            m = saved["momentum_buffer"].to(p.device)
            mine.update(copy_moment(m, saved.get("momentum_scale"), p, dtypes[id(p)]))
        for key, dtype in (("step", torch.float32), ("beta_hat", scalar_dtype(p.device))):
            value = saved.get(key)
            if isinstance(value, Tensor):
                # Always a copy: the given state must not change with later steps.
                mine[key] = value.detach().to(device=p.device, dtype=dtype, copy=True)
            elif value is not None:
                mine[key] = torch.tensor(float(value), dtype=dtype, device=p.device)
            shape = () if key == "step" else (1,)
            if value is not None and mine[key].numel() == 1 and mine[key].shape != shape:  # by row β̂ has many
                mine[key] = mine[key].reshape(shape)
