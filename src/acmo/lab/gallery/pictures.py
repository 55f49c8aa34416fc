"""The still pictures of the paths: where they went, how low they came, and at what angles."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap

from acmo.lab.gallery.canvas import INK, LINE, SOFT, colour, content, figure, title
from acmo.lab.gallery.paths import BETA, Path, Scene
from acmo.lab.gallery.surfaces import Surface

BOUND = math.sqrt(1 - BETA**2)  # cos(arcsin β): Lemma A.1's circle seen from the origin
_GROUND = LinearSegmentedColormap.from_list("ground", ["#ffffff", "#aab4c2"])


def grid(surface: Surface, across: int = 281, down: int = 161) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and f over the surface's view."""
    x0, x1, y0, y1 = surface.view
    x, y = np.linspace(x0, x1, across), np.linspace(y0, y1, down)
    points = torch.from_numpy(np.stack(np.meshgrid(x, y), axis=-1))
    return x, y, surface.value(points).numpy()


def gallery(scenes: Sequence[Scene]) -> bytes:
    """Return a PNG: above, each surface with its paths; below, f over the steps."""
    with figure(12.6, 4.9) as drawn:
        axes = drawn.subplots(2, len(scenes), height_ratios=[2.1, 1])
        for (above, below), scene in zip(axes.T, scenes, strict=True):
            _map(above, scene)
            for path in scene.paths:
                below.semilogy(path.value, label=title(path.optimizer), **_line(path))
            below.set(xlabel="step", xlim=(0, len(path.value) - 1))
            below.grid(color=LINE, linewidth=0.5)
            below.spines[["top", "right"]].set_visible(False)
        axes[1, 0].set_ylabel("f(θ)")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        marks = [axes[0, 0].plot([], [], color=INK, linestyle="", marker=m, markersize=7)[0] for m in ("o", "*")]
        labels += ["start", "minimum"]
        drawn.legend(handles + marks, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        return content(drawn, "png")


def _map(axes: Any, scene: Scene) -> None:
    surface = scene.surface
    x, y, f = grid(surface)
    axes.contourf(x, y, f, [-1, *surface.levels, math.inf], colors=_GROUND(np.linspace(0, 1, len(surface.levels) + 1)))
    axes.contour(x, y, f, surface.levels, colors=SOFT, linewidths=0.3, alpha=0.6)
    for path in scene.paths[::-1]:  # ACMo on top
        axes.plot(*path.theta.T, **_line(path))
        axes.plot(*path.theta[-1], "o", color=colour(path.optimizer), markersize=5, markeredgecolor="white")
    axes.plot(*surface.start, "o", color=INK, markersize=5)
    axes.plot(*surface.minimum, "*", color=INK, markersize=10, markeredgecolor="white", zorder=5)
    noise = f"  (gradients with noise, σ = {surface.noise:g})" if surface.noise else ""
    axes.set_title(surface.title + noise)
    axes.set(xlim=surface.view[:2], ylim=surface.view[2:], aspect="equal")


def _line(path: Path) -> dict[str, Any]:
    return {"color": colour(path.optimizer), "linewidth": 1.8 if path.optimizer == "acmo" else 1.2}


def angles(scene: Scene) -> bytes:
    """Return an SVG: the cosine between each step and its batch's gradient, one row per optimizer."""
    with figure(9.6, 4.9) as drawn:
        rows = drawn.subplots(len(scene.paths), 2, width_ratios=[5, 1], sharey=True, sharex="col")
        for (over, spread), path in zip(rows, scene.paths, strict=True):
            tint, last = colour(path.optimizer), len(path.cosine)
            over.plot(range(1, last + 1), path.cosine, "o-", color=tint, markersize=2.6, linewidth=0.3)
            spread.hist(path.cosine, np.linspace(-1, 1, 21), orientation="horizontal", color=tint, rwidth=0.85)
            over.set(ylim=(-1.08, 1.08), xlim=(0, last + 1), yticks=[-1, 0, 1], ylabel="cos(step, gradient)")
            over.set_title(f"{title(path.optimizer)}: {path.uphill} of {last} steps uphill on their own batch")
            for axes in (over, spread):
                axes.spines[["top", "right"]].set_visible(False)
                axes.axhspan(-1.08, 0, color=SOFT, alpha=0.1, linewidth=0)
                if path.optimizer == "acmo":
                    axes.axhline(BOUND, color=INK, linestyle="--", linewidth=0.9)
        least = rf"$\sqrt{{1-\beta^2}}$ = {BOUND:.2f}, the least that ACMo can have"
        rows[0, 0].text(last, BOUND - 0.08, least, ha="right", va="top")
        rows[0, 1].set_title("spread")
        rows[-1, 0].set_xlabel(f"step in the {scene.surface.title.lower()} (grey: the step goes uphill)")
        rows[-1, 1].set_xlabel("steps")
        return content(drawn, "svg")
