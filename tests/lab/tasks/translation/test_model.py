"""The Transformer, its loss, its batches, and how it is made to translate."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="the extra translation is not installed")

from acmo.lab.config.optimizers import build as build_optimizer
from acmo.lab.tasks.translation.batches import batch, bucketed, padded
from acmo.lab.tasks.translation.decoding import beam_search, gnmt, greedy, translate
from acmo.lab.tasks.translation.evaluation import bleu
from acmo.lab.tasks.translation.model import EOS, PAD, Net, build, token_losses

SMALL = Net(layers=2, width=32, inner=64, heads=4, dropout=0.0, positions=64)


@pytest.fixture(scope="module")
def base():
    return build(Net(), 37_000)


def test_transformer_base_has_the_computed_number_of_params(base):
    d, inner, vocabulary = 512, 2048, 37_000
    attention, feed, norm = 4 * (d * d + d), d * inner + inner + inner * d + d, 2 * d
    layers = 6 * (attention + feed + 2 * norm) + 6 * (2 * attention + feed + 3 * norm)
    count = sum(p.numel() for p in base.parameters() if p.requires_grad)
    assert count == vocabulary * d + layers == 63_082_496


def test_one_matrix_is_both_embeddings_and_the_output(base):
    shared = base.model.shared.weight
    assert base.model.encoder.embed_tokens.weight is shared
    assert base.model.decoder.embed_tokens.weight is shared
    assert base.lm_head.weight is shared


def test_it_is_the_papers_architecture(base):
    config = base.config
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (6, 6, 512)
    assert (config.encoder_ffn_dim, config.decoder_attention_heads, config.dropout) == (2048, 8, 0.1)
    assert config.activation_function == "relu"
    assert config.scale_embedding
    layer = base.model.encoder.layers[0]
    x = torch.randn(2, 3, 512)
    base.eval()
    with torch.no_grad():  # post-LN: what leaves a layer is normalised
        out = layer(x, None)
    assert float(out.mean(-1).abs().max()) < 1e-5
    assert float((out.std(-1, unbiased=False) - 1).abs().max()) < 1e-3


def test_positions_are_frozen_sinusoids_outside_the_optimizer(base):
    frozen = {name: p for name, p in base.named_parameters() if not p.requires_grad}
    assert sorted(frozen) == ["model.decoder.embed_positions.weight", "model.encoder.embed_positions.weight"]
    table = frozen["model.encoder.embed_positions.weight"]
    assert table[3, 0] == pytest.approx(math.sin(3))
    assert table[3, 256] == pytest.approx(math.cos(3))
    assert table[7, 5] == pytest.approx(math.sin(7 / 10000 ** (10 / 512)), rel=1e-5)
    held = {id(p) for group in build_optimizer("acmo", {}, base).param_groups for p in group["params"]}
    assert held == {id(p) for p in base.parameters() if p.requires_grad}


@torch.no_grad()
def test_matrices_are_xavier_biases_zero_embeddings_normal(base):
    matrices = 0
    for name, p in base.named_parameters():
        if not p.requires_grad or name == "model.shared.weight":
            continue
        if p.dim() == 2:
            matrices += 1
            bound = math.sqrt(6 / sum(p.shape))
            assert float(p.abs().max()) <= bound * (1 + 1e-6), name
            assert float(p.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01), name
        else:
            assert bool((p == (1.0 if "norm.weight" in name else 0.0)).all()), name
    assert matrices == 6 * (4 + 2) + 6 * (8 + 2)
    assert float(base.model.shared.weight[2:].std()) == pytest.approx(512**-0.5, rel=0.01)
    assert not base.model.shared.weight[PAD].any()


def test_the_same_seed_gives_the_same_model():
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(build(SMALL, 300).state_dict())
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


def pairs(count: int = 6, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    draw = np.random.default_rng(seed)
    return [
        ([*draw.integers(2, 50, draw.integers(1, 12)).tolist(), EOS],
         [*draw.integers(2, 50, draw.integers(1, 12)).tolist(), EOS])
        for _ in range(count)
    ]  # fmt: skip


def made(lines: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    return batch(*(padded(list(side)) for side in zip(*lines, strict=True)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_smoothed_cross_entropy_of_every_target_token(smoothing):
    model, lines = build(SMALL, 50).eval(), pairs()
    losses = token_losses(model, made(lines), smoothing)
    assert len(losses) == sum(len(target) for _, target in lines)
    expected = []
    for source, target in lines:  # one sentence at a time, by the model's own forward
        before = torch.tensor([[PAD, *target[:-1]]])
        logs = model(input_ids=torch.tensor([source]), decoder_input_ids=before).logits[0].log_softmax(-1)
        for row, token in zip(logs, target, strict=True):
            expected.append(-(1 - smoothing) * row[token] - smoothing * row.mean())
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_company_and_filling_do_not_change_a_sentences_loss():
    model, lines = build(SMALL, 50).eval(), pairs()
    alone = torch.cat([token_losses(model, made([line]), 0.1) for line in lines])
    torch.testing.assert_close(token_losses(model, made(lines), 0.1), alone, rtol=1e-5, atol=1e-5)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 251), min_size=1, max_size=400), st.integers(50, 600), st.integers(0, 5))
def test_batches_hold_every_pair_once_within_the_token_limit(lengths, tokens, seed):
    sizes = np.array(lengths, np.uint16)
    found = bucketed(sizes, tokens, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(found).tolist()) == list(range(len(lengths)))
    for one in found:
        longest = int(sizes[one.numpy()].max())
        assert len(one) * longest <= tokens or len(one) == 1
        # Parts of it, as ranks take them, are of about equal size.
        parts = [int(sizes[one[part::2].numpy()].sum()) for part in range(2)]
        assert abs(parts[0] - parts[1]) <= longest


def test_epochs_have_other_batches_and_a_seed_repeats_them():
    sizes = np.random.default_rng(0).integers(5, 40, 3000).astype(np.uint16)
    a, again, b = (bucketed(sizes, 512, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(x, y) for x, y in zip(a, again, strict=True))
    assert len(a) == len(b)
    assert not {tuple(sorted(x.tolist())) for x in a} & {tuple(sorted(x.tolist())) for x in b}
    filled = sum(len(x) * int(sizes[x.numpy()].max()) for x in a)
    assert sizes.sum() > 0.97 * filled  # like lengths are together
    order = [int(sizes[x.numpy()].max()) for x in a]
    assert order != sorted(order)
    assert order != sorted(order, reverse=True)


def test_batches_of_more_than_eight_divide_among_ranks():
    found = bucketed(np.full(1000, 10, np.uint16), 16_384, torch.Generator().manual_seed(0))
    assert all(len(one) % 8 == 0 for one in found[:-1] if len(one) > 8)


class Table:
    """Language models whose every next token depends on all before, one a sentence: small enough to try all."""

    def __init__(self, vocabulary: int, seed: int, rows: int, beams: int | None = None) -> None:
        self.vocabulary, self.seed, self.beams = vocabulary, seed, beams or rows
        self.rows: list[tuple[int, ...]] = [()] * rows

    def logs(self, before: tuple[int, ...], sentence: int = 0) -> torch.Tensor:
        draw = torch.Generator().manual_seed(hash((self.seed, sentence, *before)) % 2**31)
        logits = 2 * torch.randn(self.vocabulary, generator=draw)
        logits[PAD] = -torch.inf
        return logits.log_softmax(-1)

    def __call__(self, last: torch.Tensor, moved: torch.Tensor | None) -> torch.Tensor:
        if moved is not None:
            self.rows = [self.rows[i] for i in moved.tolist()]
        self.rows = [(*row, token) for row, token in zip(self.rows, last.tolist(), strict=True)]
        return torch.stack([self.logs(row[1:], i // self.beams) for i, row in enumerate(self.rows)])


def searched_by_hand(table: Table, sentence: int, limit: int, beams: int, alpha: float) -> list[int]:
    """Beam search in plain words: no batch, no cache, no early end."""
    going: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        grown = []
        for score, said in going:
            logs = table.logs(said, sentence).tolist()
            grown += [(score + logs[t], (*said, t)) for t in range(table.vocabulary) if t != PAD]
        grown.sort(reverse=True)
        penalty = ((5 + length) / 6) ** alpha
        ended += [(s / penalty, said) for s, said in grown[:beams] if said[-1] == EOS or length == limit]
        going = [(s, said) for s, said in grown if said[-1] != EOS][:beams]
    return [t for t in max(ended)[1] if t != EOS]


@pytest.mark.parametrize(("beams", "alpha"), [(4, 0.6), (4, 0.0), (4, 2.0), (2, 0.6), (1, 0.6)])
def test_beam_search_of_a_batch_equals_search_by_hand(beams, alpha):
    limits = [7, 1, 4, 9, 2, 6, 9, 3]
    for seed in range(6):
        table = Table(7, seed, len(limits) * beams, beams)
        found = beam_search(table, torch.tensor(limits), beams, alpha)
        by_hand = [searched_by_hand(table, i, limit, beams, alpha) for i, limit in enumerate(limits)]
        assert found == by_hand
    assert any(len(line) < limit - 1 for line, limit in zip(found, limits, strict=True))  # some end by themselves


def every_sentence(table: Table, limit: int) -> dict[tuple[int, ...], float]:
    """The sum of log-probabilities of all that may be said; at the limit, without an end mark too."""
    found = {}
    words = [t for t in range(table.vocabulary) if t not in (PAD, EOS)]
    for length in range(1, limit + 1):
        for body in itertools.product(words, repeat=length - 1):
            ends = [EOS] if length < limit else [EOS, *words]
            score = sum(float(table.logs(body[:i])[t]) for i, t in enumerate(body))
            for last in ends:
                found[(*body, last)] = score + float(table.logs(body)[last])
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_wide_enough_finds_the_best_sentence_there_is(alpha, seed):
    vocabulary, limit = 4, 4
    scores = every_sentence(Table(vocabulary, seed, 1), limit)
    best = max(scores, key=lambda tokens: scores[tokens] / gnmt(len(tokens), alpha))
    beams = 64
    found = beam_search(Table(vocabulary, seed, beams), torch.tensor([limit]), beams, alpha)
    assert found == [[t for t in best if t != EOS]]


def test_the_length_penalty_is_gnmts_and_not_transformers():
    assert gnmt(1, 0.6) == 1
    assert gnmt(20, 0.6) / gnmt(10, 0.6) == pytest.approx((25 / 15) ** 0.6)
    assert gnmt(7, 0.0) == 1


@pytest.fixture(scope="module")
def talker():
    """A model that ends its sentences: its end mark is likely."""
    torch.manual_seed(1)
    model = build(SMALL, 30).eval()
    with torch.no_grad():
        model.model.shared.weight *= 3
    return model


@torch.no_grad()
def test_without_penalty_beams_are_those_of_transformers(talker):
    source = padded([line for line, _ in pairs(12, seed=4)]).clamp(max=29)
    ours = translate(talker, source, beams=4, extra=3, alpha=0.0)
    for row, mine in zip(source, ours, strict=True):
        alone = row[row != PAD][None]
        theirs = talker.generate(
            input_ids=alone, num_beams=4, length_penalty=0.0, early_stopping="never", do_sample=False,
            max_length=alone.shape[1] + 3 + 1, bad_words_ids=[[PAD]],
        )[0]  # fmt: skip
        assert mine == [t for t in theirs.tolist() if t not in (PAD, EOS)]


@torch.no_grad()
def test_one_beam_is_greedy_and_company_changes_nothing(talker):
    source = padded([line for line, _ in pairs(12, seed=4)]).clamp(max=29)
    together = translate(talker, source, beams=1, extra=5)
    for row, mine in zip(source, together, strict=True):
        alone = row[row != PAD][None]
        assert translate(talker, alone, beams=1, extra=5) == [mine]
        theirs = talker.generate(
            input_ids=alone, num_beams=1, do_sample=False, max_length=alone.shape[1] + 6, bad_words_ids=[[PAD]]
        )[0]
        assert mine == [t for t in theirs.tolist() if t not in (PAD, EOS)]
    four = translate(talker, source, beams=4, extra=5)
    assert [translate(talker, row[row != PAD][None], beams=4, extra=5)[0] for row in source] == four
    assert translate(talker, source.flip(0), beams=4, extra=5) == four[::-1]
    wider = torch.nn.functional.pad(source, (0, 7), value=PAD)
    assert translate(talker, wider, beams=4, extra=5) == four
    assert translate(talker, wider, beams=1, extra=5) == together


def test_time_is_bounded_where_no_sentence_ever_ends():
    def endless(last: torch.Tensor, moved: torch.Tensor | None) -> torch.Tensor:
        calls.append(1)
        logits = torch.zeros(len(last), 5)
        logits[:, [PAD, EOS]] = -torch.inf
        return logits.log_softmax(-1)

    calls: list[int] = []
    assert [len(line) for line in greedy(endless, torch.tensor([3, 7]))] == [3, 7]
    assert len(calls) == 7
    calls.clear()
    assert [len(line) for line in beam_search(endless, torch.tensor([3, 7]), 2, 0.6)] == [3, 7]
    assert len(calls) == 7


def test_bleu_is_sacrebleus_and_says_how_it_counts():
    references = ["Ein Mann sieht einen roten Ball.", "Zwei Hunde laufen über die Straße."]
    perfect = bleu(references, references)
    assert perfect["bleu"] == pytest.approx(100)
    assert perfect["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    half = bleu(["Ein Mann sieht einen Ball.", references[1]], references)["bleu"]
    assert bleu(["x y z w"] * 2, references)["bleu"] < half < 100
