"""`load_state_dict` takes what it can use, and refuses the rest by name without changing anything."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from acmo import ACMo
from tests.support.backends import every_backend
from tests.support.states import refused
from tests.support.steps import stepped


@every_backend
def test_sgd_state_loads_where_a_parameter_has_no_gradient(backend):
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    sgd = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for p in params:
        p.grad = torch.ones(2)
    sgd.step()
    opt = ACMo(params, **backend, psi="sqrt")
    opt.load_state_dict(sgd.state_dict())
    params[1].grad = None
    opt.step()
    assert float(opt.state[params[0]]["step"]) == 1


NAN, INF = float("nan"), float("inf")


NONSENSE = {
    "step-nan": ("step", torch.tensor(NAN), "nan"),
    "step-negative": ("step", torch.tensor(-1.0), "-1"),
    "step-fractional": ("step", 2.5, r"2\.5"),
    "step-two": ("step", torch.tensor([1.0, 2.0]), r"1\., 2\."),
    "step-word": ("step", "three", "three"),
    "step-infinite": ("step", INF, "inf"),
    "beta_hat-nan": ("beta_hat", torch.tensor([NAN]), "nan"),
    "beta_hat-negative": ("beta_hat", -0.5, r"-0\.5"),
    "beta_hat-three": ("beta_hat", torch.ones(3), r"1\., 1\., 1\."),
    "moment-nan": ("momentum_buffer", torch.tensor([1.0, NAN, 1.0]), "nan"),
    "moment-infinite": ("momentum_buffer", torch.tensor([1.0, INF, 1.0]), "inf"),
    "moment-word": ("momentum_buffer", "x", "'x'"),
    "moment-number": ("momentum_buffer", 1.0, r"1\.0"),
    "moment-shape": ("momentum_buffer", torch.ones(4), r"\(4,\)"),
    "moment-complex": ("momentum_buffer", torch.ones(3, dtype=torch.complex64), "complex64"),
    "moment-integer": ("momentum_buffer", torch.ones(3, dtype=torch.int64), "int64"),
    "moment-sparse": ("momentum_buffer", torch.ones(3).to_sparse(), "sparse"),
    "moment-meta": ("momentum_buffer", torch.ones(3, device="meta"), "meta"),
}


def named(backend, steps, **options):
    params = [("first", nn.Parameter(torch.ones(2))), ("second", nn.Parameter(torch.ones(3)))]
    opt = ACMo([{"params": params[:1]}, {"params": params[1:], "lr": 0.2}], **backend, **options)
    for t in range(steps):
        for _, p in params:
            p.grad = torch.full_like(p, 1.0 + t)
        opt.step()
    return opt


@every_backend
@pytest.mark.parametrize("case", NONSENSE)
def test_invalid_state_is_refused_by_name_and_changes_nothing(case, backend):
    key, value, quoted = NONSENSE[case]
    state = copy.deepcopy(named(backend, 3, psi="sqrt").state_dict())
    state["state"][1][key] = value
    opt = named(backend, 1, psi="sqrt", delta=0.5)
    refused(opt, state, rf"(?s){key} of parameter 1 \('second'\).*{quoted}", (ValueError, TypeError))


@pytest.mark.parametrize(
    ("rival", "options", "steps", "quoted"),
    [
        (torch.optim.NAdam, {}, 2, "mu_product"),
        (torch.optim.NAdam, {}, 0, r"betas=\(0\.9, 0\.999\)"),
        (torch.optim.Adamax, {}, 2, "exp_inf"),
        (torch.optim.RMSprop, {"momentum": 0.9}, 2, "square_avg"),  # its momentum_buffer is of another kind
        (torch.optim.Adagrad, {}, 0, "sum"),
    ],
)
def test_the_state_of_an_optimizer_with_other_moments_is_refused(rival, options, steps, quoted):
    params = [nn.Parameter(torch.ones(3))]
    other = rival(params, lr=0.1, **options)
    for _ in range(steps):
        params[0].grad = torch.ones(3)
        other.step()
    _, opt = stepped({})
    refused(opt, other.state_dict(), quoted)


@pytest.mark.parametrize(
    ("key", "value", "quoted"),
    [
        ("lr", "0.1", r"lr.*'0\.1'"),
        ("maximize", "no", "maximize.*'no'"),
        ("momentum_dtype", torch.float8_e4m3fn, "momentum_dtype.*float8"),
        ("skipped_steps", -3, "skipped_steps of group 1.*-3"),
        ("param_names", ["a", "b"], r"param_names of group 1.*\['a', 'b'\]"),
    ],
)
def test_a_state_with_bad_options_is_refused_and_changes_nothing(key, value, quoted):
    state = named({}, 2).state_dict()
    state["param_groups"][1][key] = value
    refused(named({}, 1), state, rf"(?s){quoted}", (ValueError, TypeError))


def test_what_is_no_state_of_an_optimizer_is_refused():
    _, opt = stepped({})
    refused(opt, {"weight": torch.ones(3)}, "no 'state'.*weight")
    refused(opt, opt.state_dict() | {"state": {0: [1.0]}}, r"parameter 0 has \[1\.0\]")


def test_a_moment_that_overflows_its_new_dtype_is_refused():
    p, opt = stepped({})
    opt.state[p]["momentum_buffer"].fill_(1e6)
    low = ACMo([nn.Parameter(torch.ones(3))], momentum_dtype=torch.float16)
    state = opt.state_dict()
    del state["param_groups"][0]["momentum_dtype"]
    refused(low, state, r"momentum_buffer of parameter 0 .*float16.*inf")


def test_a_real_moment_is_not_loaded_for_a_complex_parameter():
    opt = ACMo([nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    state = opt.state_dict()
    state["param_groups"][0]["momentum_dtype"] = torch.float32
    refused(opt, state, "momentum_dtype=torch.float32.*complex64")


def test_state_with_nan_loads_under_propagate():
    p, opt = stepped({}, nonfinite="propagate")
    p.grad = torch.tensor([1.0, NAN, 1.0])
    opt.step()
    opt.load_state_dict(opt.state_dict())
    assert opt.state[p]["momentum_buffer"].isnan().any()


@every_backend
@pytest.mark.parametrize("step", [4, 4.0, torch.tensor([4.0]), torch.tensor(4)], ids=repr)
def test_a_whole_number_loads_in_any_guise(step, backend):
    p, opt = stepped(backend)
    opt.load_state_dict(opt.state_dict() | {"state": {0: {"momentum_buffer": None, "step": step}}})
    assert opt.state[p]["step"].shape == ()
    opt.step()
    assert float(opt.state[p]["step"]) == 5


def test_a_state_loads_where_values_cannot_be_looked_at():
    with FakeTensorMode():
        p = nn.Parameter(torch.ones(3))
        opt = ACMo([p], foreach=True, psi="sqrt")
        state = {"momentum_buffer": torch.ones(3), "step": torch.ones(()), "beta_hat": torch.ones(1)}
        opt.load_state_dict(opt.state_dict() | {"state": {0: state}})
        assert opt.state[p]["momentum_buffer"].shape == (3,)
