"""torch.compile of the step: one graph for all steps, the same numbers, no recompilation when a Tensor lr changes."""

import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import lr_scheduler

from acmo import ACMo
from tests.support.backends import BACKENDS, FOREACH, FUSED
from tests.support.steps import Twins

COMPILED = [b for b in BACKENDS if b.id != "reference"]
SETTINGS = [
    {},
    {"psi": "sqrt", "max_grad_norm": 1.0, "weight_decay": 0.1},
    {"norm_scope": "tensor", "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pair(**options):
    """Two optimizers of the same parameters, and what gives both the same next gradients."""
    torch.manual_seed(0)
    first = [torch.nn.Parameter(torch.randn(s)) for s in [(30, 20), (7,), ()]]
    second = [torch.nn.Parameter(p.detach().clone()) for p in first]

    def draw(bad=False):
        for p, q in zip(first, second, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        if bad:
            first[1].grad[0] = second[1].grad[0] = torch.nan

    opts = [ACMo(ps, lr=torch.tensor(0.1), **options) for ps in (first, second)]
    return opts, draw


def check(compiled, eager, draw, step):
    for t in range(10):
        for opt in (compiled, eager):
            opt.param_groups[0]["lr"].fill_(0.1 / (t + 1))
        draw(bad=t == 4)
        step()
        eager.step()
    for p, q in zip(compiled.param_groups[0]["params"], eager.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)
        for key, value in eager.state[q].items():
            torch.testing.assert_close(compiled.state[p][key], value)
    assert compiled.skipped_steps == eager.skipped_steps == 1
    assert compiled.telemetry()["cos_update_grad"] == pytest.approx(eager.telemetry()["cos_update_grad"], abs=1e-5)


FIRST_STEP = """
import torch, acmo
p = torch.nn.Parameter(torch.ones(6, 4))
opt = acmo.{name}([p], lr=torch.tensor(0.1))
p.grad = torch.ones(6, 4)
torch.compile(opt.step, fullgraph=True, backend="eager")()
print(p[0, 0].item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ACMo", "RowACMo"])
def test_the_first_step_of_a_process_may_be_compiled(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FIRST_STEP.format(name=name)]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == pytest.approx(0.9)


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("flags", COMPILED)
def test_ten_steps_are_one_graph_and_equal_the_eager_ones(flags, setting):
    (compiled, eager), draw = pair(**flags, **setting)
    backend = CompileCounterWithBackend("aot_eager")
    check(compiled, eager, draw, torch.compile(compiled.step, fullgraph=True, backend=backend))
    assert backend.frame_count == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("flags", COMPILED)
def test_inductor_makes_the_same_numbers(flags):
    (compiled, eager), draw = pair(**flags)
    check(compiled, eager, draw, torch.compile(compiled.step, fullgraph=True))


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("flags", COMPILED)
def test_eager_steps_resume_where_compiled_ones_stopped(flags):
    (compiled, eager), draw = pair(**flags)
    step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
    for t in range(6):
        draw()
        (step if t < 3 else compiled.step)()
        eager.step()
    for p, q in zip(compiled.param_groups[0]["params"], eager.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)


def cosine(opt):
    return lr_scheduler.CosineAnnealingLR(opt, T_max=10)


def one_cycle(opt):
    return lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=11)


@pytest.mark.filterwarnings("ignore:Profiler record function")
# A compiled step is the one that no scheduler has patched, so the scheduler believes that none was taken.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("flags", "schedule", "graphs"),
    [
        *(pytest.param(*b.values, cosine, 1, id=f"{b.id}-cosine", marks=b.marks) for b in COMPILED),
        # cycles momentum, a plain float: dynamo makes a symbol of it when it first changes, and that is all
        pytest.param({}, one_cycle, 2, id="default-one_cycle"),
    ],
)
def test_step_compiled_before_its_scheduler_follows_the_schedule(flags, schedule, graphs):
    (compiled, eager), draw = pair(**flags)
    backend = CompileCounterWithBackend("aot_eager")
    step = torch.compile(compiled.step, fullgraph=True, backend=backend)  # now: a scheduler patches `step`
    schedulers = [schedule(opt) for opt in (compiled, eager)]
    for _ in range(10):
        draw()
        step()
        eager.step()
        for scheduler in schedulers:
            scheduler.step()
    assert backend.frame_count == graphs
    for p, q in zip(compiled.param_groups[0]["params"], eager.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)
    for group, other in zip(compiled.param_groups, eager.param_groups, strict=True):
        assert isinstance(group["lr"], torch.Tensor)
        assert float(group["lr"]) == float(other["lr"]) != pytest.approx(0.1)


@pytest.mark.parametrize("kind", [ACMo, torch.optim.Adam], ids=lambda kind: kind.__name__)
def test_full_graph_after_a_scheduler_fails_as_torchs_own_do(kind):
    p = torch.nn.Parameter(torch.ones(3))
    opt = kind([p], lr=torch.tensor(0.1))
    lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    p.grad = torch.ones(3)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"should not be traced|skip function"):
        torch.compile(opt.step, fullgraph=True, backend="eager")()
    torch._dynamo.reset()
    torch.compile(opt.step, backend="eager")()  # with a break in the graph it works
    assert not torch.equal(p, torch.ones(3))


@pytest.mark.filterwarnings("ignore:Profiler record function")
@pytest.mark.parametrize("flags", COMPILED)
def test_compiled_step_under_a_grad_scaler_skips_overflow(flags):
    p, q = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    compiled, eager = (ACMo([x], lr=torch.tensor(0.1), **flags) for x in (p, q))
    backend = CompileCounterWithBackend("aot_eager")
    compiled.step = torch.compile(compiled.step, fullgraph=True, backend=backend)
    for x, opt in ((p, compiled), (q, eager)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for factor in (1.0, 2.0, torch.inf, 3.0, 4.0, 5.0, 6.0):
            opt.zero_grad()
            scaler.scale((factor * x.square()).sum()).backward()
            scaler.step(opt)
            scaler.update()
    torch.testing.assert_close(p, q)
    assert compiled.skipped_steps == eager.skipped_steps == 1
    assert backend.frame_count == 1


@pytest.mark.parametrize("backend", [FOREACH, FUSED])
@pytest.mark.parametrize("eager", [(2, 5), (0, 1, 4)], ids=str)
def test_compiled_and_eager_steps_may_be_mixed(backend, eager):
    torch._dynamo.reset()
    twins = Twins(backend)
    compiled = torch.compile(twins.opts[0].step, backend="eager")
    for t in range(8):
        twins.step(t, None if t in eager else compiled)
    twins.assert_close()


@pytest.mark.parametrize("backend", [FOREACH, FUSED])
def test_parameter_may_be_frozen_between_compiled_steps(backend):
    torch._dynamo.reset()
    twins = Twins(backend)
    compiled = torch.compile(twins.opts[0].step, backend="eager")
    for t in range(8):
        twins.step(t, compiled, without=(1,) if t in (3, 4) else ())
    twins.assert_close()
