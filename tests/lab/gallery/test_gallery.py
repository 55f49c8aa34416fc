"""The gallery: surfaces and paths are what they are called, the pictures are what the code draws, the page works.

The pictures in docs/ are made by: ``acmo gallery --out docs/images && mv docs/images/gallery.html docs/``
"""

import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch

from acmo import ACMo
from acmo.lab.gallery import canvas, geometry, paths, write
from acmo.lab.gallery import gallery_page as page
from acmo.lab.gallery.surfaces import SURFACES
from acmo.lab.report import paper_figures as figures
from tests.support.gallery import data_of
from tests.support.lab_command import run_command
from tests.support.oracle import Oracle
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
NAMES = ["gallery.html", "gallery.png", "geometry.svg", "angles.svg"]
by_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda s: s.name)


def gradient(name: str, x: float, y: float) -> np.ndarray:
    """Worked out by hand."""
    if name == "rosenbrock":
        return np.array([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)])
    if name == "valley":
        return np.array([0.1 * x, 4 * y])
    a, b, c = 1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3
    return 2 * np.array([a * (y - 1) + b * (y**2 - 1) + c * (y**3 - 1), a * x + 2 * b * x * y + 3 * c * x * y**2])


@pytest.fixture(scope="module")
def scenes():
    return paths.trace(200, 0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery") / "new"
    assert [path.name for path in write(folder, 30, 1)] == NAMES
    return folder


def noise_of(surface, steps: int = 200, seed: int = 0) -> np.ndarray:
    """What the paths are shown under: the first of two streams."""
    both = torch.randn(2, steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return surface.noise * both[0].numpy()


# Surfaces


@by_surface
def test_gradients_are_those_worked_out_by_hand(surface):
    points = torch.rand(50, 2, dtype=torch.float64) * 6 - 3
    by_hand = [gradient(surface.name, *point) for point in points.tolist()]
    np.testing.assert_allclose(surface.gradient(points).numpy(), by_hand, rtol=1e-10, atol=1e-10)


@by_surface
def test_the_minimum_is_the_minimum(surface):
    minimum = torch.tensor(surface.minimum, dtype=torch.float64)
    assert surface.value(minimum) == 0
    assert not surface.gradient(minimum).any()
    around = minimum + torch.randn(1000, 2, dtype=torch.float64) * 0.5
    assert (surface.value(around) > 0).all()
    curvature = torch.autograd.functional.hessian(surface.value, minimum)
    assert (torch.linalg.eigvalsh(curvature) > 0).all()


def test_the_classics_have_their_published_values_at_the_start():
    values = {s.name: float(s.value(torch.tensor(s.start, dtype=torch.float64))) for s in SURFACES}
    assert values["rosenbrock"] == pytest.approx(24.2)
    assert values["beale"] == 14.203125


@by_surface
def test_pictures_show_angles_as_they_are(surface):
    x0, x1, y0, y1 = surface.view
    assert (x1 - x0) / (y1 - y0) == pytest.approx(page.WIDE / page.HIGH, rel=1e-3)


# Paths


def by_hand(name: str, surface, lr: float, noise: np.ndarray) -> np.ndarray:
    """The path in NumPy: ACMo by the tests' oracle, the others by their textbook."""
    theta, m, v = np.array(surface.start), np.zeros(2), np.zeros(2)
    acmo = Oracle([{"params": [theta], "lr": lr}])
    places = [theta]
    for t, xi in enumerate(noise, start=1):
        g = gradient(surface.name, *theta) + xi
        if name == "acmo":
            acmo.step([[g]])
            theta = acmo.theta[0, 0]
        elif name == "sgd-momentum":
            m = 0.9 * m + g
            theta = theta - lr * m
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            theta = theta - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        places.append(theta)
    return np.array(places)


def test_paths_equal_a_recomputation_in_numpy(scenes):
    for surface, traced in scenes:
        assert tuple(path.optimizer for path in traced) == ("acmo", "sgd-momentum", "adam")
        for path in traced:
            expected = by_hand(path.optimizer, surface, path.lr, noise_of(surface))
            np.testing.assert_allclose(path.theta, expected, rtol=1e-7, atol=1e-7, err_msg=f"{surface.name} {path[0]}")
            values = [float(surface.value(torch.from_numpy(p))) for p in expected]
            np.testing.assert_allclose(path.value, values, rtol=1e-4, atol=1e-12)


@by_surface
@pytest.mark.parametrize("optimizer", paths.OPTIMIZERS)
def test_the_rate_picked_is_the_best_of_single_runs(surface, optimizer):
    noise = surface.noise * torch.randn(40, 2, dtype=torch.float64)
    means = []
    for lr in paths.GRID:
        mean = paths.follow(surface, optimizer, lr, noise).value[-4:].mean()
        means.append(mean if math.isfinite(mean) else math.inf)
    assert paths.pick(surface, optimizer, noise) == paths.GRID[int(np.argmin(means))]


def test_no_rate_picked_is_at_an_end_of_the_grid(scenes):
    picked = {path.lr for _, traced in scenes for path in traced}
    assert len(picked) > 3
    assert picked <= set(paths.GRID[1:-1])


def test_cosines_are_acmo_s_own_and_never_below_the_bound(scenes):
    for surface, traced in scenes:
        theta = torch.tensor(surface.start, dtype=torch.float64, requires_grad=True)
        opt = ACMo([theta], lr=traced[0].lr)
        told = []
        for xi in noise_of(surface):
            theta.grad = surface.gradient(theta) + torch.from_numpy(xi)
            opt.step()
            told.append(opt.telemetry()["cos_update_grad"])
        np.testing.assert_allclose(traced[0].cosine, told, atol=1e-5)
        assert min(told) > math.sqrt(1 - paths.BETA**2) - 1e-9
        assert traced[0].uphill == 0
        assert traced[1].uphill > 10
        assert traced[2].uphill > 10


def test_a_step_lost_in_rounding_has_no_angle():
    path = paths.follow(SURFACES[2], "sgd-momentum", 1e-12, torch.zeros(3, 2, dtype=torch.float64))
    assert np.isnan(path.cosine).all()
    assert path.uphill == 0


def test_a_seed_makes_the_noise_and_nothing_else():
    one, same, other = (paths.trace(12, seed) for seed in (3, 3, 4))
    for i in range(3):
        for a, b, c in zip(one[i].paths, same[i].paths, other[i].paths, strict=True):
            assert np.array_equal(a.theta, b.theta)
            assert np.array_equal(a.theta, c.theta) == (SURFACES[i].noise == 0)


# Pictures


def test_the_geometry_is_a_step_of_acmo():
    one = geometry.step(geometry.GRADIENT, geometry.MOMENT)
    g, before = np.array(geometry.GRADIENT), np.array(geometry.MOMENT)
    assert one.beta_hat == pytest.approx(0.9 * np.linalg.norm(g) / np.linalg.norm(before))
    np.testing.assert_allclose(one.before, before)
    np.testing.assert_allclose(one.m, g + one.beta_hat * before, rtol=1e-12)
    # What the captions say.
    assert np.linalg.norm(one.m - g) == pytest.approx(0.9 * np.linalg.norm(g))
    assert one.m @ g >= (1 - 0.9) * (g @ g)
    assert (g + 0.9 * before) @ g < 0


@pytest.mark.slow
def test_the_same_seed_draws_the_same_bytes(drawn, tmp_path):
    for path in write(tmp_path, 30, 1):
        assert path.read_bytes() == (drawn / path.name).read_bytes(), path.name


def test_optimizers_have_the_report_s_colours():
    light, dark = (page.HERE / "page.css").read_text().split("@media (prefers-color-scheme: dark)")
    script = (Path(figures.__file__).parent / "page.js").read_text()
    dark_colours = json.loads(re.search(r"dark: (\[.*?\])", script).group(1))
    for i, name in enumerate(("acmo", "sgd-momentum", "adam")):
        assert canvas.colour(name) == figures.COLOURS[i]
        assert f"--{name}: {figures.COLOURS[i]}" in light
        assert f"--{name}: {dark_colours[i]}" in dark


def test_the_page_in_the_docs_has_today_s_paths(scenes):
    shown = data_of(DOCS / "gallery.html")["scenes"]
    assert [s["name"] for s in shown] == [s.name for s in SURFACES]
    for (surface, traced), scene in zip(scenes, shown, strict=True):
        for path, told in zip(traced, scene["paths"], strict=True):
            assert told["lr"] == page.short(path.lr)
            assert np.abs(np.array(told["at"]) - np.array(page.place(surface, path.theta))).max() <= 1
            np.testing.assert_allclose(told["f"], path.value, rtol=0.02)
            assert sum(c < 0 for c in told["cos"]) == path.uphill


def test_the_pictures_in_the_docs_are_what_the_code_draws(tmp_path):
    stored = (DOCS / "images" / "angles.svg").read_text(encoding="utf-8")
    version = re.search(r"Matplotlib v([\w.]+)", stored).group(1)
    if version != mpl.__version__:
        pytest.skip(f"drawn by matplotlib {version}, here is {mpl.__version__}")
    write(tmp_path)
    for name in ("angles.svg", "geometry.svg"):
        old, new = (numbers((folder / name).read_text(encoding="utf-8")) for folder in (DOCS / "images", tmp_path))
        assert len(old) > 1000
        np.testing.assert_allclose(old, new, atol=0.01, err_msg=name)
    from matplotlib.image import imread

    old, new = (imread(io.BytesIO((folder / "gallery.png").read_bytes())) for folder in (DOCS / "images", tmp_path))
    assert old.shape == new.shape
    assert np.abs(old - new).mean() < 1e-3


def numbers(svg: str) -> list[float]:
    """The coordinates of an SVG; its names are hashes, which a last digit changes."""
    places = re.findall(r' (?:d|x|y|transform)="([^"]*)"', svg)
    return [float(n) for place in places for n in re.findall(r"-?\d+(?:\.\d+)?", place)]


# The page


def test_the_page_is_small_and_asks_nobody_for_anything(drawn):
    for path in (drawn / "gallery.html", DOCS / "gallery.html"):
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 100_000
        assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
        assert not re.search(r"\b(src|href)\s*=|url\(|@import|\bimport\b|fetch\(|XMLHttpRequest", text)
        assert "default-src 'none'" in text


# The command


acmo = run_command


@pytest.fixture
def command(acmo):
    return lambda *args: acmo("gallery", *args)


def test_the_command_writes_the_files_and_names_them(command, tmp_path):
    code, out, err = command("--steps", "10")
    assert (code, err) == (0, "")
    assert out.split() == [f"gallery/{name}" for name in NAMES]
    assert sorted(path.name for path in (tmp_path / "gallery").iterdir()) == sorted(NAMES)


def test_what_is_wrong_is_one_sentence(command, tmp_path):
    (tmp_path / "file").write_text("")
    for args, said in {
        ("--steps", "9"): "acmo: --steps must be from 10 to 2000, got 9",
        ("--steps", "2001"): "acmo: --steps must be from 10 to 2000, got 2001",
        ("--seed", "-1"): "acmo: --seed must be from 0 to 4294967295, got -1",
        ("--out", "file"): "acmo: file cannot be written: File exists",
        ("--out", "file/x"): "acmo: file/x cannot be written: Not a directory",
    }.items():
        code, out, err = command(*args)
        assert (code, out, err.strip()) == (2, "", said)


def test_help_has_an_example(command):
    code, out, _ = command("--help")
    assert code == 0
    assert "acmo gallery --out pictures" in out


def test_other_commands_do_not_pay_for_the_gallery():
    code = "import sys, acmo.lab.cli.app; print(*{'matplotlib', 'plotly', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
