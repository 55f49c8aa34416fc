"""TOML files that describe comparisons: the user's, those that ship, and twelve made from one template."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

from acmo.lab.errors import LabError, missing_extra
from acmo.lab.objects import nearest

PRESETS = Path(__file__).parents[1] / "presets"

# What a line of TOML begins with.
_KEY = r"""(?:"[^"]*"|'[^']*'|[A-Za-z_][\w-]*)"""
_NAME = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_TABLE = re.compile(rf"\s*\[(?P<many>\[)?\s*(?P<name>{_NAME})\s*\]\]?\s*(?:#.*)?")
_PAIR = re.compile(rf"\s*(?P<name>{_NAME})\s*=")

# The paper's experiments on CIFAR: data, its size, the protocol that the paper shows it under and in which figure;
# nets and their size; protocols.
_DATA = {"cifar10": ("CIFAR-10", "163 MB", "tuned", 3), "cifar100": ("CIFAR-100", "161 MB", "fixed", 2)}
_NETS = {"vgg16": ("VGG16", "14.7 M"), "resnet50": ("ResNet50", "23.5 M"), "densenet121": ("DenseNet121", "7.0 M")}
_PROTOCOLS = {
    "fixed": "the weight decay that is best for SGD-momentum for all",
    "tuned": "each optimizer at its own best weight decay",
}
_RECIPE = "200 epochs, lr x 0.1 every 50 epochs, its grid of hyper-parameters."
_OURS = "Ours, not in the paper, which shows {} under this protocol; in all else like its experiments."


@dataclass(frozen=True)
class TomlText:
    """The text of a TOML file, and what it is called in errors."""

    name: str
    text: str


def read_toml(source: TomlText | Path) -> dict[str, Any]:
    """Return the values of a TOML file, or raise a `LabError` with the line that is wrong."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef]
        except ModuleNotFoundError:
            raise missing_extra("tomli") from None
    source = open_toml(source)
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{source.name} is not valid TOML: {error}") from None


def open_toml(source: TomlText | Path) -> TomlText:
    """Return the text of a file, or raise a `LabError`."""
    if isinstance(source, TomlText):
        return source
    try:
        return TomlText(str(source), source.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{source} is not valid TOML: {error}") from None


def presets() -> dict[str, TomlText]:
    """Return the presets that ship with the package, by name."""
    return dict(_shipped())


def find_preset(name: str) -> TomlText:
    """Return a preset: a file, or one that ships with the package."""
    known = presets()
    if Path(name).is_file():
        return open_toml(Path(name))
    if name.removesuffix(".toml") in known:
        return known[name.removesuffix(".toml")]
    raise LabError(f"there is no file and no preset {name!r}{nearest(name, known)} (acmo list presets shows them)")


def line_of(source: TomlText | Path, keys: list[str]) -> int | None:
    """Return the line of the innermost key that the file spells out, in its own table."""
    table: list[str] = []
    seen: dict[str, int] = {}
    depth, found = 0, None
    for number, line in enumerate(open_toml(source).text.splitlines(), start=1):
        if head := _TABLE.fullmatch(line):
            table = _keys(head["name"])
            if head["many"]:
                seen[head["name"]] = seen.get(head["name"], -1) + 1
                table = [*table, str(seen[head["name"]])]
            here = table
        elif pair := _PAIR.match(line):
            here = table + _keys(pair["name"])
        else:
            continue
        if depth < len(here) and here == keys[: len(here)]:
            depth, found = len(here), number
    return found


@cache
def _shipped() -> dict[str, TomlText]:
    texts = {p.relative_to(PRESETS).with_suffix("").as_posix(): p.read_text("utf-8") for p in PRESETS.rglob("*.toml")}
    texts |= _paper_on_cifar()
    return {name: TomlText(f"the preset {name}", texts[name]) for name in sorted(texts)}


def _paper_on_cifar() -> dict[str, str]:
    """Return the paper's experiments on CIFAR, and the same under the protocol that it does not show."""
    template = Template((PRESETS / "paper" / "cifar.template").read_text(encoding="utf-8"))
    texts = {}
    for data, protocol, net in product(_DATA, _PROTOCOLS, _NETS):
        title, size, shown, figure = _DATA[data]
        other = next(d for d in _DATA if d != data)
        words = {
            "data": data, "data_title": title, "size": size, "net": net, "net_title": _NETS[net][0],
            "parameters": _NETS[net][1], "protocol": protocol, "decay": _PROTOCOLS[protocol],
            "from_whom": f"the paper, Figure {figure}" if protocol == shown else "ours, after the paper",
            "about": f"The paper's Figure {figure}: {_RECIPE}" if protocol == shown else _OURS.format(_DATA[other][0]),
        }  # fmt: skip
        texts[f"paper/{data}-{protocol}-{net}"] = template.substitute(words)
    return texts


def _keys(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_KEY, dotted)]
