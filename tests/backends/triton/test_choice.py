"""When the Triton kernels are used, and what is said where they cannot be."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import acmo
from acmo.backends.triton import availability
from tests.support.backends import FOREACH, FUSED
from tests.support.triton_interpreter import needs_triton


def take_step(**options):
    p = nn.Parameter(torch.ones(3, 4))
    opt = acmo.ACMo([p], lr=0.1, **options)
    p.grad = torch.ones_like(p)
    opt.step()
    return p, opt


def count_launches(monkeypatch):
    from acmo.backends.triton import steps

    calls = []
    launch = steps.launch
    monkeypatch.setattr(steps, "launch", lambda *values: calls.append(1) or launch(*values))
    return calls


def test_importing_acmo_does_not_import_triton():
    script = "import sys, acmo; acmo.ACMo; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@needs_triton
def test_default_uses_triton_where_the_device_is_supported(interpreter, monkeypatch):
    calls = count_launches(monkeypatch)
    take_step()
    assert calls
    del calls[:]
    take_step(**FOREACH)
    assert not calls


@needs_triton
def test_environment_variable_turns_triton_off(interpreter, monkeypatch):
    calls = count_launches(monkeypatch)
    monkeypatch.setenv("ACMO_TRITON", "0")
    take_step()
    assert not calls
    with pytest.raises(RuntimeError, match="ACMO_TRITON=0"):
        take_step(**FUSED)


def test_fused_without_triton_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(availability, "DEVICE_TYPES", ["cpu"])
    monkeypatch.setattr(availability, "is_installed", lambda: False)
    with pytest.raises(RuntimeError, match="pip install triton"):
        take_step(**FUSED)
    take_step()  # foreach, without a word


def test_a_launcher_that_cannot_be_built_warns_once(monkeypatch):
    monkeypatch.setattr(availability, "DEVICE_TYPES", ["cpu"])
    monkeypatch.setattr(availability, "is_installed", lambda: True)
    monkeypatch.setattr(availability, "try_launch", lambda device: f"{availability.LAUNCH_FAILED} on {device}: no gcc")
    availability.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="no gcc.*foreach instead"):
        p, opt = take_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()
    assert p[0, 0] < 1
    with pytest.raises(RuntimeError, match="no gcc"):
        take_step(**FUSED)


def test_a_failing_probe_is_reported_with_its_reason(monkeypatch):
    availability.try_launch.cache_clear()
    why = availability.try_launch(torch.device("meta"))
    availability.try_launch.cache_clear()
    assert why is not None
    assert why.startswith(availability.LAUNCH_FAILED)


@needs_triton
def test_parts_with_gaps_are_stepped_by_foreach_beside_triton(interpreter):
    def build(backend):
        storage = torch.ones(4, 8)
        params = [nn.Parameter(storage[:, ::2]), nn.Parameter(torch.ones(5, dtype=torch.float64))]
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        return params, acmo.ACMo(params, lr=0.1, **backend)

    (mine, ours), (others, theirs) = build({}), build(FOREACH)
    for _ in range(2):
        ours.step()
        theirs.step()
    for p, q in zip(mine, others, strict=True):
        torch.testing.assert_close(p, q)
    with pytest.raises(RuntimeError, match="dense"):
        build(FUSED)[1].step()


@needs_triton
@pytest.mark.slow
def test_compiled_step_uses_the_custom_ops(interpreter):
    p, q = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
    ours, theirs = acmo.ACMo([p], lr=torch.tensor(0.1)), acmo.ACMo([q], lr=0.1, **FOREACH)
    names = []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(ours.step, backend=backend)
    for t in range(3):
        p.grad, q.grad = torch.full_like(p, 1.0 + t), torch.full_like(q, 1.0 + t)
        compiled()
        theirs.step()
    torch.testing.assert_close(p, q)
    assert any("triton_sums" in name for name in names)
    assert any("triton_update" in name for name in names)


@needs_triton
def test_custom_ops_pass_the_opcheck(interpreter):
    from acmo.backends.triton import ops

    params, moments, grads = ([torch.ones(5), torch.ones(3)] for _ in range(3))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.sums_op, (params, moments, grads, None, 1.0, 0.1, True, True), test_utils=checks)
    coefficients, taken = torch.ones(2, 10, dtype=torch.float64), torch.tensor(True)
    torch.library.opcheck(ops.update_op, (params, moments, grads, coefficients, taken, False), test_utils=checks)
