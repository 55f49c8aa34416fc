"""Load objects that the command line names as ``module:Class`` or ``path/to/file.py:Class``; find the closest name."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from acmo.lab.errors import LabError


def load_object(spec: str) -> Any:
    """Return the object that ``spec`` names, imported from a module or from a file."""
    where, _, name = spec.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    try:
        return getattr(module, name)
    except AttributeError:
        raise LabError(f"{where} has no {name!r}{nearest(name, public(module))}") from None


def is_file(spec: str) -> bool:
    """Return whether ``spec`` has the form ``path/to/file.py:Class``."""
    return spec.rpartition(":")[0].endswith(".py")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the closest name, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def public(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _from_path(where: str) -> ModuleType:
    # A console script does not have the working folder on its path, `python -m` does; a user sees no difference.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise LabError(f"there is no module {where!r} that could be imported from here") from None
        raise LabError(f"{where} needs {error.name}, which is not installed") from error
    except Exception as error:
        raise LabError(f"importing {where} failed: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser()  # no shell does it in a TOML file
    if not path.is_file():
        raise LabError(f"there is no file {path}")
    # A name of its own for every file, so that two called task.py do not meet; the same one each time.
    name = f"acmo_own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise LabError(f"importing {path} failed: {type(error).__name__}: {error}") from error
    return module
