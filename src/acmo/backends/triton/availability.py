"""Whether the Triton kernels can be used on a device, and if not, why."""

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch

DEVICE_TYPES = ["cuda"]  # torch's name for ROCm, too; tests add the CPU, where Triton's interpreter runs
INSTALL = "pip install triton"
usable: dict[str, bool] = {}  # devices that parameters are on, for compiled steps


def is_usable(device: torch.device) -> bool:
    """Return whether steps on a device use the Triton kernels. Warns once where Triton is there and cannot launch."""
    if device.type not in DEVICE_TYPES:  # quick: it is asked at every step
        return False
    why = explain_unusable(device)
    if why is not None and why.startswith(LAUNCH_FAILED):
        warn_once(why)
    return why is None


LAUNCH_FAILED = "Triton cannot launch a kernel"


def explain_unusable(device: torch.device) -> str | None:
    """Return why the Triton kernels cannot be used on a device; None if they can."""
    if device.type not in DEVICE_TYPES:
        return f"it is for CUDA and ROCm, and a parameter is on {device}"
    if os.environ.get("ACMO_TRITON") == "0":
        return "the environment variable ACMO_TRITON=0 turns it off"
    if not is_installed():
        return f"Triton is not installed ({INSTALL})"
    return try_launch(device)


@cache
def is_installed() -> bool:
    """Return whether Triton can be imported, without importing it."""
    return find_spec("triton") is not None


@cache
def try_launch(device: torch.device) -> str | None:
    """Launch a kernel that does nothing; return what went wrong. Triton builds its launcher with a C compiler."""
    try:
        from acmo.backends.triton.probe import launch_probe

        launch_probe(device)
    except Exception as problem:  # a compiler that is missing or fails raises whatever it likes
        first_line = (str(problem).splitlines() or [""])[0]
        return f"{LAUNCH_FAILED} on {device}: {type(problem).__name__}: {first_line}"
    return None


@cache
def warn_once(why: str) -> None:
    """Say that foreach is used instead."""
    warnings.warn(f"{why}. ACMo uses foreach instead; ACMO_TRITON=0 silences this warning.", stacklevel=2)
