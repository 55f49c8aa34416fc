"""The formulas of lines 4 and 5, on vectors of groups or tensors in float64."""

import triton
import triton.language as tl

from acmo.backends.triton.fields import (
    LR_IS_64,
)


@triton.jit
def load_number(row, value, address, here):
    """Return numbers of groups: those in the table, or those that tensors on the device hold."""
    at = tl.load((row + address).to(tl.pointer_type(tl.int64), bitcast=True), here, 0)
    given = tl.load(row + value, here, 0.0)
    is_64 = tl.load(row + LR_IS_64, here, 0.0) != 0
    as_64 = tl.load(at.to(tl.pointer_type(tl.float64)), here & (at != 0) & is_64, 0.0)
    as_32 = tl.load(at.to(tl.pointer_type(tl.float32)), here & (at != 0) & (is_64 == 0), 0.0)
    return tl.where(at == 0, given, tl.where(is_64, as_64, as_32.to(tl.float64)))


@triton.jit
def calibrate(grad, moment, beta, delta, t, previous, SQRT: tl.constexpr):
    """Lines 4 and 5: return the β̂ to apply, and the β̂ to keep."""
    divisor = moment + delta
    line_4 = tl.where(divisor != 0, beta * grad / tl.where(divisor != 0, divisor, 1.0), float("inf"))
    beta_hat = line_4
    kept = line_4
    if SQRT:
        growth = tl.sqrt(t / tl.maximum(t - 1.0, 1.0))
        bound = tl.where(t > 1, growth * previous, float("inf"))
        beta_hat = tl.where(bound < beta_hat, bound, beta_hat)
        kept = tl.where(grad == 0, previous, tl.where(moment == 0, line_4, beta_hat))
    return tl.where(moment == 0, 0.0, beta_hat), kept


@triton.jit
def find_length(grad_sq, moment_sq, inner, entries, beta_hat, LEVEL: tl.constexpr):
    """Return √n/‖m_t‖ of the unit step; 0 where ‖m_t‖ is rounding."""
    square = grad_sq + 2.0 * beta_hat * inner + beta_hat * beta_hat * moment_sq
    norm = tl.sqrt(tl.where(square < 0, 0.0, square))
    vanishes = norm <= LEVEL * tl.sqrt(grad_sq)
    return tl.where(vanishes, 0.0, tl.sqrt(entries) / tl.where(vanishes, 1.0, norm))
