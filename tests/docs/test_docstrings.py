"""Docstrings of what the API pages show: each is there, and its first word is a verb in the imperative."""

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

API = ROOT / "docs" / "api"
VERBS = re.compile(
    r"Add|Apply|Build|Cap|Check|Choose|Clip|Compute|Convert|Count|Cut|Describe|Draw|Evaluate|Find|"
    r"Give|Hold|Implement|Keep|Leave|List|Load|Make|Measure|Name|Print|Project|Raise|Read|Record|"
    r"Reduce|Remove|Report|Resume|Return|Run|Sample|Save|Scale|Split|Step|Store|Sum|Take|Train|"
    r"Turn|Update|Write|Yield"
)


def resolve(name: str) -> object:
    """Return the object that a page names by its dotted path."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def members(name: str, found: object) -> Iterator[tuple[str, object]]:
    """Yield the functions, classes and methods below a name, itself included, that are public and acmo's own."""
    found = found.fget if isinstance(found, property) else found
    if inspect.ismodule(found):
        for key, inside in vars(found).items():
            if not key.startswith("_") and getattr(inside, "__module__", None) == found.__name__:
                yield from members(f"{name}.{key}", inside)
    elif inspect.isclass(found):
        yield name, found
        for key, value in vars(found).items():
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not key.startswith("_") and inspect.isfunction(value) and value.__module__ == found.__module__:
                yield f"{name}.{key}", value
    elif inspect.isfunction(found):
        yield name, found


def shown() -> dict[str, object]:
    """Return everything that the API pages show, by its name; members that a page lists may be defined elsewhere."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    names = re.findall(r"^::: (\S+)", pages, re.MULTILINE)
    for block in re.split(r"^::: ", pages, flags=re.MULTILINE)[1:]:
        for listed in re.findall(r"^ +members: \[(.+)\]$", block, re.MULTILINE):
            names += [f"{block.split()[0]}.{member}" for member in listed.split(", ")]
    return {name: found for top in names for name, found in members(top, resolve(top))}


def test_docstrings_of_the_api_begin_with_a_verb():
    pytest.importorskip("jax")
    pytest.importorskip("optuna")
    names = shown()
    assert len(names) > 80
    wrong = []
    for name, found in sorted(names.items()):
        lines = (found.__doc__ or "(none)").strip().splitlines()
        if not VERBS.fullmatch(lines[0].split()[0].rstrip(",.:")):
            wrong.append(f"{name}: {lines[0]}")
    assert not wrong, "\n" + "\n".join(wrong)
