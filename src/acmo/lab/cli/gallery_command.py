"""``acmo gallery``."""

from pathlib import Path
from typing import Annotated

import typer


def gallery(
    out: Annotated[Path, typer.Option(help="Folder for the page and the pictures.")] = Path("gallery"),
    steps: Annotated[int, typer.Option(help="Length of each path, 10 to 2000.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the noise in the noisy valley.")] = 0,
) -> None:
    """Draw how SGD, Adam and ACMo move: paths on Rosenbrock, Beale and a noisy valley, and the geometry of a step.

    Takes seconds and needs no data. Writes gallery.html (for a browser: play, pause, drag), gallery.png, geometry.svg
    and angles.svg.

    [bold]Examples[/bold]

      acmo gallery

      acmo gallery --out pictures --steps 400 --seed 1
    """
    from acmo.lab.gallery import write

    for path in write(out, steps, seed):
        print(path)
