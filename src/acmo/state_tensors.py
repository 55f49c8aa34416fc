"""The tensors of one parameter's state."""

from typing import Any

import torch
from torch import Tensor

from acmo import sharding
from acmo.quantise import dequantise, quantise
from acmo.scopes import resolve_scope
from acmo.step_data import scalar_dtype


def complete_state(state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> Tensor:
    """Create what a parameter's state lacks, and return its moment. A state loaded from SGD lacks some of it.

    A state follows its parameter to another device; one that has no data (on meta) is created again. A moment follows
    the group's ``momentum_dtype``; where that is None, it stays as it is, unless it is int8.
    """
    dtype = moment_dtype(p, group)
    m = state.get("momentum_buffer")
    if m is not None and m.device != p.device:
        moved = {} if m.is_meta else {k: x.to(p.device) for k, x in state.items() if isinstance(x, Tensor)}
        state.clear()
        state.update(moved)
        m = state.get("momentum_buffer")
    if m is None:
        if not (p.is_floating_point() or p.is_complex()):
            raise ValueError(f"a parameter of {p.dtype} has a gradient, and ACMo steps floating point and complex ones")
        m = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)
        state["momentum_buffer"] = m
    if m.dtype == torch.int8:
        conform(state, "momentum_scale", sharding.full_per_slice(p, 0.0, torch.float32))
    if m.dtype != dtype and (group["momentum_dtype"] is not None or m.dtype == torch.int8):
        state.update(copy_moment(m, state.pop("momentum_scale", None), p, dtype))
        m = state["momentum_buffer"]
    conform(state, "step", torch.zeros((), dtype=torch.float32, device=p.device))
    if group["psi"] != "identity":  # no bound for the first step
        conform(state, "beta_hat", make_beta_hat(p, group))
    return m


def moment_dtype(p: Tensor, group: dict[str, Any]) -> torch.dtype:
    """Return the dtype of a parameter's moment. int8 is for real tensors of two dimensions and more with whole rows."""
    dtype: torch.dtype = group["momentum_dtype"] or p.dtype
    if dtype != torch.int8:
        return dtype
    rows_are_cut = sharding.is_dtensor(p) and sharding.sharding_groups(p, "row")
    return p.dtype if p.ndim < 2 or p.is_complex() or rows_are_cut else dtype


def make_beta_hat(p: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the β̂ of a parameter before its first step: infinite; one number, or by row one per row or column."""
    dtype, kind = scalar_dtype(p.device), resolve_scope(group["norm_scope"], p.shape)
    if kind in ("row", "column"):
        return sharding.full_per_slice(p, torch.inf, dtype, dim=0 if kind == "row" else 1)
    # Of shape (1,): of a 0-dim float64 on the CPU torch.compile makes a symbol, and then traces again.
    return torch.full((1,), torch.inf, dtype=dtype, device=p.device)


def copy_moment(m: Tensor, scale: Tensor | None, p: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a saved moment as entries of the state of p, in its dtype there: bytes become numbers and vice versa."""
    if torch.int8 not in (m.dtype, dtype):
        return {"momentum_buffer": m.detach().to(dtype=dtype, copy=True)}
    if m.dtype == dtype:
        assert scale is not None
        scale = scale.detach().to(p.device, torch.float32, copy=True)
        return {"momentum_buffer": m.detach().clone(), "momentum_scale": scale}
    new = torch.empty_like(m.detach(), dtype=dtype)
    here, there = sharding.local(m.detach()), sharding.local(new)
    if scale is not None:
        there.copy_(dequantise(here, sharding.local(scale).to(here.device), dtype))
        return {"momentum_buffer": new}
    scale = sharding.full_per_slice(p, 0.0, torch.float32)
    quantise(here.to(torch.float32), there, sharding.local(scale))
    return {"momentum_buffer": new, "momentum_scale": scale}


def conform(state: dict[str, Any], key: str, default: Tensor) -> None:
    """Give a number of the state, or one per row, the default's form in memory, which the kernel relies on."""
    value = state.get(key)
    wanted = (default.dtype, default.device, default.shape, True)
    if value is None:
        state[key] = default
    elif not isinstance(value, Tensor) or (value.dtype, value.device, value.shape, value.is_contiguous()) != wanted:
        if isinstance(value, Tensor) and value.shape == default.shape:
            state[key] = value.to(default).contiguous()
        elif isinstance(value, Tensor) and value.numel() != 1:
            many = f" or {tuple(default.shape)}" if default.ndim else ""
            hint = ": if norm_scope has changed, delete it from optimizer.state[p]" if default.ndim else ""
            raise ValueError(
                f"{key} in a parameter's state must be one number{many}, got a tensor of shape "
                f"{tuple(value.shape)}{hint}"
            )
        else:
            state[key] = torch.full_like(default, float(value))
