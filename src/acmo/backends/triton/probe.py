"""A kernel that only shows that Triton can compile and launch."""

import torch
import triton


@triton.jit
def write_one(out):
    """Write 1."""
    triton.language.store(out, 1)


def launch_probe(device: torch.device) -> None:
    """Compile and launch on a device, without waiting for it."""
    from acmo.backends.triton.steps import on_device

    with on_device(device):
        write_one[(1,)](torch.zeros(1, dtype=torch.int32, device=device))
