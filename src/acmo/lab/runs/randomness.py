"""Every source of random numbers: seeded, packed into tensors, brought back; the switch to deterministic kernels."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int) -> None:
    """Seed torch (every device), numpy's global generator and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  what a task of one's own may draw from
    random.seed(seed)


def pack(device: torch.device) -> dict[str, Tensor]:
    """Return the state of every generator, as tensors: a file of them can be loaded without unpickling code."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    assert kind == "MT19937"
    version, words, next_gauss = random.getstate()
    assert version == 3
    states = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, gauss], dtype=torch.float64),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([] if next_gauss is None else [next_gauss], dtype=torch.float64),
    }
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["device"] = torch.mps.get_rng_state()
    return states


def unpack(states: dict[str, Tensor], device: torch.device) -> None:
    """Put every generator back to where `pack` found it."""
    torch.set_rng_state(states["torch"].cpu())
    position, has_gauss, gauss = states["numpy_rest"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), gauss))  # noqa: NPY002
    gauss_of_python = states["python_gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss_of_python[0] if gauss_of_python else None))
    if "device" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["device"].cpu(), device)
    elif "device" in states and device.type == "mps":
        torch.mps.set_rng_state(states["device"].cpu())


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Ask torch for kernels that give the same bits each time; afterwards, what was asked before."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fill, benchmark = settings.fill_uninitialized_memory, torch._C._get_cudnn_benchmark()
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory guards against reading it unwritten, which no layer does, and costs a pass over it.
    settings.fill_uninitialized_memory = False
    torch._C._set_cudnn_benchmark(False)  # torch.backends.cudnn may be frozen (disable_global_flags)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fill
        torch._C._set_cudnn_benchmark(benchmark)
