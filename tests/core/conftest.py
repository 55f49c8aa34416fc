"""What the tests of the optax twin share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Compute in float64 with JAX."""
    import jax

    with jax.enable_x64(True):
        yield
