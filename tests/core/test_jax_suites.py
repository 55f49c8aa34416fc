"""The optax twin on several devices, and under optax's own common tests, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("jax")
pytest.importorskip("optax")
pytestmark = pytest.mark.slow


def in_a_process_of_its_own(*arguments: str, devices: int) -> str:
    """Run the suites on so many devices: their number cannot change in a process that has started."""
    env = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.support.jax_suites", *arguments]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("devices", [2, 4])
def test_sharded_arrays_step_as_unsharded_ones_do(devices: int):
    assert in_a_process_of_its_own("sharded", devices=devices) == f"ok on {devices} devices\n"


def test_optax_s_common_tests_pass():
    """Those of its aliases, its contributions, of sharding in types and of float64, as installed with it."""
    pytest.importorskip("optax.contrib._common_test")
    assert int(in_a_process_of_its_own("optax", devices=8)) >= 50
