"""The three figures: rate against bound, angle histogram, and the geometry of g, m and their bisector."""

from pathlib import Path
from typing import Any

import numpy as np

from acmo.theory.auxiliary import compute_beta_hat, hard_margin_minimiser
from acmo.theory.descent import Descent
from acmo.theory.extras import import_extra
from acmo.theory.rate import Rate


def new_figure(width: float = 6.4, height: float = 4.4) -> tuple[Any, Any]:
    """Return a figure and its axes, without pyplot: no global state, no display."""
    figure = import_extra("matplotlib.figure", "a figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def rate_figure(rate: Rate, out: Path) -> Path:
    """Draw E‖∇f(θ_o)‖² over T below both bounds, log-log."""
    figure, axes = new_figure()
    axes.loglog(rate.T, rate.printed, ":", color="tab:gray", label="bound, as printed (no gap in it)")
    axes.loglog(rate.T, rate.repaired, "--", color="tab:red", label="bound, repaired")
    axes.errorbar(
        rate.T, rate.averaged, 2 * rate.stderr, color="tab:blue",
        label=f"measured, mean over o: slope {rate.exponent():.2f}",
    )  # fmt: skip
    axes.loglog(rate.T, rate.sampled, "o", color="tab:blue", mfc="white", label="measured, o drawn by IterateSampler")
    axes.set(xlabel="steps T", ylabel="E‖∇f(θ_o)‖²", title=f"Theorem 4.1, {rate.seeds} seeds")
    axes.legend(fontsize="small")
    return save(figure, out / "rate.png")


def angle_figure(descents: list[Descent], out: Path) -> Path:
    """Draw histograms of the cosine between each step and the current gradient, on digits."""
    figure, axes = new_figure()
    bins = np.linspace(-1, 1, 61)
    for d in descents:
        axes.hist(d.cosines, bins, density=True, histtype="step", linewidth=1.5, label=f"{d.optimizer}, lr {d.lr:g}")
    axes.axvline(0, color="black", linewidth=0.5)
    axes.set(xlabel="cos(step, gradient)", ylabel="density", yscale="log", title="Angles of a training on digits")
    axes.legend(fontsize="small", loc="upper left")
    return save(figure, out / "angles.png")


def geometry_figure(out: Path) -> Path:
    """Draw g_t, m_{t−1} and three directions: the bisector (β = 1, δ = 0), ACMo's default, and eq. 6's projection."""
    figure, axes = new_figure(5.4, 4.4)
    g, m = np.array([0.35, 1.0]), np.array([1.9, -0.35])
    unit = np.linalg.norm(g) / np.linalg.norm(m)
    arrows = {
        "m (the moment before)": (m, "tab:cyan"),
        "g (the gradient)": (g, "tab:olive"),
        "β = 1, δ = 0: the bisector": (g + compute_beta_hat(g, m, 1.0) * m, "tab:red"),
        "β = 0.9, the default": (g + compute_beta_hat(g, m, 0.9) * m, "tab:pink"),
        "eq. 6: g without m": (-hard_margin_minimiser(g, m[None], 1.0), "tab:green"),
    }
    for label, (v, color) in arrows.items():
        axes.annotate("", xytext=(0, 0), xy=tuple(v), arrowprops={"arrowstyle": "->", "color": color, "lw": 2})
        axes.plot([], [], color=color, label=label)
    # The rhombus with the sides g and m·‖g‖/‖m‖: its diagonal bisects the angle.
    corner = np.array([g, g + unit * m, unit * m])
    axes.plot(corner[:, 0], corner[:, 1], ":", color="gray")
    axes.set(xlim=(-0.3, 2.2), ylim=(-0.6, 1.4), aspect="equal", title="The step is −α times these")
    axes.legend(fontsize="small", loc="upper right")
    return save(figure, out / "geometry.png")


def save(figure: Any, path: Path) -> Path:
    """Write the figure; create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
