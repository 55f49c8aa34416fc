"""The optimizer: its options, and the step that gathers tensors, chooses a backend and records what it computed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from acmo import algorithm, native
from acmo.backends import c_kernel, foreach, foreach_rows, kernel_ops, row_kernel, row_step, rows, two_pass
from acmo.backends.triton import choice
from acmo.gather import GroupLists, fill_lists, split_into_parts
from acmo.newton_schulz import DEFAULT_STEPS
from acmo.options import check_group, check_groups
from acmo.parameter_checks import check_params
from acmo.projections import Projection, project_parts
from acmo.psi import Psi
from acmo.scopes import ROW_KINDS, has_rows
from acmo.sharding import check_process_group, check_sharding, is_dtensor, is_inside_zero, sum_over_shards
from acmo.skip_warning import warn_of_skip
from acmo.state import StatefulOptimizer
from acmo.step_data import GroupOptions, NonFiniteGradient, Part, StepFunction, StepOptions, StepRecord
from acmo.step_memory import read_options

NOT_IN_GROUPS = {"self", "params", "process_group", "__class__"}  # of the constructor's local variables


class ACMo(StatefulOptimizer):
    r"""Implement the angle-calibrated moment method: one moment, scaled to the length of the gradient.

    .. math::
        m_t = g_t + \beta \frac{\|g_t\|}{\|m_{t-1}\| + \delta} m_{t-1}, \qquad \theta_{t+1} = \theta_t - \alpha m_t

    The moment never outweighs the gradient, so the step never points uphill on the current batch, and it leans towards
    the last step as far as that allows; the state is that of SGD-momentum. Every line is in ``acmo/algorithm.py``.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α, a number or a 1-element Tensor.
      momentum: the paper's β, in [0, 1].
      delta: δ in the denominator, >= 0.
      weight_decay: λ; added to the gradient as λθ, unless decoupled.
      decoupled_weight_decay: shrink θ by (1 − αλ) instead.
      norm_scope: what the norms are taken over: ``"global"``, ``"group"`` or ``"tensor"``.
        By row: ``"row"`` (slices along dimension 0), ``"column"`` (along dimension 1 of a matrix), ``"auto"`` (row, but
        matrices with more than 8 rows per column, which are vocabulary tables, by column).
      unit_step: ``"rms"`` (or True): step by u = √n · m/‖m‖ over each scope, whatever the length of the gradient; n
        counts its entries. ``"spectral"``: the same, but matrices are orthogonalised (see `acmo.SpectralACMo`).
      ns_steps: number of Newton–Schulz iterations with spectral steps, 5 by default.
      ns_dtype: dtype of the products that orthogonalise; None: float32 on CPUs, bfloat16 on GPUs.
      psi: Ψ of Algorithm 1: ``"identity"``, ``"sqrt"`` as in Theorem 4.1, or a callable of tensors (β̂, β̂_prev, t).
      max_grad_norm: clip the gradient to this norm, over all parameters, in the same pass.
      projection: a callable that maps a parameter's value into the feasible set (see `acmo.projections`).
      process_group: the ranks that hold the other tensors of θ (ZeRO). DTensors (FSDP2, tensor parallel) need none.
      momentum_dtype: dtype of the stored moment; the parameter's own by default.
      stochastic_rounding: round bfloat16 parameters up or down at random, so that small steps are not lost.
      nonfinite: what to do about a gradient that is not finite: ``"skip"``, ``"raise"`` or ``"propagate"``.
      maximize: ascend instead.
      foreach: use the multi-tensor backend (None: where no fused kernel is available).
      fused: use the C kernel on CPUs, the Triton kernels on GPUs (None: where they are available).
      differentiable: let autograd record the step.

    Example:
      >>> import torch, acmo
      >>> model = torch.nn.Linear(2, 1)
      >>> opt = acmo.ACMo(model.parameters(), lr=0.1)
      >>> model(torch.ones(1, 2)).square().sum().backward()
      >>> opt.step()
      >>> sorted(opt.telemetry())[:3]
      ['beta_hat', 'clip_scale', 'cos_grad_moment']

    Reference:
      Huang et al., `ACMo: Angle-Calibrated Moment Methods for Stochastic Optimization
      <https://arxiv.org/abs/2006.07065>`_, AAAI 2021
    """

    # A GradScaler then leaves its scale and its verdict on the optimizer, and the step needs no host sync.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.3,
        momentum: float = 0.9,
        delta: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        norm_scope: str = "global",
        unit_step: bool | str = False,
        ns_steps: int = DEFAULT_STEPS,
        ns_dtype: torch.dtype | None = None,
        psi: str | Psi = "identity",
        max_grad_norm: float | None = None,
        projection: Projection | None = None,
        process_group: Any = None,
        momentum_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        nonfinite: str = "skip",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in NOT_IN_GROUPS}
        defaults = {
            **given,  # in a state dict projection is None, and so is a callable psi
            "unit_step": "rms" if unit_step is True else unit_step,
            "spectral": None,  # a group's own: whether its matrices are orthogonalised; None: by their shapes
            "lr_scale": 1.0,  # a group's own factor on lr, which schedulers leave alone
            "skipped_steps": 0,
        }
        check_group(defaults)
        check_process_group(process_group, defaults)
        self._process_group = process_group
        self._inside_zero = is_inside_zero()
        self._over_ranks = process_group is not None  # or a parameter is a DTensor
        self._reset_caches()
        native.kernel()  # loaded here, because torch.compile cannot trace it
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set comes from the constructor."""
        group = dict(param_group)
        if group.get("unit_step") is True:
            group["unit_step"] = "rms"
        if self.param_groups:
            group.setdefault("skipped_steps", self.param_groups[0]["skipped_steps"])
        if group.pop("process_group", self._process_group) is not self._process_group:
            raise ValueError("process_group is one for the whole optimizer, a group cannot have its own")
        check_group({**self.defaults, **group}, self.param_groups)
        super().add_param_group(group)
        try:
            if self.defaults["fused"]:
                choice.require_kernel(self.param_groups[-1]["params"])
            self._check_parameters(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise

    def _check_parameters(self, group: dict[str, Any]) -> None:
        check_params(group)
        check_sharding(group, self._process_group)
        choice.prepare(group["params"])
        self._over_ranks = self._over_ranks or any(map(is_dtensor, group["params"]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return what ``closure`` returned."""
        if torch.compiler.is_compiling():
            return self._step_eagerly(closure) if self._over_ranks else self._step(closure)
        if torch.is_inference_mode_enabled():  # tensors of inference mode have no version counters
            with torch.inference_mode(False):
                return self._step(closure)
        return self._step(closure)

    @_disable_dynamo  # not torch.compiler.disable, which imports all of dynamo here and now
    def _step_eagerly(self, closure: Callable[[], Any] | None) -> Any:
        """Take a step with norms over ranks, which is not compiled."""
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.param_groups:
            return loss
        grad_mode = torch.is_grad_enabled()
        # The context manager would take 2 % of a small step.
        torch._C._set_grad_enabled(self.param_groups[0]["differentiable"])
        try:
            parts, groups = self._gather()
            if parts or self._process_group is not None:  # other ranks wait for this one, even if it has nothing
                self._update(parts, groups)
        finally:
            torch._C._set_grad_enabled(grad_mode)
        if self._inside_zero:
            self._step_log.collect_counts()
        if (self._process_group is not None or self._inside_zero) and self._step_log.skipped is not None:
            # ZeroRedundancyOptimizer copies param groups to and fro around a step, and saves its copies: no waiting.
            self._set_skipped_steps(self.param_groups[0]["skipped_steps"] + self._step_log.skipped)
        return loss

    def _gather(self) -> tuple[list[Part], list[GroupOptions]]:
        """Return the parts of this step: the tensors of every group, from the cache where it is valid."""
        compiling = torch.compiler.is_compiling()
        parts: list[Part] = []
        groups: list[GroupOptions] = []
        checked, first_number = compiling, 0
        for k, group in enumerate(self.param_groups):
            cached = None if compiling else self._cache.groups.get(id(group))
            if cached is not None and (recalled := cached.recall(k, group, self.state)) is not None:
                own, lists = recalled
            else:
                if not checked:
                    check_groups(self.param_groups)
                    checked = True
                by_row = has_rows(self.param_groups)
                if not compiling and self._cache.changes_scopes(by_row):
                    return self._gather()  # the parts of groups that were not edited, too
                lists = GroupLists([], [], [], [], [], [], [], [], [], [])
                self._init_group(group, *lists)
                own = split_into_parts(k, group, lists, by_row=by_row)
                if not compiling:
                    self._cache.enter(group, lists, own, self.param_groups, self.state)
            parts += own
            groups.append(read_options(group, lists, first_number))
            first_number += len(group["params"])
        return parts, groups

    def _init_group(self, group: dict[str, Any], *lists: Any) -> None:
        """Fill `GroupLists` from a group; torch.compile knows this name and form, and runs it instead of tracing it."""
        new = [p for p in group["params"] if p.grad is not None and not self.state.get(p)]
        if new:  # trainers may have put sharded parameters in the place of those that were given
            self._check_parameters({"projection": group["projection"], **group, "params": new, "param_names": None})
        fill_lists(group, self.state, GroupLists(*lists))
        if self._step_log.record is None:
            self._step_log.open(self.param_groups)

    def _update(self, parts: list[Part], groups: list[GroupOptions]) -> None:
        """Take the step of all groups, and record what it computed."""
        try:
            record = self._execute(parts, groups, self.param_groups)
        except NonFiniteGradient as error:
            raise error.name_parameter(self.param_groups) from None
        log = self._step_log
        log.enter(record)
        if not torch.compiler.is_compiling():
            self._cache.remember_norms(self.param_groups, parts, record)
            if log.has_new_skip and log.warns:
                log.warns = False
                warn_of_skip(self.param_groups, record, stacklevel=5)

    def _execute(
        self, parts: list[Part], groups: list[GroupOptions], param_groups: Sequence[dict[str, Any]]
    ) -> StepRecord:
        """Execute lines 1 to 8 by the chosen backend, and project. `Part.group` indexes ``param_groups``."""
        common = param_groups[0]  # what holds for all groups is in each of them
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None:
            self._step_log.warns = False
        options = StepOptions(
            norm_scope=common["norm_scope"],
            psi=common["psi"],
            unit_step=bool(common["unit_step"]),
            ns_steps=common["ns_steps"],
            ns_dtype=common["ns_dtype"],
            max_grad_norm=common["max_grad_norm"],
            nonfinite=common["nonfinite"],
            grad_scale=None if scale is None else scale.reshape(()),
            found_inf=None if found_inf is None else found_inf.reshape(()),
            process_group=self._process_group,
            sum_over_shards=sum_over_shards if self._over_ranks and any(p.shards for p in parts) else None,
        )
        record = self._choose_backend(parts, groups, options, common)(parts, groups, options)
        for group in param_groups:
            if group["projection"] is not None:
                project_parts(parts, param_groups, record, self._process_group)  # of all groups
                break
        return record

    def _choose_backend(
        self, parts: list[Part], groups: list[GroupOptions], options: StepOptions, common: dict[str, Any]
    ) -> StepFunction:
        """Return the function that executes this step: the reference, rows, the C kernel in one call, or two passes."""
        by_row = parts[0].scope in ROW_KINDS if parts else has_rows(self.param_groups)
        if common["differentiable"] or (common["foreach"] is False and not common["fused"]):
            return algorithm.step
        may_fuse = common["fused"] or (common["fused"] is None and common["foreach"] is None)
        if may_fuse and not row_step.has_call(parts) and choice.is_on_gpu(parts) and not callable(options.psi):
            return choice.choose(parts, groups, options, by_row, bool(common["fused"]), self._kernel_tables)
        if by_row and may_fuse and not torch.compiler.is_compiling() and native.kernel() is not None:
            at_once = row_step.prepare(parts, groups, options)
            if at_once is not None:
                return at_once
        use_kernel = may_fuse and not callable(options.psi) and native.kernel() is not None
        if by_row:
            use_kernel = use_kernel and not torch.compiler.is_compiling()
            kernels = [use_kernel and row_kernel.can_step(part, groups[part.group]) for part in parts]
            if common["fused"]:
                row_kernel.require([part for part, kernel in zip(parts, kernels, strict=True) if not kernel])
            ways = [row_kernel.step_part if kernel else foreach_rows.step_part for kernel in kernels]
            return partial(rows.step, ways=ways)
        # Outside of rows only foreach rounds stochastically.
        rounds = [groups[p.group].first_number is not None and p.params[0].dtype == torch.bfloat16 for p in parts]
        alone = options.sum_over_shards is None and options.process_group is None
        in_one_call = use_kernel and alone and not any(rounds) and not options.unit_step
        if in_one_call and not torch.compiler.is_compiling() and all(map(c_kernel.can_step, parts)):
            return c_kernel.step
        passes = [
            kernel_ops if use_kernel and not rounding and c_kernel.can_pass(part) else foreach
            for part, rounding in zip(parts, rounds, strict=True)
        ]
        if common["fused"]:
            c_kernel.require(parts, rounds)
        return partial(two_pass.step, passes=passes)
