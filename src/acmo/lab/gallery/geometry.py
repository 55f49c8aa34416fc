"""The geometry of one step: gradient, moment, the moment made as long as β times the gradient, and their sum."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from acmo.lab.gallery.canvas import INK, LINE, SOFT, colour, content, figure
from acmo.lab.gallery.paths import BETA
from acmo.optimizer import ACMo

FAINT = "#b9bcc2"
GRADIENT = (0.25, 1.1)  # g_t of the picture
MOMENT = (2.1, -2.2)  # m_{t−1}: longer than g_t by far, and against it


class Step(NamedTuple):
    """The vectors of a step, as ACMo made them."""

    g: np.ndarray
    before: np.ndarray  # m_{t−1}
    beta_hat: float
    m: np.ndarray  # m_t


def step(g: Any, before: Any) -> Step:
    """Let ACMo take two steps: the first makes the moment ``before``, the second meets the gradient ``g``."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = ACMo([theta], lr=0.1, momentum=BETA)
    moments = []
    for gradient in (before, g):  # m_1 = g_1
        theta.grad = torch.tensor(gradient, dtype=torch.float64)
        opt.step()
        moments.append(opt.state[theta]["momentum_buffer"].numpy().copy())
    return Step(np.array(g), moments[0], opt.telemetry()["beta_hat"], moments[1])


def draw() -> bytes:
    """Return the picture as SVG: the trouble with a sum, the calibrated sum, and every sum that can come out."""
    one = step(GRADIENT, MOMENT)
    with figure(9.6, 4.3, layout=None) as drawn:
        drawn.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.83, wspace=0.06)
        panels = drawn.subplots(1, 3)
        for axes, panel in zip(panels, (_trouble, _calibrated, _every), strict=True):
            axes.set(xlim=(-1.2, 2.8), ylim=(-2.35, 2.25), aspect="equal", xticks=[], yticks=[])
            axes.spines[:].set_color(LINE)
            panel(axes, one)
        return content(drawn, "svg")


def _trouble(axes: Any, one: Step) -> None:
    _caption(
        axes,
        "1  SGD: the moment as it is",
        "A long moment outvotes the gradient, and the\nstep goes uphill on its own batch.",
    )
    _half_plane(axes, one.g, 0.0, SOFT)
    axes.text(-1.05, -2.2, r"$\langle m, g_t\rangle < 0$: uphill", color=SOFT)
    total = one.g + BETA * one.before
    axes.plot(*zip(one.g, total, BETA * one.before, strict=True), ":", color=SOFT, linewidth=1)
    _arrow(axes, one.before, SOFT, "$m_{t-1}$", (-0.72, -0.02))
    _arrow(axes, one.g, INK, "$g_t$", (-0.12, 0.12))
    _arrow(axes, total, colour("sgd-momentum"), r"$g_t + \beta m_{t-1}$", (-0.6, 0.95))


def _calibrated(axes: Any, one: Step) -> None:
    _caption(
        axes,
        "2  ACMo: calibrated first",
        r"Rescaled to $\beta\|g_t\|$, it can turn the step," "\nbut never against the gradient.",
    )
    _half_plane(axes, one.g, 1 - BETA, colour("acmo"))
    axes.text(-1.05, 2.02, r"$\langle m, g_t\rangle \geq (1-\beta)\,\|g_t\|^2$", color=colour("acmo"))
    axes.text(-1.05, -2.2, r"the step is $-\alpha\, m_t$", color=SOFT)
    scaled = one.beta_hat * one.before
    axes.plot(*zip(one.g, one.m, scaled, strict=True), ":", color=SOFT, linewidth=1)
    _arrow(axes, one.before, FAINT, "$m_{t-1}$", (-0.72, -0.02))
    _arrow(axes, scaled, SOFT, r"$\hat\beta_t m_{t-1}$", (0.12, -0.02))
    _arrow(axes, one.g, INK, "$g_t$", (-0.12, 0.12))
    _arrow(axes, one.m, colour("acmo"), r"$m_t = g_t + \hat\beta_t m_{t-1}$", (0.1, 0.08))


def _every(axes: Any, one: Step) -> None:
    widest = f"{math.degrees(math.asin(BETA)):.0f}°"
    _caption(
        axes,
        "3  wherever the moment pointed",
        f"24 steps of ACMo: each $m_t$ is within\narcsin $\\beta$ = {widest} of the gradient.",
    )
    _half_plane(axes, one.g, 1 - BETA, colour("acmo"))
    towards = math.atan2(one.g[1], one.g[0])
    for side in (-1, 1):  # the tangents to the circle: no moment is further from g_t than these
        angle = towards + side * math.asin(BETA)
        axes.plot([0, 2 * math.cos(angle)], [0, 2 * math.sin(angle)], "--", color=SOFT, linewidth=0.9)
    around = np.linspace(0, 2 * math.pi, 181)
    circle = one.g + BETA * np.linalg.norm(one.g) * np.column_stack([np.cos(around), np.sin(around)])
    axes.plot(*circle.T, color=colour("acmo"), linewidth=0.9)
    length = np.linalg.norm(one.before)
    for turn in np.linspace(0, 2 * math.pi, 24, endpoint=False):
        end = step(GRADIENT, (length * math.cos(turn), length * math.sin(turn))).m
        axes.plot(*zip((0, 0), end, strict=True), color=colour("acmo"), linewidth=0.6, alpha=0.55)
        axes.plot(*end, "o", color=colour("acmo"), markersize=3.5)
    _arrow(axes, one.g, INK, "$g_t$", (0.08, 0.06))
    axes.text(-0.3, -0.95, r"circle around $g_t$, radius $\beta\|g_t\|$", color=colour("acmo"))


def _caption(axes: Any, title: str, text: str) -> None:
    axes.set_title(title, pad=36)
    axes.text(0, 1.035, text, transform=axes.transAxes, color=SOFT, linespacing=1.35)


def _half_plane(axes: Any, g: np.ndarray, share: float, tint: str) -> None:
    """Shade where ⟨m, g⟩ ≥ share ‖g‖², or, for 0, where it is negative."""
    along = 9 * np.array([-g[1], g[0]])
    foot, far = share * g, 9 * g * (1 if share else -1)
    corners = [foot + along, foot - along, foot - along + far, foot + along + far]
    axes.fill(*zip(*corners, strict=True), color=tint, alpha=0.08, linewidth=0)
    axes.plot(*zip(foot + along, foot - along, strict=True), color=tint, linewidth=0.9, alpha=0.6)


def _arrow(axes: Any, end: np.ndarray, tint: str, label: str, beside: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>,head_width=0.25,head_length=0.5", "color": tint, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xytext=(0, 0), xy=tuple(end), arrowprops=style)
    axes.text(end[0] + beside[0], end[1] + beside[1], label, color=tint, fontsize=11)
