"""The options of the optax twin: their checks, their dtypes, its documentation."""

from __future__ import annotations

import doctest
import subprocess
import sys
from typing import Any

import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import acmo.jax as twin  # noqa: E402

pytestmark = pytest.mark.slow  # jax is not among the packages of the quick tier


def test_a_float16_moment_saturates():
    link = twin.scale_by_acmo(1.0, mu_dtype=jnp.float16)
    state = link.init(jnp.zeros(3))
    for _ in range(3):
        update, state = link.update(jnp.full(3, 60000.0), state)
    assert (update > 65504).all()
    assert (state.mu == 65504).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.2}, r"momentum must be in \[0, 1\], got 1.2"),
        ({"delta": -1.0}, "delta must be finite and >= 0, got -1"),
        ({"learning_rate": -0.1}, "learning_rate must be finite and >= 0, got -0.1"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and >= 0, got -0.1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be > 0, got 0"),
        ({"norm_scope": "group"}, "norm_scope must be one of 'global', 'tensor', got 'group'"),
        ({"psi": "log"}, "psi must be one of 'identity', 'sqrt', got 'log'"),
        ({"nonfinite": "raise"}, "nonfinite must be one of 'skip', 'propagate', got 'raise'"),
        ({"mu_dtype": "int8"}, "mu_dtype must be one of .*, got 'int8'"),
        ({"mu_dtype": "float8_e5m2"}, "mu_dtype must be one of .*, got 'float8_e5m2'"),
    ],
)
def test_a_bad_option_is_named_with_its_value(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        twin.acmo(**{"learning_rate": 0.1} | options)


def test_a_real_moment_of_complex_parameters_is_refused():
    with pytest.raises(ValueError, match="needs real parameters"):
        twin.scale_by_acmo(mu_dtype="float32").init(jnp.zeros(3, jnp.complex64))


def test_without_decay_an_update_needs_no_parameters():
    ours = twin.acmo(0.5)
    updates, _ = ours.update(jnp.ones(3), ours.init(jnp.zeros(3)))
    assert (updates == -0.5).all()


def test_the_docstring_s_example_holds():
    result = doctest.testmod(twin)
    assert result.attempted > 5
    assert result.failed == 0


def test_a_missing_package_names_the_extra():
    code = "import sys; sys.modules['optax'] = None; import acmo; import acmo.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: acmo.jax needs jax and optax" in done.stderr
    assert "pip install acmo[jax]" in done.stderr
