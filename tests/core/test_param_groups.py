"""param_groups: decay for matrices and kernels, none for biases and norms; scopes by the modules."""

import pytest
import torch
from torch import nn

import acmo


def model():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Embedding(4, 5))
    net[0].weight.requires_grad_(False)
    return net


class Conv1D(nn.Module):
    """As in transformers: the weight is (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Conv1D(3 * width, width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.experts = nn.Parameter(torch.randn(2, width, width))


class GPT(nn.Module):
    def __init__(self, vocabulary=50, width=8, positions=6, blocks=2, tied=True, hidden=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def by_column(net, **options):
    groups = acmo.param_groups(net, weight_decay=0.1, scopes=True, **options)
    return {name for group in groups if group["norm_scope"] == "column" for name, _ in group["params"]}


ATTENTION = {"blocks.0.attention.weight", "blocks.1.attention.weight"}


def test_matrices_and_kernels_decay_biases_and_norms_do_not():
    decayed, spared = acmo.param_groups(model(), weight_decay=0.1, lr=0.5)
    assert [name for name, _ in decayed["params"]] == ["3.weight", "4.weight"]
    assert [name for name, _ in spared["params"]] == ["0.bias", "1.weight", "1.bias", "3.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert decayed["lr"] == spared["lr"] == 0.5


def test_the_optimizer_takes_them_with_their_names():
    opt = acmo.ACMo(acmo.param_groups(model(), weight_decay=0.1))
    assert opt.param_groups[0]["param_names"] == ["3.weight", "4.weight"]
    assert {group["norm_scope"] for group in opt.param_groups} == {"global"}


def test_a_model_without_matrices_gives_one_group():
    (spared,) = acmo.param_groups(nn.LayerNorm(3), weight_decay=0.1)
    assert spared["weight_decay"] == 0.0
    assert all(isinstance(p, torch.Tensor) for _, p in spared["params"])


@pytest.mark.parametrize("cls", [acmo.ACMo, acmo.RowACMo, acmo.SpectralACMo])
def test_without_a_decay_matrices_have_the_optimizers_own(cls):
    own = cls([nn.Parameter(torch.zeros(1))]).defaults["weight_decay"]
    opt = cls(acmo.param_groups(GPT(), scopes=True))
    for group in opt.param_groups:
        assert group["weight_decay"] == (0.0 if group["params"][0].ndim < 2 else own)


@pytest.mark.parametrize("tied", [True, False])
def test_tables_heads_and_conv1d_go_by_column(tied):
    head = set() if tied else {"head.weight"}
    assert by_column(GPT(tied=tied)) == {"tokens.weight", *ATTENTION, *head}


def test_scopes_leave_no_parameter_out_and_take_none_twice():
    net = GPT()
    groups = acmo.param_groups(net, weight_decay=0.1, scopes=True, lr=0.5)
    assert [(g["weight_decay"], g["norm_scope"], g.get("spectral"), g["lr"]) for g in groups] == [
        (0.1, "row", True, 0.5),
        (0.1, "row", False, 0.5),
        (0.1, "column", True, 0.5),
        (0.1, "column", False, 0.5),
        (0.0, "row", None, 0.5),
    ]
    taken = [id(p) for group in groups for _, p in group["params"]]
    assert sorted(taken) == sorted(map(id, net.parameters()))
    assert all(p.ndim < 2 for _, p in groups[4]["params"])


def hidden(net):
    groups = acmo.param_groups(net, scopes=True)
    return {name for group in groups if group.get("spectral") for name, _ in group["params"]}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [50, 5])
def test_only_hidden_layers_are_marked_as_spectral(tied, vocabulary):
    found = {name for k in range(2) for name in (f"blocks.{k}.up.weight", f"blocks.{k}.down.weight")}
    assert hidden(GPT(tied=tied, vocabulary=vocabulary)) == found | ATTENTION  # not the experts, positions or head


def test_the_classifier_of_a_convolutional_net_is_not_hidden():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 16, 3), nn.Linear(16, 32), nn.Linear(32, 10))
    assert hidden(net) == {"0.weight", "1.weight", "2.weight"}


def test_frozen_table_is_left_out_and_its_head_goes_by_column():
    net = GPT(tied=False)
    net.tokens.requires_grad_(False)
    assert by_column(net) == {"head.weight", *ATTENTION}


def test_layers_as_wide_as_a_table_of_positions_go_by_row():
    net = GPT(positions=32, hidden=32)
    assert by_column(net) == {"tokens.weight", "positions.weight", *ATTENTION}


def test_a_second_table_of_another_language_has_its_own_head():
    net = nn.ModuleDict({"source": nn.Embedding(40, 8), "target": nn.Embedding(60, 8), "head": nn.Linear(8, 60)})
    net["bag"] = nn.EmbeddingBag(20, 8)
    assert by_column(net) == {"source.weight", "target.weight", "head.weight", "bag.weight"}


def test_hugging_face_embeddings_go_by_column_in_any_shape():
    class Pretrained(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(6, 8), nn.Linear(8, 6)

        def get_input_embeddings(self):
            return self.table

        def get_output_embeddings(self):
            return self.out

    class Vision(nn.Module):
        def get_input_embeddings(self):
            raise NotImplementedError

        def get_output_embeddings(self):
            return None

    net = nn.ModuleList([Pretrained(), Vision(), nn.Linear(6, 8)])
    assert by_column(net) == {"0.table.weight", "0.out.weight"}


@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_of_transformers_is_named_from_its_modules(tied):
    transformers = pytest.importorskip("transformers", reason="not installed: transformers; see acmo[dev-all]")
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=16, n_layer=1, n_head=2, n_positions=12, tie_word_embeddings=tied
    )
    found = by_column(transformers.GPT2LMHeadModel(config))
    layers = {f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    assert found == {"transformer.wte.weight", *layers} | (set() if tied else {"lm_head.weight"})


@pytest.mark.parametrize("optimizer", [acmo.ACMo, acmo.RowACMo])
def test_both_optimizers_step_by_the_scopes_of_the_groups(optimizer):
    net = nn.Sequential(nn.Embedding(30, 4), nn.Linear(4, 30))
    opt = optimizer(acmo.param_groups(net, weight_decay=0.1, scopes=True), lr=0.1)
    before = [p.detach().clone() for p in net.parameters()]
    net(torch.arange(5)).logsumexp(-1).sum().backward()
    opt.step()
    assert not any(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert [group["norm_scope"] for group in opt.param_groups] == ["column", "row"]


def test_a_scope_of_ones_own_beside_scopes_is_an_error():
    with pytest.raises(ValueError, match=r"scopes=True.*norm_scope='tensor'"):
        acmo.param_groups(model(), 0.1, scopes=True, norm_scope="tensor")
    with pytest.raises(TypeError, match="scopes must be True or False, got 'yes'"):
        acmo.param_groups(model(), 0.1, scopes="yes")


@pytest.mark.parametrize(("decay", "error"), [("x", TypeError), (-0.1, ValueError), (float("inf"), ValueError)])
def test_a_decay_that_is_no_decay_is_an_error_that_quotes_it(decay, error):
    with pytest.raises(error, match=rf"weight_decay must be .*got '?{decay}"):
        acmo.param_groups(model(), decay)


def test_repr_shows_how_many_parameters_go_by_row_and_column():
    net = GPT(vocabulary=100)
    opt = acmo.RowACMo(net.parameters())
    assert "norm_scope: auto (9 by row, 1 by column, 10 whole)" in repr(opt)
    named = repr(acmo.RowACMo(acmo.param_groups(net, scopes=True)))
    for shown in ("row (4 by row)", "row (3 by row)", "column (2 by column)", "column (1 by column)", "row (10 whole)"):
        assert f"norm_scope: {shown}" in named
    spectral = repr(acmo.SpectralACMo(acmo.param_groups(GPT(width=16), scopes=True)))
    for shown in (
        "row (4 spectral)",
        "row (3 by row)",
        "column (2 spectral)",
        "column (1 by column)",
        "row (10 whole)",
    ):
        assert f"norm_scope: {shown}" in spectral
    assert "spectral: True" in spectral
    assert "spectral:" not in named  # an option that RowACMo does not read
    assert opt.param_groups[0]["norm_scope"] == "auto"
    assert "norm_scope: global\n" in repr(acmo.ACMo(net.parameters()))


def test_parameters_in_place_of_a_model_are_refused():
    with pytest.raises(TypeError, match=r"param_groups needs a torch\.nn\.Module.*got a generator"):
        acmo.param_groups(nn.Linear(2, 2).parameters(), scopes=True)
