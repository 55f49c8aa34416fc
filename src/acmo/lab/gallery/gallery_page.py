"""The interactive page: one small file, its script written by hand, without any request to the network."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path as File
from typing import Any

import numpy as np
from contourpy import FillType, contour_generator
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from acmo.lab.gallery.canvas import title
from acmo.lab.gallery.paths import BETA, GRID, Path, Scene, tenth
from acmo.lab.gallery.pictures import BOUND, grid
from acmo.lab.gallery.surfaces import Surface

HERE = File(__file__).parent
WIDE, HIGH = 1400, 800  # the unit of the map


def render(scenes: Sequence[Scene], seed: int) -> str:
    """Return the page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    steps = len(scenes[0].paths[0].cosine)
    last = tenth(steps)
    return environment.get_template("page.html").render(
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        js=(HERE / "page.js").read_text(encoding="utf-8"),
        data={"steps": steps, "bound": BOUND, "scenes": [_scene(scene) for scene in scenes]},
        scenes=[scene.surface for scene in scenes],
        optimizers=[(path.optimizer, title(path.optimizer)) for path in scenes[0].paths],
        size=(WIDE, HIGH),
        steps=steps,
        last=last,
        ends=[(s.surface, [(title(p.optimizer), short(p.value[-last:].mean())) for p in s.paths]) for s in scenes],
        seed=seed,
        grid=GRID,
        beta=BETA,
        widest=math.degrees(math.asin(BETA)),
    )


def _scene(scene: Scene) -> dict[str, Any]:
    surface = scene.surface
    return {
        "name": surface.name, "formula": surface.formula, "noise": surface.noise, "levels": contours(surface),
        "start": place(surface, [surface.start])[0], "minimum": place(surface, [surface.minimum])[0],
        "paths": [_path(surface, path) for path in scene.paths],
    }  # fmt: skip


def _path(surface: Surface, path: Path) -> dict[str, Any]:
    away = np.linalg.norm(path.theta - np.array(surface.minimum), axis=1)
    return {
        "optimizer": path.optimizer, "title": title(path.optimizer), "lr": short(path.lr),
        "at": place(surface, path.theta), "f": [short(f) for f in path.value], "away": [short(d) for d in away],
        "cos": [_cosine(float(c)) for c in path.cosine],
    }  # fmt: skip


def _cosine(value: float) -> float | None:
    """Return three decimals that keep the sign: the page counts the steps uphill by it."""
    if math.isnan(value):
        return None
    return min(round(value, 3), -0.001) if value < 0 else round(value, 3)


def short(value: float) -> float:
    """Return three digits: what the page shows, and enough for its lines."""
    return float(f"{value:.3g}")


def place(surface: Surface, points: Iterable[Any]) -> list[list[int]]:
    """Return points of the plane in units of the map, y downwards."""
    x0, x1, y0, y1 = surface.view
    return [[round((x - x0) / (x1 - x0) * WIDE), round((y1 - y) / (y1 - y0) * HIGH)] for x, y in points]


def contours(surface: Surface) -> list[str]:
    """Return, for each level, where f is above it, as the path of an SVG. Drawn over each other they darken uphill."""
    x, y, f = grid(surface, 211, 121)
    generator = contour_generator(x, y, f, fill_type=FillType.OuterOffset)
    drawn = []
    for level in surface.levels:
        rings = []
        for points, offsets in zip(*generator.filled(level, float(f.max()) + 1), strict=True):
            rings += [_ring(place(surface, points[a:b])) for a, b in pairwise(offsets)]
        drawn.append("".join(rings))
    return drawn


def _ring(points: list[list[int]]) -> str:
    """Return a closed line without the points that no eye would miss, as relative moves: half the bytes."""
    kept = [points[0]]
    for here, after in pairwise(points[1:]):
        (ax, ay), (bx, by), (cx, cy) = kept[-1], here, after
        off = abs((cx - ax) * (by - ay) - (cy - ay) * (bx - ax)) / (math.hypot(cx - ax, cy - ay) or 1)
        if off > 0.7:
            kept.append(here)
    if len(kept) < 3:
        return ""  # smaller than a unit
    moves = (f"{b[0] - a[0]} {b[1] - a[1]}" for a, b in pairwise(kept))
    return f"M{kept[0][0]} {kept[0][1]}l" + " ".join(moves).replace(" -", "-") + "z"
