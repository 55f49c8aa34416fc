"""Captured steps: nothing is read back, and a replay uses the values that its tensors have then."""

import pytest
import torch
from torch import nn

import acmo
from tests.support.backends import FUSED, REFERENCE
from tests.support.triton_graph import capture
from tests.support.triton_interpreter import needs_triton

pytestmark = [needs_triton, pytest.mark.usefixtures("interpreter")]
CASES = {
    "global": (acmo.ACMo, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "tensor": (acmo.ACMo, {"norm_scope": "tensor", "psi": "sqrt", "max_grad_norm": 1.0, "weight_decay": 0.1}),
    "row": (acmo.RowACMo, {"weight_decay": 0.1}),
    "clipped row": (acmo.RowACMo, {"unit_step": False, "max_grad_norm": 1.0}),
    "spectral": (acmo.SpectralACMo, {"weight_decay": 0.1}),
}
SLOW = ("tensor", "clipped row")


class Run:
    """An optimizer with a tensor lr on parameters whose gradients are written in place."""

    def __init__(self, kind, options, backend):
        generator = torch.Generator().manual_seed(0)
        self.params = [nn.Parameter(torch.randn(s, generator=generator)) for s in [(10, 12), (40, 4), (5,)]]
        self.lr = torch.tensor(0.1)
        self.opt = kind(self.params, lr=self.lr, **options, **backend)
        for p in self.params:
            p.grad = torch.zeros_like(p)

    def write_gradients(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for p in self.params:
            p.grad.copy_(torch.randn(p.shape, generator=generator))

    def step(self, seed):
        self.write_gradients(seed)
        self.opt.step()


def make_staging_ready(opt):
    """Give every table the memory of the host that a step on a GPU leaves behind for a capture."""
    from acmo.backends.triton import tables

    for entry in opt._kernel_tables.values():
        for own in entry if isinstance(entry, tuple) else ():
            for table in vars(own).values() if hasattr(own, "tensors") else ():
                if isinstance(table, tables.Table):
                    table.staging = tables.allocate_staging(table.device)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in CASES]
)
def test_replays_use_live_gradients_and_learning_rates(case, monkeypatch):
    kind, options = CASES[case]
    ours, theirs = Run(kind, options, FUSED), Run(kind, options, REFERENCE)
    for seed in (1, 2, 3):
        ours.step(seed)
        theirs.step(seed)
    make_staging_ready(ours.opt)
    ours.write_gradients(4)
    with capture(ours.opt, monkeypatch) as graph:
        ours.opt.step()
    theirs.step(4)
    assert graph.launches

    # A step at other addresses must not change what the graph reads.
    captured = [p.grad for p in ours.params]
    for p in ours.params:
        p.grad = torch.zeros_like(p)
    ours.step(5)
    theirs.step(5)
    for p, g in zip(ours.params, captured, strict=True):
        p.grad = g

    for seed, lr in ((6, 0.3), (7, 0.02)):
        for run in (ours, theirs):
            run.lr.fill_(lr)
        ours.write_gradients(seed)
        graph.replay()
        theirs.step(seed)
        for p, q in zip(ours.params, theirs.params, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
            assert float(ours.opt.state[p]["step"]) == float(theirs.opt.state[q]["step"])


def test_tables_of_a_graph_outlive_their_optimizer(monkeypatch):
    from acmo.backends.triton import tables

    kept = len(tables.captured)
    run = Run(acmo.ACMo, {}, FUSED)
    run.step(1)
    run.step(2)
    make_staging_ready(run.opt)
    with capture(run.opt, monkeypatch):
        run.opt.step()
    owners = [x for x in tables.captured[kept:] if isinstance(x, tables.PassTables)]
    uploads = [x for x in tables.captured[kept:] if isinstance(x, tuple)]
    assert len(owners) == 1
    assert len(uploads) == 3  # tensors, clocks and numbers, each with the memory that it is copied from
