"""What a result came from: versions, machine, commit, command line."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from acmo.lab.tasks.base import Task
from acmo.lab.tasks.data_files import describe_files

_PACKAGES = ("acmo", "torch", "numpy", "scikit-learn", "optuna", "transformers", "tokenizers", "sacrebleu")


def record(config: BaseModel) -> dict[str, Any]:
    """Return a config with its provenance, ready for JSON."""
    return {"config": config.model_dump(mode="json"), "provenance": provenance()}


def describe_data(task: Task) -> dict[str, Any]:
    """Return what prepared data a task has: its fingerprint, its files, and the task's own facts about it."""
    files = describe_files(task.data_files())
    return {"fingerprint": task.fingerprint(), **({"files": files} if files else {}), **task.facts()}


def provenance() -> dict[str, Any]:
    """Return versions, machine, commit and command line."""
    import torch

    return {
        "command": list(sys.argv),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


@cache
def commit() -> str | None:
    """Return the commit of the source tree, with a ``+`` if files have changed; None if acmo is installed."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists() or not (root / "src" / "acmo").is_dir():
        return None
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


@cache
def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
