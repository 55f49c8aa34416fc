"""The optimizer: its options, its state, and the step that hands both to a backend."""

import copy
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from acmo import foreach as foreach_backend
from acmo import fused as fused_backend
from acmo import native, reference, statedict
from acmo.options import check_edited, check_group, check_params
from acmo.parts import (
    PLAIN,
    Group,
    NonFiniteGradient,
    Part,
    Record,
    Rules,
    Shards,
    alike,
    at,
    dense,
    group_of,
    real,
    scalar,
)
from acmo.plan import Plan
from acmo.projections import Projection, projected
from acmo.sharding import check_process_group, check_sharding, is_dtensor, local, localise
from acmo.telemetry import Ledger, telemetry


class ACMo(Optimizer):
    r"""Angle-calibrated moment method: one moment, scaled at every step to the length of the gradient.

    .. math::
        m_t = g_t + \beta \frac{\|g_t\|}{\|m_{t-1}\| + \delta} m_{t-1}, \qquad \theta_{t+1} = \theta_t - \alpha m_t

    The moment never outweighs the gradient, so the step never points uphill on the current batch, and it leans towards
    the last step as far as that allows; the state is that of SGD-momentum. Norms are of all parameters together, as in
    the paper (see ``norm_scope``). Every line of the algorithm: ``docs/how.md``.

    Args:
      params: parameters, named parameters or parameter groups.
      lr: the step size α, a number or a 1-element Tensor.
      momentum: the paper's β, in [0, 1].
      delta: δ below the line, >= 0.
      weight_decay: λ; added to the gradient as λθ, unless decoupled.
      decoupled_weight_decay: shrink θ by (1 − αλ) instead.
      norm_scope: what the norms are of: ``"global"``, ``"group"`` or ``"tensor"``.
      psi: Ψ of Algorithm 1: ``"identity"``, or ``"sqrt"`` as Theorem 4.1 asks.
      max_grad_norm: clip the gradient to this norm, over all parameters, in the same pass.
      projection: a callable that maps a parameter's value into the feasible set (see `acmo.projections`).
      process_group: the ranks that hold the other tensors of θ, where plain tensors are this rank's share of a model
        (ZeRO). DTensors (FSDP2, tensor parallel) need none: they know.
      momentum_dtype: dtype of the stored moment; the parameter's own by default.
      nonfinite: what to do about a gradient that is not finite: ``"skip"``, ``"raise"`` or ``"propagate"``.
      maximize: ascend instead.
      foreach: use the multi-tensor backend (None: where it serves best).
      fused: use the C kernel (None: for CPU parameters, where it was built).
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
        psi: str = "identity",
        max_grad_norm: float | None = None,
        projection: Projection | None = None,
        process_group: Any = None,
        momentum_dtype: torch.dtype | None = None,
        nonfinite: str = "skip",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "delta": delta,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "norm_scope": norm_scope,
            "psi": psi,
            "max_grad_norm": max_grad_norm,
            "projection": projection,  # in the groups as all options are; in a state dict always None
            "momentum_dtype": momentum_dtype,
            "nonfinite": nonfinite,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
            "skipped_steps": 0,
        }
        check_group(defaults)
        check_process_group(process_group, defaults)
        self._process_group = process_group
        self._over_ranks = process_group is not None  # or a parameter is a DTensor
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        """Drop everything that is derived from the state."""
        # By id of the parameter: its m, m's version, ‖m‖² as of then, t and β̂; made anew where one is replaced.
        # A stale id is harmless: its m is not the m.
        self._norms: dict[int, tuple[Tensor, int, Tensor, Tensor, Tensor | None]] = {}
        self._plans: dict[int, Plan] = {}  # by id of the group; a stale one does not hold
        self._ledger = Ledger()
        self._known: tuple[Any, ...] | None = None  # the options of the whole optimizer, as of the last step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set comes from the constructor."""
        group = dict(param_group)
        if self.param_groups:
            group.setdefault("skipped_steps", self.param_groups[0]["skipped_steps"])
        if group.pop("process_group", self._process_group) is not self._process_group:
            raise ValueError("process_group is one for the whole optimizer, a group cannot have its own")
        check_group({**self.defaults, **group}, self.param_groups)
        if self.defaults["fused"]:
            native.required()
        super().add_param_group(group)
        try:
            check_params(self.param_groups[-1])
            check_sharding(self.param_groups[-1], self._process_group)
        except Exception:
            self.param_groups.pop()
            raise
        self._over_ranks = self._over_ranks or any(map(is_dtensor, self.param_groups[-1]["params"]))

    def telemetry(self) -> dict[str, Any]:
        """Norms, β̂ and angles of the last applied step, as floats; ``{}`` before the first.

        Keys: ``grad_norm`` (raw, before clip and decay), ``moment_norm`` (‖m_t‖), ``beta_hat``, ``cos_grad_moment``
        (between g_t and m_{t−1}), ``cos_update_grad`` (m_t and g_t), ``cos_update_moment`` (m_t and m_{t−1}), NaN where
        undefined; ``clip_scale``, ``skipped_steps``; ``scopes``: the same a group or a tensor, where that is the scope.
        The angles are free: they follow from norms that the step has anyway. Reading them may wait for the device, and
        never communicates: of sharded parameters ‖m_t‖ and the angles are those of the step before, NaN at first.
        """
        record = self._ledger.last()
        if record is None:
            return {}
        return telemetry(record, self.param_groups[0]["norm_scope"], self.skipped_steps, self._ledger.before)

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped for a gradient that was not finite."""
        saved = max((int(group["skipped_steps"]) for group in self.param_groups), default=0)
        return saved + int(self._ledger.skipped or 0)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; returns what ``closure`` returned."""
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():  # there tensors have no versions
            with torch.inference_mode(False):
                return self._step(closure)
        if torch.compiler.is_compiling() and self._over_ranks:
            return self._step_eagerly(closure)
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.param_groups:
            return loss
        recorded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(
            self.param_groups[0]["differentiable"]
        )  # the context manager takes 2 % of a small step
        try:
            parts, groups, owners = self._gather()
            if parts or self._process_group is not None:  # the other ranks wait for this one, even if it has nothing
                self._take(parts, groups, owners)
        finally:
            torch._C._set_grad_enabled(recorded)
        if self._process_group is not None and self._ledger.skipped is not None:
            # ZeroRedundancyOptimizer copies param groups to and fro around a step, and saves its copies: no waiting.
            self._bank(self.param_groups[0]["skipped_steps"] + self._ledger.skipped)
        return loss

    @_disable_dynamo  # not torch.compiler.disable, which imports all of dynamo here and now
    def _step_eagerly(self, closure: Callable[[], Any] | None) -> Any:
        """A step that takes norms over ranks is not compiled."""
        return self._step(closure)

    def _take(self, parts: list[Part], groups: list[Group], owners: list[list[Tensor]]) -> None:
        wide = self.param_groups[0]
        if not torch.compiler.is_compiling():
            self._known = check_edited(self.param_groups, self._known)
        rules = Rules(
            norm_scope=wide["norm_scope"],
            psi=wide["psi"],
            max_grad_norm=wide["max_grad_norm"],
            nonfinite=wide["nonfinite"],
            grad_scale=scalar(getattr(self, "grad_scale", None)),
            found_inf=scalar(getattr(self, "found_inf", None)),
            process_group=self._process_group,
            insist=bool(wide["fused"]),
        )
        try:
            record = self._backend().step(parts, groups, rules)
        except NonFiniteGradient as error:
            raise error.named(self.param_groups) from None
        if any(group["projection"] is not None for group in self.param_groups):
            self._project(parts, owners, record)
        versions = isinstance(record.applied, Tensor) or self._backend() is reference  # the kernel alone counts none
        if versions and not torch.compiler.is_compiling():
            for part, tensors in zip(parts, owners, strict=True):
                for p, sq in zip(tensors, part.moment_sqs, strict=True):
                    state = self.state[p]
                    m = state["momentum_buffer"]
                    self._norms[id(p)] = (m, m._version, sq, state["step"], state.get("beta_hat"))
        self._ledger.enter(record)

    def _backend(self) -> ModuleType:
        wide = self.param_groups[0]
        if wide["differentiable"] or (wide["foreach"] is False and not wide["fused"]):
            return reference
        if wide["fused"] or (wide["fused"] is None and wide["foreach"] is None and native.kernel() is not None):
            return fused_backend
        return foreach_backend

    def _gather(self) -> tuple[list[Part], list[Group], list[list[Tensor]]]:
        """The step's lists, cut so that the tensors of a part are alike; and the parameters that own them."""
        parts, groups, owners = [], [], []
        for k, group in enumerate(self.param_groups):
            plan = None if torch.compiler.is_compiling() else self._plans.get(id(group))
            if plan is not None and (part := plan.part(k, group, self.state)) is not None:
                groups.append(group_of(group, [], []))
                parts.append(part)
                owners.append(part.params)
                continue
            params: list[Tensor] = []
            grads: list[Tensor] = []
            moments: list[Tensor] = []
            moment_sqs: list[Tensor] = []
            steps: list[Tensor] = []
            beta_hats: list[Tensor] = []
            idle_steps: list[Tensor] = []
            idle_beta_hats: list[Tensor] = []
            indices: list[int] = []
            sparse = self._init_group(
                group, params, grads, moments, moment_sqs, steps, beta_hats, idle_steps, idle_beta_hats, indices
            )
            whole = params  # the parameters themselves, where the lists get the shards that lie here
            shards: list[Shards] = []
            if not torch.compiler.is_compiling() and not PLAIN.issuperset(map(type, params)):
                whole, shards = list(params), localise(params, grads, moments)
            groups.append(group_of(group, idle_steps, idle_beta_hats))
            for same in alike(params, moments, shards):
                owners.append(at(whole, same))
                parts.append(
                    Part(
                        group=k,
                        indices=at(indices, same),
                        params=real(at(params, same)),
                        grads=real(dense(at(grads, same)) if sparse else at(grads, same)),
                        moments=real(at(moments, same)),
                        moment_sqs=at(moment_sqs, same),
                        steps=at(steps, same),
                        beta_hats=at(beta_hats, same) if beta_hats else beta_hats,
                        shards=shards[same[0]] if shards else (),
                    )
                )
            if plan is not None:
                del self._plans[id(group)]
            if not torch.compiler.is_compiling() and parts and Plan.serves(parts[-1], group, self._backend()):
                self._plans[id(group)] = Plan(parts[-1])
        return parts, groups, owners

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        moments: list[Tensor],
        moment_sqs: list[Tensor],
        steps: list[Tensor],
        beta_hats: list[Tensor],
        idle_steps: list[Tensor],
        idle_beta_hats: list[Tensor],
        indices: list[int],
    ) -> bool:
        """Fill the lists from a group, making state where there is none; returns whether a gradient is sparse.

        torch.compile knows this name and form, and runs it instead of tracing it.
        """
        sqrt, sparse = group["psi"] == "sqrt", False
        for i, p in enumerate(group["params"]):
            grad = p.grad
            if grad is None:
                state = self.state.get(p)
                if state:
                    statedict.complete(state, p, group)
                    idle_steps.append(state["step"])
                    if sqrt:
                        idle_beta_hats.append(state["beta_hat"])
                continue
            state = self.state[p]
            if not state:
                self._meet(p, group)
            m = state.get("momentum_buffer")
            if m is None or m.device != p.device or "step" not in state or (sqrt and "beta_hat" not in state):
                m = statedict.complete(state, p, group)
            params.append(p)
            grads.append(grad)
            sparse = sparse or grad.is_sparse
            moments.append(m)
            known = self._norms.get(id(p))
            if (
                known is None
                or known[0] is not m
                or known[1] != m._version
                or known[3] is not state["step"]
                or (sqrt and known[4] is not state["beta_hat"])
            ):
                m = statedict.complete(state, p, group)
                sq = self._backend().moment_square(real([local(m.detach())])[0])
                if known is not None and known[2].device == sq.device:
                    sq = known[2].copy_(sq)  # in place: a compiled graph, or a plan, holds this one
                self._prune()
                known = self._norms[id(p)] = (m, m._version, sq, state["step"], state.get("beta_hat"))
            moment_sqs.append(known[2])
            steps.append(state["step"])
            if sqrt:
                beta_hats.append(state["beta_hat"])
            indices.append(i)
        if self._ledger.record is None:
            places = [[indices[j] for j in same] for same in alike(params, moments)]
            k = next(k for k, other in enumerate(self.param_groups) if other is group)
            everywhere = (p.device for other in self.param_groups for p in other["params"])
            device = next(everywhere, torch.device("cpu"))  # a rank's share of a model may be nothing
            self._ledger.open(k, places, device, last=k == len(self.param_groups) - 1)
        return sparse

    def _meet(self, p: Tensor, group: dict[str, Any]) -> None:
        """Check a parameter at its first step: trainers put sharded ones in the place of those that were given."""
        alone = {**group, "params": [p]}
        alone.pop("param_names", None)
        check_params(alone)
        check_sharding(alone, self._process_group)
        self._over_ranks = self._over_ranks or is_dtensor(p)

    def _prune(self) -> None:
        """Let go of parameters and groups that were replaced: what is known of them holds their moments."""
        if len(self._norms) > sum(len(group["params"]) for group in self.param_groups):
            alive = {id(p) for group in self.param_groups for p in group["params"]}
            self._norms = {key: known for key, known in self._norms.items() if key in alive}

    def _project(self, parts: Sequence[Part], owners: Sequence[Sequence[Tensor]], record: Record) -> None:
        for part, tensors in zip(parts, owners, strict=True):
            projection = self.param_groups[part.group]["projection"]
            if projection is None or record.applied is False:
                continue
            for p in map(local, tensors):  # of a shard only what works entry by entry: checked when it was given
                new = projected(projection, p.clone())
                if isinstance(record.applied, Tensor):
                    new = torch.where(record.applied.to(p.device), new, p)
                p.copy_(new)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; ``skipped_steps`` stands in every group, projection and process group in none."""
        self._count_skipped()
        state = super().state_dict()
        for group in state["param_groups"]:
            group["projection"] = None  # not without the key: torch's flattened state dicts ask for every one
            group["momentum_dtype"] = statedict.dtype_name(group["momentum_dtype"])
        return state

    def _count_skipped(self) -> None:
        """Bring the count in the param groups, which is what gets saved, up to date."""
        self._bank(self.skipped_steps)

    def _bank(self, skipped: int | Tensor) -> None:
        for group in self.param_groups:
            group["skipped_steps"] = skipped
        if self._ledger.skipped is not None:
            self._ledger.skipped = self._ledger.skipped * 0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ACMo or of SGD; what it lacks stays as it is here. One that does not fit changes nothing."""
        loaded: list[dict[str, Any]] = []

        def check(_: Optimizer, state: dict[str, Any]) -> None:  # runs after the hooks that users have registered
            if "param_groups" in state:
                state["param_groups"] = [statedict.typed(group) for group in state["param_groups"]]
            statedict.check(state, self.param_groups, self.defaults)
            loaded.append(state)

        before = self.param_groups

        def restore(_: Optimizer) -> None:  # runs before the hooks that users have registered
            statedict.restore(self.state, self.param_groups, before, self.defaults, loaded[0])
            self._forget()

        handles = (
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            with torch.inference_mode(False):  # there tensors have no versions
                super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        self._count_skipped()
        return {**super().__getstate__(), "_process_group": self._process_group, "_over_ranks": self._over_ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "defaults" in state:  # unpickled or copied, not loaded
            self._forget()
            for group in self.param_groups:
                for key, value in self.defaults.items():
                    group.setdefault(key, value)

    def __copy__(self) -> "ACMo":
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update(self.__dict__)  # what is derived from the state is shared as the state is
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> "ACMo":
        for live in (self._process_group, *(group["projection"] for group in (self.defaults, *self.param_groups))):
            memo[id(live)] = live  # a copy of a process group would be another one
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin
