"""Bad input gets an error that names the argument and the value; good input is taken as torch.optim takes it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import acmo
from acmo import ACMo
from tests.support.backends import Backend, every_backend
from tests.support.steps import Twins

ERRORS = (ValueError, TypeError, RuntimeError)


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape or (2,), dtype=dtype, requires_grad=True)


def test_the_signature_is_the_one_that_is_documented():
    p = inspect.signature(acmo.ACMo).parameters
    expected = {
        "lr": 0.3, "momentum": 0.9, "delta": 1e-8, "weight_decay": 0.0, "decoupled_weight_decay": False,
        "norm_scope": "global", "unit_step": False, "ns_steps": 5, "ns_dtype": None, "psi": "identity",
        "max_grad_norm": None, "projection": None, "process_group": None,
        "momentum_dtype": None, "stochastic_rounding": False, "nonfinite": "skip", "maximize": False,
        "foreach": None, "fused": None, "differentiable": False,
    }  # fmt: skip
    assert list(p) == ["params", *expected]
    assert {name: p[name].default for name in expected} == expected
    assert [n for n, q in p.items() if q.kind is not q.KEYWORD_ONLY] == ["params", *list(expected)[:4]]


def test_row_acmo_shows_every_option_and_its_own_defaults():
    ours, theirs = (dict(inspect.signature(cls).parameters) for cls in (acmo.RowACMo, acmo.ACMo))
    assert list(ours) == list(theirs)
    assert [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]
    differing = {name: p.default for name, p in ours.items() if p.default != theirs[name].default}
    assert differing == {
        "lr": 1e-3,
        "delta": 0.0,
        "decoupled_weight_decay": True,
        "norm_scope": "auto",
        "unit_step": "rms",
    }
    opt = acmo.RowACMo([parameter()])
    given = {name: p.default for name, p in ours.items() if name not in ("params", "process_group")}
    assert {name: opt.defaults[name] for name in given} == given


BAD: list[tuple[str, Any, str]] = [
    ("lr", -0.1, r"-0\.1"),
    ("lr", float("nan"), "nan"),
    ("lr", "fast", "fast"),
    ("lr", "0.1", r"'0\.1'"),
    ("lr", torch.tensor(1j), "1j"),
    ("momentum", "0.9", r"'0\.9'"),
    ("lr", torch.tensor([0.1, 0.2]), "2"),
    ("momentum", -0.1, r"-0\.1"),
    ("momentum", 1.2, r"1\.2"),
    ("momentum", float("nan"), "nan"),
    ("delta", -1e-3, r"-0\.001"),
    ("delta", float("nan"), "nan"),
    ("weight_decay", -1.0, "-1"),
    ("max_grad_norm", -2.0, "-2"),
    ("max_grad_norm", 0.0, "0"),
    ("norm_scope", "layer", "layer"),
    ("psi", "cube", "cube"),
    ("nonfinite", "ignore", "ignore"),
    ("momentum_dtype", torch.int32, "int32"),
    ("momentum_dtype", torch.complex64, "complex64"),
    ("momentum_dtype", "bfloat16", "bfloat16"),
    ("momentum_dtype", torch.float8_e4m3fn, "float8_e4m3fn"),
    ("projection", 3.0, r"3\.0"),
    ("process_group", 1, "1"),
    ("maximize", "no", "'no'"),
    ("stochastic_rounding", 1, "1"),
    ("decoupled_weight_decay", 0.0, r"0\.0"),
    ("differentiable", None, "None"),
    ("foreach", "yes", "'yes'"),
    ("fused", 1, "1"),
]


@pytest.mark.parametrize(("name", "value", "quoted"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_a_bad_value_is_named_and_quoted(name: str, value: Any, quoted: str):
    with pytest.raises(ERRORS, match=rf"(?s){name}.*{quoted}"):
        acmo.ACMo([parameter()], **{name: value})


PER_GROUP = [b for b in BAD if b[0] not in ("norm_scope", "psi", "max_grad_norm", "nonfinite", "process_group")]


@pytest.mark.parametrize(("name", "value", "quoted"), PER_GROUP, ids=[f"{n}={v}" for n, v, _ in PER_GROUP])
def test_a_bad_value_of_a_group_is_named_and_quoted(name: str, value: Any, quoted: str):
    with pytest.raises(ERRORS, match=rf"(?s){name}.*{quoted}"):
        acmo.ACMo([{"params": [parameter()]}, {"params": [parameter()], name: value}])
    opt = acmo.ACMo([parameter()])
    with pytest.raises(ERRORS, match=rf"(?s){name}.*{quoted}"):
        opt.add_param_group({"params": [parameter()], name: value})
    assert len(opt.param_groups) == 1


WIDE = {
    "norm_scope": "tensor",
    "psi": "sqrt",
    "max_grad_norm": 3.5,
    "nonfinite": "raise",
    "foreach": True,
    "differentiable": True,
}


@pytest.mark.parametrize(("name", "value"), WIDE.items())
def test_a_group_may_not_differ_in_what_is_optimizer_wide(name: str, value: Any):
    with pytest.raises(ERRORS, match=rf"(?s){name}.*{value}"):
        acmo.ACMo([{"params": [parameter()]}, {"params": [parameter()], name: value}])
    opt = acmo.ACMo([parameter()])
    with pytest.raises(ERRORS, match=rf"(?s){name}.*{value}"):
        opt.add_param_group({"params": [parameter()], name: value})


@pytest.mark.parametrize("pair", [("foreach", "differentiable"), ("fused", "differentiable"), ("foreach", "fused")])
def test_options_that_exclude_each_other_are_refused(pair: tuple[str, str]):
    with pytest.raises(ERRORS, match=rf"(?s)(?=.*{pair[0]})(?=.*{pair[1]})"):
        acmo.ACMo([parameter()], **dict.fromkeys(pair, True))


def test_an_empty_parameter_list_is_refused():
    with pytest.raises(ValueError, match="empty"):
        acmo.ACMo([])


def test_momentum_dtype_with_complex_parameters_is_refused():
    with pytest.raises(ERRORS, match=r"(?s)momentum_dtype.*complex|complex.*momentum_dtype"):
        acmo.ACMo([parameter(dtype=torch.complex64)], momentum_dtype=torch.float32)


UNFIT = {
    "float8": (torch.zeros(2).to(torch.float8_e5m2), "float8_e5m2"),
    "sparse": (torch.eye(2).to_sparse(), "sparse_coo"),
    "expanded": (torch.zeros(2, 1).expand(2, 3), r"expanded.*\(2, 3\).*\(1, 0\)"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_parameter_that_cannot_be_stepped_is_refused_by_name(kind: str):
    tensor, quoted = UNFIT[kind]
    good = parameter()
    with pytest.raises(ValueError, match=rf"(?s)parameter 1 .*{quoted}"):
        acmo.ACMo([good, tensor])
    opt = acmo.ACMo([("good", good)])
    with pytest.raises(ValueError, match=rf"(?s)parameter 'bad' .*{quoted}"):
        opt.add_param_group({"params": [("bad", tensor)]})
    assert len(opt.param_groups) == 1


@every_backend
@pytest.mark.parametrize("projection", [lambda x: x[:1], lambda x: x.reshape(2, 1), lambda x: x.unsqueeze(0)])
def test_a_projection_that_changes_the_shape_is_refused(projection: Any, backend: Backend):
    p = parameter(2)
    p.grad = torch.ones(2)
    with pytest.raises(ERRORS, match=r"(?s)projection.*shape"):
        acmo.ACMo([p], projection=projection, **backend).step()
    assert not p.any()


@every_backend
def test_a_sparse_gradient_counts_as_the_dense_one_that_it_is(backend: Backend):
    embeddings = [torch.nn.Embedding(5, 3, sparse=sparse) for sparse in (True, False)]
    embeddings[1].load_state_dict(embeddings[0].state_dict())
    for embedding in embeddings:
        opt = acmo.ACMo(embedding.parameters(), weight_decay=0.1, **backend)
        for batch in ([0, 2, 2], [1, 2, 4]):
            opt.zero_grad()
            embedding(torch.tensor(batch)).square().sum().backward()
            assert embedding.weight.grad is not None
            assert embedding.weight.grad.is_sparse == embedding.sparse
            opt.step()
    torch.testing.assert_close(embeddings[0].weight, embeddings[1].weight)


def test_a_state_dict_of_another_shape_is_refused():
    a, b = parameter(3), parameter(4)
    opt, other = acmo.ACMo([a]), acmo.ACMo([b])
    a.grad = torch.ones(3)
    opt.step()
    with pytest.raises(ERRORS, match=r"(?s)(?=.*3)(?=.*4)"):
        other.load_state_dict(opt.state_dict())
    b.grad = torch.ones(4)
    other.step()  # and it is as good as new
    assert other.state[b]["momentum_buffer"].tolist() == [1, 1, 1, 1]


def test_a_state_dict_of_another_number_of_parameters_is_refused():
    with pytest.raises(ValueError, match="group"):
        acmo.ACMo([parameter()]).load_state_dict(acmo.ACMo([parameter(), parameter()]).state_dict())


def test_every_plain_option_is_in_the_defaults_and_in_the_groups():
    opt = acmo.ACMo([parameter()], lr=0.3, norm_scope="group")
    plain = set(inspect.signature(acmo.ACMo).parameters) - {"params", "projection", "process_group"}
    assert plain <= set(opt.defaults)
    assert plain <= set(opt.state_dict()["param_groups"][0])
    assert (opt.param_groups[0]["lr"], opt.param_groups[0]["norm_scope"]) == (0.3, "group")


@every_backend
def test_tensor_lr_equals_float_lr_and_may_change_in_place(backend: Backend):
    results = []
    for lr in (0.1, torch.tensor(0.1), torch.tensor([0.1])):
        p, q = torch.ones(3, requires_grad=True), torch.ones((), requires_grad=True)
        opt = acmo.ACMo([p, q], lr=lr, weight_decay=0.1, decoupled_weight_decay=True, **backend)
        for factor in (1.0, 0.5, 0.5):
            if isinstance(lr, torch.Tensor):
                lr.fill_(0.1 * factor)
            else:
                opt.param_groups[0]["lr"] = 0.1 * factor
            p.grad, q.grad = torch.tensor([1.0, -2.0, 3.0]), torch.ones(())
            opt.step()
        assert q.shape == ()
        results.append(torch.cat((p.detach(), q.detach().reshape(1))))
    torch.testing.assert_close(results[1:], results[:1] * 2)


def test_closure_runs_with_gradients_and_returns_its_loss():
    p = torch.ones(3, requires_grad=True)
    opt = acmo.ACMo([p])

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 3.0
    assert opt.state[p]["momentum_buffer"].tolist() == [2, 2, 2]
    assert opt.step() is None


@pytest.mark.parametrize("schedule", [torch.optim.lr_scheduler.OneCycleLR, torch.optim.lr_scheduler.CyclicLR])
def test_torchs_schedulers_can_cycle_the_momentum(schedule: Any):
    p = parameter()
    opt = acmo.ACMo([p])
    if schedule is torch.optim.lr_scheduler.OneCycleLR:
        scheduler = schedule(opt, max_lr=0.1, total_steps=10)
    else:
        scheduler = schedule(opt, base_lr=0.01, max_lr=0.1, step_size_up=3)
    seen = set()
    for _ in range(8):
        p.grad = torch.ones(2)
        opt.step()
        scheduler.step()
        seen.add(opt.param_groups[0]["momentum"])
    assert len(seen) > 2


@every_backend
def test_integer_parameters_without_gradient_are_skipped(backend: Backend):
    quantised = torch.nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    p = parameter()
    opt = acmo.ACMo([quantised, p], **backend)
    p.grad = torch.ones_like(p)
    opt.step()
    assert quantised not in opt.state
    quantised.grad = torch.ones(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="int64"):
        opt.step()


@every_backend
def test_shared_option_edited_in_one_group_is_refused(backend):
    params = [torch.ones(2, requires_grad=True) for _ in range(2)]
    opt = ACMo([{"params": [p]} for p in params], **backend)
    for p in params:
        p.grad = torch.ones(2)
    opt.step()
    opt.param_groups[1]["norm_scope"] = "tensor"
    with pytest.raises(ValueError, match="cannot be mixed"):
        opt.step()
    for group in opt.param_groups:
        group["norm_scope"] = "tensors"
    with pytest.raises(ValueError, match="'tensors'"):
        opt.step()


@every_backend
def test_psi_may_change_to_and_fro(backend):
    twins = Twins(backend)
    for t in range(8):
        for opt in twins.opts:
            opt.param_groups[0]["psi"] = "sqrt" if t in (3, 4) else "identity"
        twins.step(t)
    twins.assert_close()
