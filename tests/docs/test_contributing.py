"""CONTRIBUTING.md: its picture of the code is true."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "acmo"

Graph = dict[str, set[str]]


def drawn() -> tuple[Graph, set[str]]:
    """The arrows of the picture, and the names that stand in its part ``lab``."""
    (picture,) = re.findall(r"```mermaid\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    arrows: Graph = {}
    lab: set[str] = set()
    part = ""
    for line in map(str.strip, picture.splitlines()):
        if line.startswith("subgraph"):
            part = line.split()[1]
        elif line == "end":
            part = ""
        elif "-->" in line:
            names = line.split(" --> ")
            lab |= set(names) if part == "lab" else set()
            for above, below in itertools.pairwise(names):
                arrows.setdefault(above, set()).add(below)
                arrows.setdefault(below, set())
    return arrows, lab


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively: teach this test"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def box(module: str, arrows: Graph, lab: set[str]) -> str | None:
    """A module's name in the picture, if it is there: runs for ``acmo.lab.runs``, rivals for ``acmo.rivals.sm3``."""
    words = module.split(".")[1:]
    if words[:1] == ["lab"]:
        return words[1] if len(words) > 1 and words[1] in lab else None
    return words[0] if words and words[0] in set(arrows) - lab else None


def actual(arrows: Graph, lab: set[str]) -> Graph:
    """What imports what, of the modules in the picture."""
    found: Graph = {name: set() for name in arrows}
    for file in PACKAGE.rglob("*.py"):
        mine = box(".".join(("acmo", *file.relative_to(PACKAGE).with_suffix("").parts)), arrows, lab)
        if mine is not None:
            others = {box(module, arrows, lab) for module in imported(file) if module.startswith("acmo.")}
            found[mine] |= {other for other in others if other not in (None, mine)}
    return found


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def test_every_arrow_is_an_import():
    arrows, lab = drawn()
    assert len(arrows) > 25
    graph = actual(arrows, lab)
    missing = {(above, below) for above in arrows for below in arrows[above] if below not in graph[above]}
    assert not missing


def test_no_import_goes_against_the_arrows():
    arrows, lab = drawn()
    graph = actual(arrows, lab)
    assert not {(above, below) for above in graph for below in graph[above] - reachable(arrows, above)}


def test_nothing_below_imports_what_is_above():
    arrows, _ = drawn()
    assert not [name for name in arrows if name in reachable(arrows, name)]
