"""torch.compile of the step: one graph for all steps, the same numbers, no recompilation when a Tensor lr changes."""

import pytest
import torch
from backends import BACKENDS
from torch._dynamo.testing import CompileCounterWithBackend

from acmo import ACMo

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
def test_eager_steps_go_on_where_compiled_ones_stopped(flags):
    (compiled, eager), draw = pair(**flags)
    step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
    for t in range(6):
        draw()
        (step if t < 3 else compiled.step)()
        eager.step()
    for p, q in zip(compiled.param_groups[0]["params"], eager.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)
