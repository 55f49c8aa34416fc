"""Parallel text made up for tests, and tasks that learn from it in seconds."""

import gzip
import random
from pathlib import Path
from types import MappingProxyType

from acmo.lab.tasks.base import Recipe
from acmo.lab.tasks.translation.evaluation import Look
from acmo.lab.tasks.translation.model import Net
from acmo.lab.tasks.translation.store import Filters
from acmo.lab.tasks.translation.translation_task import Multi30k, Size

WORDS = {
    "the": "das", "a": "ein", "man": "Mann", "woman": "Frau", "dog": "Hund", "child": "Kind", "sees": "sieht",
    "takes": "nimmt", "likes": "mag", "finds": "findet", "red": "rot", "small": "klein", "old": "alt", "green": "grün",
    "ball": "Ball", "house": "Haus", "tree": "Baum", "street": "Straße",
}  # fmt: skip
REAL = Path(__file__).parents[3] / "shared" / "data"


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs: word by word, the last two words swapped."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = draw.choices(list(WORDS), k=draw.randint(3, 9))
        german = [WORDS[word] for word in words]
        german[-2:] = german[-1], german[-2]
        pairs.append((" ".join(words).capitalize() + ".", " ".join(german).capitalize() + "."))
    return pairs


def write(folder: Path, name: str, pairs: list[tuple[str, str]], *, gz: bool = False) -> None:
    """``name.en`` and ``name.de``."""
    folder.mkdir(parents=True, exist_ok=True)
    for code, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        content = "".join(line + "\n" for line in lines).encode()
        if gz:
            (folder / f"{name}.{code}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{name}.{code}").write_bytes(content)


def corpus(folder: Path, train: int = 200) -> Path:
    """A folder with all that a task wants."""
    write(folder, "train", sentences(train, seed=1), gz=True)
    write(folder, "val", sentences(20, seed=2))
    write(folder, "test_2016_flickr", sentences(20, seed=3))
    return folder


class Toy(Multi30k):
    """With dropout, so that a run depends on torch's generator at every step."""

    presets = MappingProxyType(
        {
            "toy": Size(
                Net(layers=1, width=32, inner=64, heads=2, dropout=0.1, positions=64),
                vocabulary=320,
                recipe=Recipe(steps=24, batch_size=256, max_grad_norm=1.0, evaluate_every=8),
                valid=Look(beams=1, extra=5),
            )
        }
    )
    sizes = tuple(presets)


class Dry(Toy):
    """Without dropout: what it learns does not depend on how a batch is cut."""

    presets = MappingProxyType(
        {
            "toy": Size(
                Net(layers=1, width=32, inner=64, heads=2, dropout=0.0, positions=64),
                vocabulary=320,
                recipe=Recipe(steps=10, batch_size=256, max_grad_norm=1.0, evaluate_every=5),
                valid=Look(beams=1, extra=5),
            )
        }
    )


class Memory(Toy):
    """Enough of a net to know 100 pairs by heart."""

    filters = Filters(ratio=10)
    presets = MappingProxyType(
        {
            "toy": Size(
                Net(layers=2, width=64, inner=128, heads=4, dropout=0.0, positions=64),
                vocabulary=400,
                recipe=Recipe(steps=160, batch_size=1000, evaluate_every=160),
                valid=Look(beams=4, extra=5),
            )
        }
    )
