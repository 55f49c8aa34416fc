"""Translation by the lab: runs that go on, ranks that agree, sentences that are kept, presets, downloads."""

import http.server
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.paths import SUPPORT

pytest.importorskip("transformers", reason="the extra translation is not installed")
pytest.importorskip("sacrebleu", reason="the extra translation is not installed")

from acmo.lab.config.grids import grid_of
from acmo.lab.config.plan import PAPER, make_plan
from acmo.lab.config.preset_files import presets, read_toml
from acmo.lab.config.run_options import RunConfig, run_config
from acmo.lab.errors import LabError
from acmo.lab.results.metrics_file import read_metrics
from acmo.lab.results.run_files import read_outcome
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import run
from acmo.lab.tasks import find_task
from acmo.lab.tasks.translation import sources
from acmo.rivals.registry import LR
from tests.support.lab_translation import REAL, corpus, sentences, write
from tests.support.ranks import run_ranks

TASKS = SUPPORT / "lab_translation.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Path:
    """With targets of many lengths in one batch: parts of it have not as many target tokens."""
    folder, draw = corpus(tmp_path_factory.mktemp("uneven")), random.Random(0)
    cut = [(source, target[: int(len(target) * draw.uniform(0.7, 1))]) for source, target in sentences(200, seed=1)]
    write(folder, "train", cut, gz=True)
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ACMO_DATA", str(tmp_path_factory.getbasetemp() / "cache"))


def config(data: Path, task: str = "Toy", **values) -> RunConfig:
    values = {"optimizer": "adam", "settings": {"lr": 3e-3}, "keep_checkpoints": True, **values}
    return run_config(task=f"{TASKS}:{task}", data=data, **values)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoints.load(checkpoints.found(folder / "checkpoints")[-1].read_bytes())["model"]


def rows(folder: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(folder).rows]


def test_run_stopped_within_an_epoch_resumes_with_the_same_bits(tmp_path, data):
    what = config(data, phase="final", checkpoint_every="5it", log_every=1)
    whole = run(what, tmp_path / "whole")
    per_epoch = len(find_task(what.task, data).batches(0))
    for stop in (7, 13):
        assert (stop - stop % 5) % per_epoch  # it goes on from within an epoch

        def cut(progress, stop=stop):
            if progress.step >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(what, tmp_path / "cut", cut)
        assert read_outcome(tmp_path / "cut", None) is None
    result = run(what, tmp_path / "cut")
    assert (result.test, result.valid) == (whole.test, whole.valid)
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")


def _in_a_rank(text: str, folder: str) -> float:
    return run(RunConfig.model_validate_json(text), Path(folder)).valid["loss"]


@pytest.mark.parametrize(
    ("world", "accumulate"), [(1, 4), *(pytest.param(ranks, 1, marks=pytest.mark.slow) for ranks in (2, 4))]
)
def test_ranks_and_parts_equal_one_rank_with_the_global_batch(tmp_path, uneven, world, accumulate):
    """The loss is divided by the global number of target tokens, however they are spread."""
    data, parts = uneven, world * accumulate
    task = find_task(f"{TASKS}:Dry", data)
    counts = [{len(task.collate(one[k::parts], 0)["labels"]) for k in range(parts)} for one in task.batches(0)[:10]]
    assert sum(len(count) > 1 for count in counts) > 5  # or a mean of the parts' means would be right as well
    # Steps without Adam's division, which makes much of what is nearly nothing.
    one = config(data, "Dry", optimizer="sgd-momentum", settings={"lr": 0.3}, log_every=1)
    many = config(data, "Dry", optimizer="sgd-momentum", settings={"lr": 0.3}, log_every=1, accumulate=accumulate)
    run(one, tmp_path / "one")
    if world > 1:
        told = run_ranks(world, _in_a_rank, many.model_dump_json(), str(tmp_path / "many"))
        assert len(set(told)) == 1
    else:
        run(many, tmp_path / "many")
    a, b = weights(tmp_path / "one"), weights(tmp_path / "many")
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-5)
    losses = [[row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("one", "many")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    start = config(data, "Dry", steps=1, optimizer="sgd-momentum", settings={"lr": 0.0})
    run(start, tmp_path / "start")
    moved = max(float((a[key] - value).abs().max()) for key, value in weights(tmp_path / "start").items())
    assert moved > 1e-3  # or all of this would say nothing


def test_a_hundred_pairs_are_learnt_by_heart(tmp_path, monkeypatch):
    pairs = sentences(100, seed=5)
    for name in ("train", "val", "test_2016_flickr"):
        write(tmp_path / "data", name, pairs)
    result = run(config(tmp_path / "data", "Memory", settings={"lr": 4e-3}, schedule="warmup:20it+linear"), tmp_path)
    assert result.valid["bleu"] > 90
    assert result.valid["decoding"] == "beam 4"


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "multi30k").is_dir(), reason="no folder with the files of multi30k")
def test_a_hundred_pairs_of_multi30k_are_learnt_by_heart(tmp_path):
    from acmo.lab.tasks.translation.corpus import held_out

    everything = held_out(find_task("multi30k-ende", REAL / "multi30k").texts("valid")[0])
    pairs = [pair for pair in everything if max(map(len, pair)) < 60][:100]  # letters: they fit into 64 tokens
    for name in ("train", "val", "test_2016_flickr"):
        write(tmp_path / "data", name, pairs)
    what = config(tmp_path / "data", "Memory", settings={"lr": 3e-3}, schedule="warmup:20it+linear", steps=300)
    result = run(what, tmp_path)
    assert result.valid["bleu"] > 90
    assert json.loads((tmp_path / "config.json").read_text())["data"]["pairs"]["kept"] == 100


def test_evaluation_has_the_papers_metrics_and_sample_sentences(tmp_path, data):
    result = run(config(data, phase="final"), tmp_path)
    valid = [row for row in rows(tmp_path) if row["kind"] == "valid"]
    assert [row["step"] for row in valid] == [8, 16, 24]
    for row in valid:
        assert {"loss", "loss_per_sentence", "bleu", "bleu_signature"} <= set(row)
        assert row["loss_per_sentence"] > row["loss"]
    assert valid[-1]["loss"] < valid[0]["loss"]
    assert (valid[0]["decoding"], result.test["decoding"]) == ("greedy", "beam 4")
    assert (valid[0]["translated"], result.test["translated"]) == (20, 20)
    samples = [row for row in rows(tmp_path) if row["kind"] == "sample" and row["step"] == 8]
    assert len(samples) == 4
    assert all((row["source"], row["reference"]) in sentences(20, seed=2) for row in samples)
    assert all(isinstance(row["output"], str) for row in samples)
    stored = json.loads((tmp_path / "config.json").read_text())["data"]
    assert stored["pairs"]["read"] == 200
    assert stored["vocabulary"] == 320
    other = find_task(f"{TASKS}:Toy", corpus(tmp_path / "other", train=199)).facts()
    assert len(stored["hash"]) == 16
    assert stored["hash"] != other["hash"]  # what it learnt from can be told apart


def test_loss_per_sentence_is_per_token_times_the_mean_length(data):
    task = find_task(f"{TASKS}:Dry", data)
    model = task.model().eval()
    with torch.no_grad():
        found = task.evaluate(model, "valid")
    tokens = sum(map(len, task._valid.target))
    assert found["loss_per_sentence"] == pytest.approx(found["loss"] * tokens / 20)
    assert found["loss"] == pytest.approx(torch.tensor(320.0).log().item(), rel=0.5)


def test_held_out_sentence_longer_than_the_net_is_cut(tmp_path):
    folder = corpus(tmp_path / "data")
    write(folder, "val", [*sentences(5), ("word " * 10_000, "Wort " * 10_000)])
    task = find_task(f"{TASKS}:Toy", folder)
    task.prepare()
    assert task.facts()["valid_cut"] == 1
    with torch.no_grad():
        assert task.evaluate(task.model().eval(), "valid")["translated"] == 6


def test_training_pairs_longer_than_the_net_are_left_out(tmp_path):
    folder = corpus(tmp_path / "data")
    write(folder, "train", [*sentences(50), ("word " * 200, "Wort " * 200)], gz=True)
    result = run(config(folder, steps=2), tmp_path / "run")
    assert result.status == "finished"
    counts = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["pairs"]
    assert (counts["read"], counts["too_long"]) == (51, 1)


def test_sizes_are_the_papers_and_such_as_run_here():
    paper = find_task("wmt14-ende:paper")
    assert (paper.preset.vocabulary, paper.recipe.steps, paper.recipe.batch_size) == (37_000, 300_000, 4 * 4096)
    assert paper.recipe.schedule.text == "constant"
    assert paper.recipe.max_grad_norm is not None
    assert find_task("multi30k-ende").size == "tiny"
    assert find_task("wmt14-ende").size == "small"
    assert find_task("multi30k-ende:small").score.metric == "bleu"


def test_the_papers_preset_sets_the_betas_of_the_adam_family():
    plan = make_plan(read_toml(presets()["paper/wmt14-ende"]))
    assert plan.tasks == ["wmt14-ende:paper"]
    grids = {c.label: grid_of(plan, c) for c in plan.contenders()}
    assert all(grid["lr"] == list(LR["lr"]) for grid in grids.values())
    with_betas = {label for label, grid in grids.items() if grid.get("betas") == [[0.9, 0.98]]}
    assert with_betas == {"adam", "amsgrad", "adamw", "padam", "adabound"}
    assert "betas" not in grids["acmo"] | grids["sgd-momentum"]
    assert plan.accumulate == 4


@pytest.mark.parametrize("name", ["multi30k-ende-tiny", "multi30k-ende-small", "wmt14-ende-small"])
def test_small_presets_are_of_their_task_and_of_all_seven(name):
    plan = make_plan(read_toml(presets()[name]))
    assert plan.tasks == [":".join(name.rsplit("-", 1))]
    assert {c.label: len(grid_of(plan, c)["lr"]) for c in plan.contenders()} == dict.fromkeys(PAPER, 3)


def archive(folder: Path, name: str, files: dict[str, bytes]) -> None:
    with tarfile.open(folder / name, "w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_archives_are_downloaded_checked_and_read(tmp_path, monkeypatch):
    import hashlib

    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    served = tmp_path / "served"
    served.mkdir()
    files = {f"training/europarl-v7.de-en.{code}": b"one\ntwo\n" for code in ("en", "de")}
    others = {"training/europarl-v7.fr-en.en": b"x", "training/._europarl-v7.de-en.en": b"y"}
    archive(served, "europarl.tgz", files | others)
    checksum = "sha256:" + hashlib.sha256((served / "europarl.tgz").read_bytes()).hexdigest()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/europarl.tgz"
        one = sources.Archive(url, checksum, ("europarl-v7.de-en",), "wmt14-europarl-v7")
        (text,) = sources.downloaded((one,), ("en", "de"))
        assert [pair.source for pair in text.pairs()] == ["one", "two"]
        assert sorted(path.name for path in text.source.parent.iterdir()) == [
            "europarl-v7.de-en.de",
            "europarl-v7.de-en.en",
        ]
        wrong = one._replace(checksum="sha256:" + "0" * 64, folder="other")
        with pytest.raises(LabError, match="damaged or another file: its sha256 is not 0000"):
            sources.downloaded((wrong,), ("en", "de"))
        server.shutdown()
    assert sources.downloaded((one,), ("en", "de"))[0] == text  # without the server


def test_files_are_downloaded_checked_and_read(tmp_path, monkeypatch):
    import hashlib

    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    write(tmp_path / "served", "val", sentences(5), gz=True)
    checksums = {
        code: "md5:" + hashlib.md5((tmp_path / "served" / f"val.{code}.gz").read_bytes()).hexdigest()
        for code in ("en", "de")
    }
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        one = sources.Files(f"http://127.0.0.1:{server.server_port}/val", checksums)
        (text,) = sources.downloaded((one,), ("en", "de"))
        with pytest.raises(LabError, match="its md5 is not 0000"):
            sources.downloaded((one._replace(checksums={"en": "md5:" + "0" * 32}),), ("en", "de"))
        server.shutdown()
    assert list(text.pairs()) == sentences(5)


def dry_run(*args: str) -> str:
    command = [sys.executable, "-m", "acmo", "compare", "multi30k-ende:tiny", "--dry-run", *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout


@pytest.mark.slow
def test_a_task_named_alone_takes_the_preset_that_ships_for_it():
    assert "multi30k-ende:tiny: 28 runs of 400 steps" in dry_run()  # 7 x 3 learning rates, and a seed each
    assert "multi30k-ende:tiny: 8 runs of 9 steps" in dry_run("--optimizers", "acmo,sgd", "--steps", "9")
