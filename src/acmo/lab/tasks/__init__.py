"""The tasks, by name. Nothing of a task is imported before it is asked for."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from acmo.lab.errors import LabError
from acmo.lab.objects import is_file, load_object, nearest

if TYPE_CHECKING:
    from acmo.lab.tasks.base import Task

# name: where its class is.
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "digits": "acmo.lab.tasks.digits:Digits",
        "cifar10": "acmo.lab.tasks.cifar:Cifar10",
        "cifar100": "acmo.lab.tasks.cifar:Cifar100",
        "fashion-mnist": "acmo.lab.tasks.fashion_mnist:FashionMNIST",
        "text": "acmo.lab.tasks.text:Text",
        "multi30k-ende": "acmo.lab.tasks.translation.translation_task:Multi30k",
        "wmt14-ende": "acmo.lab.tasks.translation.translation_task:WMT14",
    }
)


def find_task(spec: str, data: Path | None = None, seed: int = 0) -> "Task":
    """Return the task of a ``spec``: ``name``, ``name:size``, ``name:size/net``, ``name/net`` or ``file.py:Class``.

    Reads no data yet. ``data`` is the root of all tasks' data, ``$ACMO_DATA`` by default, or the task's own folder.
    A class in a file may be followed by its own ``:size/net``.
    """
    rest, slash, net = ("", "", "") if is_file(spec) else spec.partition("/")
    if is_file(spec):
        cls = load_object(spec)
        size = ""
        _check_class(spec, cls)
    else:
        name, colon, size = rest.partition(":")
        if name not in TASKS:
            raise LabError(f"there is no task {name!r}{nearest(name, TASKS)} (there are: {', '.join(TASKS)})")
        if (colon and not size) or (slash and not net):
            raise LabError(f"the task {spec!r} is not of the form name:size/net")
        cls = load_object(TASKS[name])
    task: Task = cls(size=size or None, net=net or None, data=_place(cls.data_folder, data), seed=seed)
    return task


def _place(name: str, data: Path | None) -> Path | None:
    """Return the folder called ``name`` below a root, which is ``data`` or ``$ACMO_DATA``; else ``data`` itself."""
    root = data or (Path(os.environ["ACMO_DATA"]) if os.environ.get("ACMO_DATA") else None)
    return root / name if root is not None and name and (root / name).is_dir() else data


def _check_class(spec: str, cls: object) -> None:
    from acmo.lab.tasks.base import Task

    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise LabError(f"{spec} is not a task: it must be a class derived from acmo.lab.tasks.base.Task")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise LabError(f"the task {spec} lacks {', '.join(missing)}")
