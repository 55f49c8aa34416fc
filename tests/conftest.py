"""What every test shares: a seed, and how hypothesis draws."""

import os

import pytest
import torch
from hypothesis import settings

# A first call may compile or load the kernel, so no deadline. The same draws on each run, unless one goes exploring.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Make every test repeatable, whatever ran before it in the same worker."""
    torch.manual_seed(0)
