"""int8 moments: saved, loaded, copied, and converted from other moments and back."""

import copy
import pickle

import pytest
import torch
from torch import nn

from acmo import RowACMo
from tests.support.backends import every_backend
from tests.support.states import adam_after, refused


def rows(dtype=torch.float32, **options):
    """Return parameters and an optimizer by row after three steps."""
    torch.manual_seed(0)
    shapes = [(5, 4), (40, 3), (6,), (2, 3, 2, 2), (0, 4)]
    params = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    opt = RowACMo(params, lr=0.01, **options)
    walk(params, opt, 3)
    return params, opt


def walk(params, opt, steps):
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        opt.step()


def same_states(params, opt, twins, other):
    return all(
        opt.state[p].keys() == other.state[q].keys()
        and all(torch.equal(x, other.state[q][key]) for key, x in opt.state[p].items())
        for p, q in zip(params, twins, strict=True)
    )


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_state_loads_and_resumes_bit_for_bit(dtype, backend):
    params, opt = rows(dtype, momentum_dtype=torch.int8, **backend)
    twins, other = rows(dtype, momentum_dtype=torch.int8, **backend)
    walk(twins, other, 1)  # away from the state that is loaded
    other.load_state_dict(opt.state_dict())
    assert same_states(params, opt, twins, other)
    assert other.state[twins[0]]["momentum_scale"].dtype == torch.float32
    with torch.no_grad():
        for p, q in zip(params, twins, strict=True):
            q.copy_(p)
    walk(params, opt, 4)
    walk(twins, other, 4)
    assert same_states(params, opt, twins, other)
    assert all(map(torch.equal, params, twins))


@every_backend
def test_float32_moments_load_as_int8_and_back(backend):
    params, opt = rows(**backend)
    twins, small = rows(momentum_dtype=torch.int8, **backend)
    small.load_state_dict(opt.state_dict())
    assert small.param_groups[0]["momentum_dtype"] == torch.int8
    again_params, again = rows(**backend)
    again.load_state_dict(small.state_dict())
    assert again.param_groups[0]["momentum_dtype"] is None
    for p, q, r in zip(params, twins, again_params, strict=True):
        m, back = opt.state[p]["momentum_buffer"], again.state[r]["momentum_buffer"]
        assert set(again.state[r]) == {"momentum_buffer", "step"}
        assert back.dtype == torch.float32
        if p.ndim < 2:
            assert torch.equal(m, back)
            continue
        scale = small.state[q]["momentum_scale"]
        assert small.state[q]["momentum_buffer"].dtype == torch.int8
        assert scale.shape == p.shape[:1]
        error = (m - back).flatten(1).abs()
        assert (error <= 0.5001 * scale[:, None]).all()
    once_more, other = rows(momentum_dtype=torch.int8, **backend)
    other.load_state_dict(again.state_dict())
    for q, r in zip(twins, once_more, strict=True):
        assert torch.equal(small.state[q]["momentum_buffer"], other.state[r]["momentum_buffer"])
    walk(twins, small, 2)
    walk(again_params, again, 2)


def test_moments_of_sgd_and_adam_load_as_int8():
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        p, other = adam_after(3, kind, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        opt = RowACMo([p], momentum_dtype=torch.int8)
        opt.load_state_dict(other.state_dict())
        m = other.state[p]["exp_avg" if kind is torch.optim.AdamW else "momentum_buffer"]
        scale = opt.state[p]["momentum_scale"][:, None]
        torch.testing.assert_close(opt.state[p]["momentum_buffer"] * scale, m, rtol=0, atol=float(scale.max()) / 2)
        walk([p], opt, 1)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["deepcopy", "pickle"]
)
def test_copies_of_int8_state_are_equal_and_independent(way):
    params, opt = rows(momentum_dtype=torch.int8)
    twin = way(opt)
    twins = twin.param_groups[0]["params"]
    assert same_states(params, opt, twins, twin)
    before = copy.deepcopy(opt.state_dict())
    walk(twins, twin, 2)
    walk(params, opt, 2)
    assert same_states(params, opt, twins, twin)
    assert not torch.equal(before["state"][0]["momentum_scale"], opt.state[params[0]]["momentum_scale"])


@pytest.mark.parametrize(
    ("key", "value", "quoted"),
    [
        ("momentum_scale", None, "None"),
        ("momentum_scale", torch.ones(4), r"\(4,\)"),
        ("momentum_scale", torch.ones(5, dtype=torch.int64), "1, 1"),
        ("momentum_scale", torch.tensor([1.0, float("nan"), 1.0, 1.0, 1.0]), "nan"),
        ("momentum_scale", torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0]), r"-1\.0"),
        ("momentum_scale", torch.full((5,), 1e38), "inf"),
        ("momentum_buffer", torch.ones(5, 4), "not int8"),
    ],
    ids=["none", "shape", "integer", "nan", "negative", "overflow", "float moment"],
)
def test_scales_that_do_not_fit_are_refused(key, value, quoted):
    _, opt = rows(momentum_dtype=torch.int8)
    state = copy.deepcopy(opt.state_dict())
    state["state"][0][key] = value
    refused(opt, state, rf"(?s)momentum_scale of parameter 0.*{quoted}", (ValueError, TypeError))


def test_an_int8_moment_of_a_vector_is_refused():
    _, opt = rows(momentum_dtype=torch.int8)
    state = copy.deepcopy(opt.state_dict())
    state["state"][2]["momentum_buffer"] = torch.ones(6, dtype=torch.int8)
    refused(opt, state, "momentum_buffer of parameter 2.*int8")


@every_backend
@pytest.mark.parametrize("dtypes", [(None, torch.int8), (torch.int8, None), (None, torch.bfloat16)])
def test_moments_follow_a_dtype_that_a_user_edits(backend, dtypes):
    before, after = dtypes
    p = nn.Parameter(torch.ones(4, 8))
    opt = RowACMo([p], lr=0.1, momentum_dtype=before, **backend)
    torch.manual_seed(0)
    for _ in range(3):
        p.grad = torch.randn(4, 8)
        opt.step()
    other = nn.Parameter(p.detach().clone())
    loaded = RowACMo([other], lr=0.1, momentum_dtype=after, **backend)
    loaded.load_state_dict(opt.state_dict())
    loaded.param_groups[0]["momentum_dtype"] = opt.param_groups[0]["momentum_dtype"] = after
    for _ in range(3):
        p.grad = torch.randn(4, 8)
        other.grad = p.grad.clone()
        opt.step()
        loaded.step()
    assert opt.state[p]["momentum_buffer"].dtype == (after or torch.float32)
    assert ("momentum_scale" in opt.state[p]) == (after == torch.int8)
    assert torch.equal(p, other)


@every_backend
def test_scales_that_a_user_replaces_are_read_and_written(backend):
    p = nn.Parameter(torch.randn(40, 3))  # by column: other scales of its rows are another direction
    q = nn.Parameter(p.detach().clone())
    opt, other = (RowACMo([x], lr=0.01, momentum_dtype=torch.int8, **backend) for x in (p, q))
    walk([p], opt, 2)
    walk([q], other, 2)
    scale = opt.state[p]["momentum_scale"] * torch.linspace(0.1, 3.0, 40)
    opt.state[p]["momentum_scale"] = scale.clone()
    other.state[q]["momentum_scale"].copy_(scale)
    walk([p], opt, 1)
    walk([q], other, 1)
    assert torch.equal(p, q)
    assert same_states([p], opt, [q], other)


def replace(state, scale):
    state["momentum_scale"] = scale


def replace_data(state, scale):
    state["momentum_scale"].data = scale


def expand(scale):
    return scale.mean().expand(8)


double = torch.Tensor.double


@pytest.mark.parametrize(("change", "form"), [(replace, double), (replace, expand), (replace_data, double)])
def test_scales_of_another_form_are_read_as_what_they_are(change, form):
    p, q = (nn.Parameter(torch.ones(8, 8)) for _ in range(2))
    opt = RowACMo([p], lr=0.01, momentum_dtype=torch.int8)
    other = RowACMo([q], lr=0.01, momentum_dtype=torch.int8, foreach=False)
    walk([p], opt, 4)
    walk([q], other, 4)
    other.state[q]["momentum_scale"] = form(opt.state[p]["momentum_scale"]).float().contiguous()
    change(opt.state[p], form(opt.state[p]["momentum_scale"]))
    walk([p], opt, 1)
    walk([q], other, 1)
    torch.testing.assert_close(p, q)


@every_backend
def test_scales_of_another_number_are_an_error(backend):
    p = nn.Parameter(torch.ones(8, 8))
    opt = RowACMo([p], lr=0.01, momentum_dtype=torch.int8, **backend)
    walk([p], opt, 4)
    before = p.detach().clone()
    opt.state[p]["momentum_scale"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"momentum_scale .* \(8,\), got a tensor of shape \(3,\)"):
        walk([p], opt, 1)
    assert torch.equal(p, before)
