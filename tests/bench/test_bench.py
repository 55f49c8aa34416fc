"""``python -m acmo.bench``: the sets are what they are named after, the numbers hang together. Times are not judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from acmo import native
from acmo.bench.contenders import (
    ADAMW,
    ADAMW_CLIPPED,
    ANCHORS,
    CLIPPED,
    COUPLED,
    FUSED,
    PLAIN,
    ROWS,
    ROWS_INT8,
    SGD,
    contenders,
    table,
)
from acmo.bench.measure import Ratio, Times, compare, interleave, peak_extra
from acmo.bench.run import acmo_on, measure_set, plan
from acmo.bench.sets import SETS, ParameterSet, transformer_base
from acmo.bench.targets import FEWEST_STEPS, Verdict, judge

SMALL = ParameterSet("small", "small", ((3, 5), (7,)), large=False)


@pytest.mark.parametrize(
    ("key", "parameters", "tensors"),
    [
        ("10k", 10_062, 6),
        ("1000x1000", 1_000_000, 1000),
        ("resnet50", 25_557_032, 161),  # as torchvision's and timm's documentation have it
        ("transformer", 63_084_544, 185),
        ("gpt2", 124_439_808, 148),  # as Hugging Face's gpt2 has it
        ("100m", 100_000_000, 1),
        ("10000x10000", 100_000_000, 1),
    ],
)
def test_set_has_the_parameter_count_of_its_network(key: str, parameters: int, tensors: int) -> None:
    assert (SETS[key].parameters, len(SETS[key].shapes)) == (parameters, tensors)


def test_transformer_base_has_the_shapes_of_torchs_transformer() -> None:
    with torch.device("meta"):
        model = torch.nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    assert list(transformer_base())[1:] == [tuple(p.shape) for p in model.parameters()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("bench") / "run.json"
    command = [sys.executable, "-m", "acmo.bench", "--quick", "--sets", "10k", "--threads", "1", "--json", str(file)]
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONWARNINGS": "error"}
    )
    assert "a 10 k-parameter net: 10,062 parameters in 6 tensors" in out.stdout
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def test_the_json_holds_a_row_for_every_contender(written: dict[str, Any]) -> None:
    assert set(written) == {"machine", "threads", "sets", "pairs", "targets"}
    assert written["threads"] == 1
    assert list(written["sets"]) == ["10k"]
    assert [row["name"] for row in written["sets"]["10k"]["rows"]] == [c.name for c in contenders(targets_only=True)]


def test_bandwidths_follow_from_the_medians(written: dict[str, Any]) -> None:
    result = written["sets"]["10k"]
    rows = {row["name"]: row for row in result["rows"]}
    plain = min(rows[name]["ms"] for name in (PLAIN, SGD) if name in rows)
    for row in rows.values():
        assert 0 < row["q1_ms"] <= row["ms"] <= row["q3_ms"]
        assert row["steps"] >= FEWEST_STEPS
        assert row["gb_s"] == pytest.approx(4 * row["words"] * 10_062 / (row["ms"] / 1e3) / 1e9)
        assert row["triad_percent"] == pytest.approx(100 * row["gb_s"] / result["triad_gb_s"])
        assert row["plain_percent"] == pytest.approx(100 * (row["words"] / row["ms"]) / (5 / plain))


def test_verdicts_are_those_of_the_measured_ratios(written: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in written["sets"]["10k"]["rows"]}
    verdicts = [v for v in written["targets"] if v["where"] == "a 10 k-parameter net"]
    assert [v["most"] for v in verdicts] == [1.5, 1.2, 0.8, 1.0, 1.0]
    if FUSED in rows:
        peak = max(rows[name]["peak_bytes"] for name in (ROWS, ROWS_INT8)) / 1e6
        known = [rows[FUSED]["to_sgd"], rows[FUSED]["to_adamw"], peak]
        assert [verdicts[i]["value"] for i in (0, 1, 4)] == pytest.approx(known)
        assert all(v["low"] <= v["value"] <= v["high"] for v in verdicts[:4])
        assert all(v["met"] in (None, v["value"] <= v["most"]) for v in verdicts)
        assert 0 < verdicts[-1]["value"] < 1
    else:
        assert [v["met"] for v in verdicts] == [None] * 5
    assert [v["met"] for v in written["targets"][5:]] == [None, None]  # their sets were not asked for


def test_words_and_state_are_what_the_updates_move_and_keep(written: dict[str, Any]) -> None:
    words = {c.name: c.words for c in table()}
    assert (words[FUSED], words[CLIPPED], words[COUPLED], words[SGD], words[ADAMW]) == (6, 6, 7, 5, 7)
    assert (words[ADAMW_CLIPPED], words[PLAIN]) == (10, 5)
    moments = {c.name: c.moments for c in table()}
    for row in written["sets"]["10k"]["rows"]:  # on top: counters of 6 tensors; for int8 scales of 142 rows, 142 biases
        more = 0.102 if row["name"] == ROWS_INT8 else 0.01
        assert 4 * moments[row["name"]] <= row["state_bytes"] <= 4 * moments[row["name"]] + more


def test_a_verdict_is_met_within_its_bounds_only() -> None:
    assert [Verdict("", "", x, least=0.85, most=1.15).met for x in (0.8, 0.85, 1.15, 1.2)] == [False, True, True, False]
    assert Verdict("", "", None, most=1.0).met is None


@pytest.mark.parametrize(
    ("low", "high", "steps", "met"),
    [(0.97, 0.99, 10, True), (0.97, 1.0, 10, True), (0.97, 1.01, 10, None), (0.97, 0.99, 9, None)],
)
def test_a_verdict_needs_ten_steps_and_clear_quartiles(low: float, high: float, steps: int, met: bool | None) -> None:
    assert judge("", "", Ratio(0.98, low, high, steps), most=1.0).met is met
    above = judge("", "", Ratio(0.98, low, high, steps).convert(lambda ratio: 2 - ratio), least=1.0, most=2.0)
    assert above.met is met


def test_ratios_are_taken_within_rounds() -> None:
    a = Times(1e3, 0, 0, 5, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 5: 9.0})
    b = Times(2e3, 0, 0, 4, {0: 2.0, 1: 4.0, 2: 3.0, 3: 8.0})
    assert compare(a, b) == Ratio(0.5, 0.5, 0.625, 4)


def test_a_table_by_column_adds_its_words() -> None:
    rows = next(c for c in table() if c.name == ROWS)
    assert rows.words_on([(8, 8), (8,)]) == 5
    assert rows.words_on([(90, 10), (90, 10, 1)]) == 6


def test_contenders_change_parameters_but_not_shared_gradients() -> None:
    gradients = SMALL.gradients()
    for c in contenders():
        instance = c.build(SMALL.params(gradients))
        instance.step()
        assert all((p != 1).any() for p in instance.params), c.name
        assert all(torch.equal(g, h) for g, h in zip(gradients, SMALL.gradients(), strict=True)), c.name


@pytest.mark.skipif(native.kernel() is None, reason=f"needs the C kernel: {native.why_missing()}")
def test_the_plain_update_is_sgd_with_momentum() -> None:
    gradients = SMALL.gradients()
    built = {c.name: c.build(SMALL.params(gradients)) for c in table() if c.name in (SGD, PLAIN)}
    for _ in range(3):
        for instance in built.values():
            instance.step()
    torch.testing.assert_close(built[PLAIN].params, built[SGD].params)


@pytest.mark.skipif(native.kernel() is None, reason=f"needs the C kernel: {native.why_missing()}")
def test_acmo_is_compared_with_itself_on_two_sets_and_dtypes() -> None:
    times = acmo_on({"float32": SMALL, "bfloat16": SMALL, "10k": SETS["10k"]}, 3)
    assert times is not None
    assert {name: t.steps for name, t in times.items()} == {"float32": 3, "bfloat16": 3, "10k": 3}


def test_batches_fit_the_limit_and_hold_the_anchors_each() -> None:
    chosen, n = table(), 124_439_808
    batches = plan(chosen, n, 16e9)
    assert len(batches) > 1
    anchors = {*ANCHORS}
    assert all(anchors <= {c.name for c in batch} for batch in batches)
    assert sorted(c.name for b in batches for c in b if c.name not in anchors) == sorted(
        {c.name for c in chosen} - anchors
    )
    assert all(4 * n * (1 + sum(1 + c.moments for c in batch)) < 16e9 for batch in batches)
    assert {FUSED, CLIPPED, ADAMW_CLIPPED, ROWS, ROWS_INT8} <= {c.name for c in batches[0]}  # the targets compare them


@pytest.mark.slow
def test_set_in_batches_compares_each_row_with_its_own_batch() -> None:
    chosen = contenders()
    result = measure_set(SMALL, chosen, 2, limit=0.0)
    assert result.batches == len([c for c in chosen if c.name not in ANCHORS])
    assert [row.name for row in result.rows].count(SGD) == 1
    assert {row.name for row in result.rows} == {c.name for c in chosen}
    for row in result.rows:
        times = result.times[row.batch]
        assert row.to_sgd == compare(times[row.name], times[SGD]).value
        assert row.to_adamw == compare(times[row.name], times[ADAMW]).value


def test_every_round_has_every_step_and_slow_ones_fewer() -> None:
    counts = {"a": 0, "b": 0, "slow": 0}

    def step(name: str) -> None:
        counts[name] += 1
        torch.linspace(0, 1, 2_000_000 if name == "slow" else 10).sin().sum()

    times = interleave({name: lambda name=name: step(name) for name in counts}, 20)  # type: ignore[misc]
    assert (times["a"].steps, times["b"].steps) == (20, 20)
    assert times["slow"].steps == 5
    assert {name: n - 3 for name, n in counts.items()} == {name: t.steps for name, t in times.items()}  # 3: warm-up


def test_peak_memory_counts_what_lives_at_one_time() -> None:
    def step() -> None:
        for _ in range(3):
            a = torch.zeros(1000)
            b = a + 1
            del a, b

    assert 8000 <= peak_extra(step) < 12000


def test_an_unknown_set_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "acmo.bench", "--sets", "resnet51"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 2
    assert "got 'resnet51'" in out.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_bench_without_a_gpu_is_refused(capsys):
    from acmo.bench.__main__ import main

    assert main(["--device", "cuda", "--quick"]) == 2
    assert "is_available() is False" in capsys.readouterr().err


def test_spectral_bench_reports_muon_state_and_operations(monkeypatch, capsys):
    from acmo.bench.__main__ import main

    tiny = ParameterSet("tiny", "a tiny net", ((12, 20), (90, 10), (7,)), large=False)
    monkeypatch.setitem(SETS, "tiny", tiny)
    assert main(["--spectral", "--sets", "tiny", "--tokens", "16", "--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a tiny net: 1 spectral matrices; forward and backward of the matrices for 16 tokens")
    rows = {cells[1]: cells[2:-1] for cells in ([c.strip() for c in line.split("|")] for line in lines[4:-2])}
    names = ["SpectralACMo", "SpectralACMo, bfloat16 products", "SpectralACMo, int8 moments", "RowACMo"]
    assert list(rows) == (["Muon + AdamW fused"] if hasattr(torch.optim, "Muon") else []) + names
    assert all(float(row[0]) >= 0 for row in rows.values())
    assert 4 <= float(rows["SpectralACMo"][-1]) < 4.1  # on top: counters of 3 tensors
    assert float(rows["SpectralACMo, int8 moments"][-1]) < 1.5  # on top: scales of rows
    ratio = 5 * (4 * 12 * 12 * 20 + 2 * 12**3) / (6 * 16 * 12 * 20)
    assert f"orthogonalising adds {ratio:.3f} of forward and backward" in lines[-1]
