"""Pictures drawn by our own code: paths on three surfaces, the geometry of a step, the angles.

`acmo gallery` on the command line; matplotlib is imported when something is drawn.
"""

from collections.abc import Callable
from pathlib import Path

from acmo.lab import atomic
from acmo.lab.errors import LabError, missing_extra
from acmo.lab.gallery.paths import trace

__all__ = ["write"]

STEPS = range(10, 2001)
SEEDS = range(2**32)


def write(folder: Path, steps: int = 200, seed: int = 0) -> list[Path]:
    """Run the optimizers and write the page and the pictures.

    Args:
      folder: where to; made if need be.
      steps: of each path, 10 to 2000.
      seed: of the noise on the third surface.

    Returns:
      What was written: ``gallery.html``, ``gallery.png``, ``geometry.svg`` and ``angles.svg``.
    """
    if steps not in STEPS:
        raise LabError(f"--steps must be from {STEPS[0]} to {STEPS[-1]}, got {steps}")
    if seed not in SEEDS:
        raise LabError(f"--seed must be from 0 to {SEEDS[-1]}, got {seed}")
    with atomic.explained(folder):  # before the work, so that a bad folder is reported at once
        folder.mkdir(parents=True, exist_ok=True)
    try:
        from acmo.lab.gallery import gallery_page, geometry, pictures
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("acmo"):
            raise
        raise missing_extra(error.name) from None
    scenes = trace(steps, seed)
    contents: dict[str, Callable[[], bytes]] = {
        "gallery.html": lambda: gallery_page.render(scenes, seed).encode(),
        "gallery.png": lambda: pictures.gallery(scenes),
        "geometry.svg": geometry.draw,
        "angles.svg": lambda: pictures.angles(scenes[-1]),
    }
    for name, make in contents.items():
        atomic.write(folder / name, make())
    return [folder / name for name in contents]
