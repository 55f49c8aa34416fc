"""State and tensors that a kernel with bare addresses must not trust: an error or the right number, never a crash."""

import copy
import gc
import weakref

import pytest
import torch
from backends import FOREACH, FUSED, REFERENCE, every_backend
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from acmo import ACMo
from acmo.projections import Box


def stepped(backend, **options):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.1, **backend, **options)
    p.grad = torch.ones(3)
    opt.step()
    return p, opt


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_numbers_of_another_dtype_are_read_for_what_they_are(backend, dtype):
    p, opt = stepped(backend, psi="sqrt")
    opt.step()
    opt.state[p]["step"] = opt.state[p]["step"].to(dtype)
    opt.state[p]["beta_hat"] = torch.tensor(float(opt.state[p]["beta_hat"]), dtype=torch.float32)
    opt.step()
    assert float(opt.state[p]["step"]) == 3
    assert torch.isfinite(p).all()


@every_backend
def test_a_step_that_is_no_number_is_an_error_that_names_it(backend):
    p, opt = stepped(backend)
    opt.state[p]["step"] = torch.empty(0)
    with pytest.raises(ValueError, match=r"step .* shape \(0,\)"):
        opt.step()


@every_backend
def test_a_training_goes_on_from_sgd_where_a_parameter_has_no_gradient(backend):
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


def test_tensors_without_memory_go_to_foreach():
    with FakeTensorMode():
        p = nn.Parameter(torch.ones(3))
        p.grad = torch.ones(3)
        ACMo([p], foreach=True).step()
        assert ACMo([p]).step() is None
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.1, weight_decay=1.0)
    p.grad = torch._efficientzerotensor((3,))
    opt.step()
    assert torch.allclose(p, torch.full((3,), 0.9))


def test_the_kernels_ops_refuse_a_parameter_that_has_outgrown_its_state():
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    opt = ACMo([{"params": [a]}, {"params": [b]}])
    a.grad, b.grad = torch.ones(4), torch.ones(4)
    opt.step()
    opt.state[b]["momentum_buffer"] = torch.zeros(8)[::2]
    a.grad = None
    a.data = torch.ones(1 << 16)
    a.grad = torch.ones(1 << 16)
    with pytest.raises(RuntimeError):
        opt.step()


def test_lazy_views_are_refused_as_parameters():
    with pytest.raises(ValueError, match="lazy view"):
        ACMo([nn.Parameter(torch._neg_view(torch.ones(2)))])


@every_backend
def test_raise_also_speaks_of_a_decayed_gradient(backend):
    p = nn.Parameter(torch.tensor([1.0, torch.nan]))
    opt = ACMo([("bad", p)], weight_decay=0.1, nonfinite="raise", **backend)
    p.grad = torch.ones(2)
    with pytest.raises(FloatingPointError, match="bad"):
        opt.step()


@every_backend
def test_making_state_is_no_skipped_step(backend):
    model = nn.Linear(2, 1)
    opt = ACMo(model.parameters(), **backend)
    get_optimizer_state_dict(model, opt)
    assert opt.skipped_steps == 0


@every_backend
def test_a_projection_that_writes_in_place_cannot_touch_a_step_that_was_skipped(backend):
    p = nn.Parameter(torch.tensor([-1.0, 2.0]))
    opt = ACMo([p], projection=lambda x: x.clamp_(min=0), **backend)
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))
    p.grad = torch.tensor([torch.nan, 1.0])
    opt.step()
    assert torch.equal(p, torch.tensor([-1.0, 2.0]))


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


def refused(opt, state, match, error=ValueError):
    """A load that fails must leave everything as it was, to the bit, and the state that was given too."""
    before, given = copy.deepcopy(opt.state_dict()), copy.deepcopy(state)
    with pytest.raises(error, match=match):
        opt.load_state_dict(state)
    assert opt.state_dict()["param_groups"] == before["param_groups"]
    assert opt.state_dict()["state"].keys() == before["state"].keys()
    for i, kept in before["state"].items():
        now = opt.state_dict()["state"][i]
        assert now.keys() == kept.keys()
        assert all((now[key].dtype, now[key].shape) == (x.dtype, x.shape) for key, x in kept.items())
        assert all(torch.equal(now[key], x) for key, x in kept.items())
    assert repr(state) == repr(given)


@every_backend
@pytest.mark.parametrize("case", NONSENSE)
def test_a_state_with_nonsense_is_refused_by_parameter_key_and_value_and_changes_nothing(case, backend):
    key, value, quoted = NONSENSE[case]
    state = copy.deepcopy(named(backend, 3, psi="sqrt").state_dict())
    state["state"][1][key] = value
    opt = named(backend, 1, psi="sqrt", delta=0.5)
    refused(opt, state, rf"(?s){key} of parameter 1 \('second'\).*{quoted}", (ValueError, TypeError))


@pytest.mark.parametrize(
    ("rival", "options", "steps", "quoted"),
    [
        (torch.optim.Adam, {}, 2, "exp_avg"),
        (torch.optim.Adam, {}, 0, r"betas=\(0\.9, 0\.999\)"),
        (torch.optim.NAdam, {}, 2, "mu_product"),
        (torch.optim.RMSprop, {"momentum": 0.9}, 2, "square_avg"),  # its momentum_buffer is of another kind
        (torch.optim.Adagrad, {}, 0, "sum"),
    ],
)
def test_the_state_of_an_optimizer_that_is_not_sgd_is_refused(rival, options, steps, quoted):
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


def test_under_propagate_a_state_comes_back_with_the_nan_that_it_was_saved_with():
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


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_moment_in_float16_saturates_where_the_gradient_is_beyond_its_range(backend, dtype):
    huge = 60000.0 if dtype == torch.float16 else 1e5
    p = torch.zeros(3, dtype=dtype, requires_grad=True)
    opt = ACMo([p], lr=1e-6, momentum_dtype=torch.float16, **backend)
    for _ in range(3):
        p.grad = torch.tensor([huge, -huge, 1.0], dtype=dtype)
        opt.step()
    assert opt.state[p]["momentum_buffer"].isfinite().all()
    assert opt.state[p]["momentum_buffer"][:2].tolist() == [65504.0, -65504.0]
    assert p.isfinite().all()
    assert opt.skipped_steps == 0


@every_backend
def test_steps_under_inference_mode_are_those_outside(backend):
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    one, other = ACMo([a], **backend), ACMo([b], **backend)
    for _ in range(3):
        a.grad, b.grad = torch.arange(4.0), torch.arange(4.0)
        one.step()
        with torch.inference_mode():
            other.step()
    assert torch.equal(a, b)


@every_backend
def test_a_shallow_copy_shares_the_state_and_what_is_known_of_it(backend):
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    one, other = ACMo([a], **backend), ACMo([b], **backend)
    twin = copy.copy(one)
    for t in range(6):
        a.grad, b.grad = torch.arange(4.0) + t, torch.arange(4.0) + t
        (one if t % 2 else twin).step()
        other.step()
    assert torch.equal(a, b)


@pytest.mark.parametrize("backend", [REFERENCE, FOREACH, {}])
def test_a_gradient_of_another_dtype_keeps_its_range_and_precision(backend):
    p = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    p.grad_dtype = torch.float32
    p.grad = torch.tensor([1e5, 1.0])
    opt = ACMo([p], lr=1e-6, momentum_dtype=torch.float32, **backend)
    opt.step()
    assert opt.state[p]["momentum_buffer"].tolist() == [1e5, 1.0]


@every_backend
def test_an_option_of_the_whole_optimizer_edited_in_one_group_is_refused(backend):
    params = [torch.ones(2, requires_grad=True) for _ in range(2)]
    opt = ACMo([{"params": [p]} for p in params], **backend)
    for p in params:
        p.grad = torch.ones(2)
    opt.step()
    opt.param_groups[1]["norm_scope"] = "tensor"
    with pytest.raises(ValueError, match="norm_scope is one for the whole optimizer"):
        opt.step()
    for group in opt.param_groups:
        group["norm_scope"] = "tensors"
    with pytest.raises(ValueError, match="'tensors'"):
        opt.step()


@every_backend
def test_a_projection_stays_with_its_group_when_another_is_removed(backend):
    params = [torch.ones(2, requires_grad=True) for _ in range(2)]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "projection": Box(-0.5, 0.5)}]
    opt = ACMo(groups, **backend)
    opt.param_groups.pop(0)
    params[1].grad = torch.ones(2)
    opt.step()
    assert params[1].tolist() == [0.5, 0.5]
    assert opt.state_dict()["param_groups"][0]["projection"] is None


class Twins:
    """The same run under a backend and under the reference, with something done to both before a step."""

    def __init__(self, backend, **options):
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(4, 3, generator=generator) for _ in range(3)]
        self.params = [[nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        self.opts = [ACMo(p, lr=0.1, **b, **options) for p, b in zip(self.params, (backend, REFERENCE), strict=True)]
        self.generator = generator

    def step(self, t, takes=None, without=()):
        for k, (p, q) in enumerate(zip(*self.params, strict=True)):
            g = torch.randn(p.shape, generator=self.generator) * 3.0 ** (t % 3)
            p.grad, q.grad = (None, None) if k in without else (g.clone(), g.clone())
        (takes or self.opts[0].step)()
        self.opts[1].step()

    def agree(self):
        for p, q in zip(*self.params, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                *(o.state[x]["momentum_buffer"] for o, x in zip(self.opts, (p, q), strict=True)), rtol=1e-5, atol=1e-5
            )


@every_backend
def test_psi_may_change_to_and_fro(backend):
    twins = Twins(backend)
    for t in range(8):
        for opt in twins.opts:
            opt.param_groups[0]["psi"] = "sqrt" if t in (3, 4) else "identity"
        twins.step(t)
    twins.agree()


@pytest.mark.parametrize("backend", [FOREACH, FUSED])
@pytest.mark.parametrize("eager", [(2, 5), (0, 1, 4)], ids=str)
def test_compiled_and_eager_steps_may_be_mixed(backend, eager):
    torch._dynamo.reset()
    twins = Twins(backend)
    compiled = torch.compile(twins.opts[0].step, backend="eager")
    for t in range(8):
        twins.step(t, None if t in eager else compiled)
    twins.agree()


@pytest.mark.parametrize("backend", [FOREACH, FUSED])
def test_a_parameter_may_be_frozen_and_unfrozen_between_compiled_steps(backend):
    torch._dynamo.reset()
    twins = Twins(backend)
    compiled = torch.compile(twins.opts[0].step, backend="eager")
    for t in range(8):
        twins.step(t, compiled, without=(1,) if t in (3, 4) else ())
    twins.agree()


@every_backend
def test_a_moment_that_changes_its_dtype_by_data_harms_no_memory(backend):
    ps = [nn.Parameter(torch.ones(4096)) for _ in range(2)]
    opt = ACMo(ps, **backend)
    for _ in range(2):
        for p in ps:
            p.grad = torch.ones_like(p)
        opt.step()
        m = opt.state[ps[1]]["momentum_buffer"]
        m.data = m.data.bfloat16()
    assert all(p.isfinite().all() for p in ps)


@every_backend
def test_another_default_device_is_none_of_our_business(backend):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], lr=0.5, **backend)
    p.grad = torch.ones(3)
    try:
        torch.set_default_device("meta")
        opt.step()
        opt.step()
    finally:
        torch.set_default_device(None)
    assert p.tolist() == pytest.approx([1 - 0.5 - 0.5 * 1.9] * 3)


@every_backend
def test_the_moments_of_replaced_parameters_are_let_go(backend):
    p = nn.Parameter(torch.ones(3))
    opt = ACMo([p], **backend)
    moments = []
    for _ in range(6):
        p.grad = torch.ones_like(p)
        opt.step()
        old = opt.state.pop(p)
        moments.append(weakref.ref(old["momentum_buffer"]))
        p = nn.Parameter(torch.ones(len(p) + 1))
        opt.param_groups[0]["params"][0] = p
        opt.state[p] = {"momentum_buffer": torch.ones(len(p)), "step": old["step"]}
        del old
    p.grad = torch.ones_like(p)
    opt.step()
    gc.collect()
    assert sum(ref() is not None for ref in moments) <= 1


@every_backend
def test_a_hook_is_called_once_a_step_under_inference_mode(backend):
    _, opt = stepped(backend)
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    with torch.inference_mode():
        opt.step()
    assert calls == [1]


@every_backend
def test_a_parameter_of_another_shape_than_its_moment_is_refused(backend):
    p = nn.Parameter(torch.ones(4, 3))
    opt = ACMo([p], **backend)
    p.grad = torch.ones(4, 3)
    opt.step()
    opt.state[p]["momentum_buffer"] = torch.ones(12)
    with pytest.raises(RuntimeError, match=r"\(4, 3\).*\(12,\)"):
        opt.step()


@pytest.mark.parametrize("backend", [REFERENCE, FOREACH, {}])
def test_gradients_of_several_dtypes_are_neither_rounded_nor_modified(backend):
    ps = [nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(2)]
    opt = ACMo(ps, lr=1e-3, momentum_dtype=torch.float32, max_grad_norm=0.1, weight_decay=0.1, **backend)
    ps[1].grad_dtype = torch.float32
    given = [torch.randn(64, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    given[0] = given[0].bfloat16()
    for p, g in zip(ps, given, strict=True):
        p.grad = g.clone()
    opt.step()
    for p, g in zip(ps, given, strict=True):
        assert torch.equal(p.grad, g)
    c = 0.1 / (torch.cat([g.double() for g in given]).norm() + 1e-6)
    for p, g in zip(ps, given, strict=True):
        want = c * g.double() + 0.1
        torch.testing.assert_close(opt.state[p]["momentum_buffer"].double(), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", [{}, REFERENCE])  # foreach keeps the last five sets: it does not wait to know
def test_telemetry_remembers_the_last_step_taken_through_any_number_of_skips(backend):
    ps = [nn.Parameter(torch.ones(2)) for _ in range(8)]
    opt = ACMo(ps, **backend)
    for p in ps:
        p.grad = torch.ones(2)
    opt.step()
    for k in range(7):
        for p in ps:
            p.grad = None
        ps[k].grad = torch.full((2,), torch.nan)
        opt.step()
    assert opt.skipped_steps == 7
    assert opt.telemetry()["grad_norm"] == pytest.approx(4.0)


@every_backend
def test_the_count_of_skipped_steps_outlives_the_first_group(backend):
    p, opt = stepped(backend)
    p.grad = torch.full((3,), torch.nan)
    opt.step()
    opt.state_dict()
    q = nn.Parameter(torch.ones(2))
    opt.add_param_group({"params": [q]})
    del opt.param_groups[0]
    assert opt.skipped_steps == 1
    opt.param_groups.clear()
    opt.step()
