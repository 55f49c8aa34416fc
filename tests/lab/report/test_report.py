"""The report: what its sentences, plots and figures say; in a real browser, see test_lab_report_browser.py."""

import doctest
import html
import re
import sys

import pytest

from acmo.lab.cli import main
from acmo.lab.errors import LabError
from acmo.lab.redaction import redact
from acmo.lab.report import angles, paper, sentences, speed, tuning, write
from acmo.lab.report import paper_figures as figures
from acmo.lab.report.curves import band
from acmo.lab.report.evidence import gather
from acmo.lab.report.paper import original
from tests.support.lab_folders import write_comparison


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("small"), seeds=5)


def text_of(page: str) -> str:
    """What a reader sees, roughly: no scripts, no styles, no tags."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def page_of(folder) -> str:
    return write(folder).read_text(encoding="utf-8")


# What is computed


def test_band_is_the_mean_and_range_of_the_runs_at_each_step():
    def run(*losses):
        return [{"step": 10 * i, "epoch": i, "seconds": i / 2, "loss": v} for i, v in enumerate(losses, start=1)]

    assert band([run(1.0, 3.0), run(2.0, 5.0, 7.0)], "loss", 10) == {
        "step": [10, 20, 30], "epoch": [1, 2, 3], "seconds": [0.5, 1, 1.5],
        "mean": [15, 40, 70], "low": [10, 30, 70], "high": [20, 50, 70], "n": 2,
    }  # fmt: skip
    assert band([run(1.0, None, float("inf"))], "loss")["step"] == [10]
    assert band([run(None)], "loss") is None
    assert band([run(1.0, 2.0, 3.0, 5.0)], "loss", points=2)["mean"] == [1.5, 4]


def test_rate_where_all_runs_diverged_has_no_score(small):
    task = gather(small).tasks[0]
    by = {s["label"]: s for s in tuning.sensitivity(task["contestants"], "accuracy", "max")}
    assert by["adam"]["lr"] == [0.001, 0.01, 0.1]
    assert by["adam"]["score"][2] is None
    assert by["acmo"]["score"][1] == max(by["acmo"]["score"])
    near = {"label": "x", "lr": [1, 2, 3, 4], "score": [98.0, 97.0, 96.9, None]}
    assert tuning.near_best(near, "accuracy", "max") == 2
    assert "1 of 9 tuning runs diverged" in sentences.tuned(task, [], [])


def test_profile_counts_tasks_within_a_factor_of_the_fastest():
    class Told:
        def __init__(self, label, cost):
            self.label, self.row = label, {"to_target": {"steps": cost, "seconds": cost}}

    tasks = [{"target": {"score": 1.0}, "contestants": [Told("a", 10.0), Told("b", a)]} for a in (20.0, 5.0, None)]
    a, b = speed.profile(tasks)["step"]
    assert (a["tau"], a["share"]) == ([1, 1, 1, 2, 2.2], [2 / 3, 2 / 3, 2 / 3, 1, 1])
    assert (b["tau"], b["share"]) == ([1, 1, 2, 2.2], [1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert speed.profile(tasks[:1]) == {}


def test_sentences_follow_the_data(small, tmp_path):
    first = sentences.verdict(gather(small).tasks[0])
    assert re.search(r"highest mean test accuracy of 3 optimizers is 8\d\.\d\d % \[.*\], by ACMo over 5 seeds", first)
    assert "Against SGD-momentum, ACMo is better and Adam is worse." in first
    other = write_comparison(tmp_path, optimizers=["sgd-momentum", "acmo"], seeds=5)
    second = sentences.verdict(gather(other).tasks[0])
    assert "by SGD-momentum over 5 seeds" in second
    assert "Against SGD-momentum, ACMo is worse." in second


def test_bands_of_many_curves_are_off_and_a_sentence_says_so(small, tmp_path):
    assert "Bands are off" not in text_of(page_of(small))
    assert re.search(r'id="bands" checked', page_of(small))
    many = write_comparison(tmp_path, optimizers=["acmo", "sgd-momentum", "adam", "adamw", "padam"], seeds=2)
    page = page_of(many)
    assert "Bands are off, since 5 of them would cover each other: the switch above shows them." in text_of(page)
    assert not re.search(r'id="bands" checked', page)


@pytest.mark.parametrize(("beta", "lengthened"), [(0.5, False), (12.0, True)])
def test_sentence_about_beta_hat_fits_its_size(small, beta, lengthened):
    contestant = gather(small).tasks[0]["contestants"][0]
    for line in (line for lines in contestant.lines for line in lines["train"]):
        line["beta_hat"] = beta
    text = sentences.angle(contestant)
    assert f"β̂ has median {beta:g}" in text
    assert ("is shorter than the gradient and is lengthened" in text) == lengthened
    titles = [plot["title"] for plot in angles.telemetry([contestant])]
    assert "β̂ = β‖g‖/‖m‖: the factor on the moment" in titles


def test_clip_panel_is_there_only_if_something_was_clipped(small):
    contestant = gather(small).tasks[0]["contestants"][0]
    assert "clip_scale" not in [plot["key"] for plot in angles.telemetry([contestant])]
    contestant.lines[0]["train"][3]["clip_scale"] = 0.5
    assert "clip_scale" in [plot["key"] for plot in angles.telemetry([contestant])]


def test_no_difference_is_claimed_where_the_interval_covers_zero(small):
    task = gather(small).tasks[0]
    for row in task["rows"]:
        for difference in row["differences"].values():
            difference["verdict"] = "no difference shown"
    text = sentences.verdict(task)
    assert "Against Adam, no difference is shown for any of the 2 others." in text
    assert "better" not in text


def test_papers_values_appear_beside_its_experiments_only():
    assert original({"protocol": "tuned-wd"}, "cifar10:paper/resnet50").finals["adabound"] == 95.3
    assert original({"protocol": "fixed-wd"}, "cifar100:paper/vgg16").figure == 2
    assert original({"protocol": "default-wd"}, "wmt14-ende:paper").finals["sgd-momentum"] == 25.0
    assert original({"protocol": "fixed-wd"}, "cifar10:paper/vgg16") is None
    assert original({"protocol": "tuned-wd", "epochs": 2}, "cifar10:paper/vgg16") is None
    assert original({"protocol": "tuned-wd"}, "cifar10:tiny/resnet20") is None


def test_the_example_of_the_paper_s_values_holds():
    assert doctest.testmod(paper) == (0, 2)


def test_figures_are_in_the_paper_s_layout_with_its_values(tmp_path):
    nets = [f"cifar10:paper/{net}" for net in ("vgg16", "resnet50", "densenet121")]
    folders = [write_comparison(tmp_path / str(i), tasks=[net], protocol="tuned-wd") for i, net in enumerate(nets)]
    evidences = [gather(folder) for folder in folders]
    written = figures.draw(evidences, tmp_path / "out")
    assert [path.name for path in written] == ["figure-3.svg", "figure-3.pdf", "figure-3.png"]
    heads = [path.read_bytes()[:5] for path in written]
    assert heads == [b"<?xml", b"%PDF-", b"\x89PNG\r"]
    columns = [figures.Column(e.tasks[0], "tuned-wd", original(e.found.plan, e.tasks[0]["task"])) for e in evidences]
    drawn = figures._figure(columns)
    assert [axes.get_ylabel() for axes in drawn.axes[:6]] == ["Training loss", "Validation accuracy in %"] * 3
    table = drawn.axes[6].tables[0]
    cells = [[table[row, column].get_text().get_text() for column in range(7)] for row in range(4)]
    assert [cells[1][0], *cells[1][2::2]] == ["ACMo", "94.0 %", "94.8 %", "95.2 %"]
    assert re.fullmatch(r"8\d\.\d\d % \[.*\]", cells[1][1])


def test_a_figure_of_translation_has_dev_loss_and_bleu_in_a_row(tmp_path):
    evidence = gather(write_comparison(tmp_path, tasks=["multi30k-ende:tiny"], metric="bleu"))
    assert next(p.name for p in figures.draw([evidence], tmp_path / "f")) == "curves-multi30k-ende-default-wd.svg"
    drawn = figures._figure([figures.Column(evidence.tasks[0], "", None)])
    assert [axes.get_ylabel() for axes in drawn.axes[:2]] == ["Dev loss per sentence", "Validation BLEU"]


def test_figures_of_nothing_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(LabError, match="nothing to draw"):
        figures.draw([gather(tmp_path)], tmp_path / "f")


# The page


def test_every_section_has_a_sentence_and_links_resolve(small):
    page = page_of(small)
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "Verdict", "Learning curves", "How much tuning it needs", "Speed", "Angles", "Every run"
    ]  # fmt: skip
    for section in re.findall(r"<section.*?</section>", page, flags=re.S):
        assert re.search(r'<p class="lead">\s*[A-Z0-9].{20,}\.</p>', section, flags=re.S), section[:200]
    links = re.findall(r'<a href="(\./[^"]*)"', page)
    assert len(links) == len(list(small.glob("runs/*/*/*")))
    assert all((small / link).is_dir() for link in links)
    for fact in (
        "c0ffee",
        "Testium",
        "torch 2.13.0",
        "acmo compare digits",
        "the loss was nan",
        "1 of 3 settings diverged",
    ):
        assert fact in text_of(page), fact


def test_translation_brings_curves_and_sentences(tmp_path):
    folder = write_comparison(tmp_path, tasks=["multi30k-ende:tiny"], metric="bleu")
    text = text_of(page_of(folder))
    assert "Validation BLEU" in text
    assert "Validation loss" in text
    assert "source a dog reference ein Hund" in text
    assert "BLEU is sacrebleu's, nrefs:1|tok:13a, in the validation of 1,014 sentences (greedy)." in text
    assert "ACMo acmo 10" in text
    assert "Sentences" not in text_of(page_of(write_comparison(tmp_path / "images")))


def test_a_folder_with_nothing_in_it_gives_a_page_that_says_so(tmp_path):
    assert "There is no run in this folder yet." in text_of(page_of(tmp_path))


def test_comparison_without_finished_runs_gives_a_page(tmp_path):
    folder = write_comparison(tmp_path)
    for path in folder.rglob("result.json"):
        path.unlink()
    text = text_of(page_of(folder))
    assert "No run is finished yet: 15 runs under way or stopped." in text
    assert "No test score yet on digits" in text


def test_half_written_files_are_left_out_and_reported(tmp_path):
    folder = write_comparison(tmp_path)
    shown, tuned, damaged, lost = (sorted(folder.glob(f"runs/*/{name}/*")) for name in ("acmo", "adam", "adam", "acmo"))
    for run in (shown[-1], tuned[0]):
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "valid", "step": 2')
    (damaged[1] / "result.json").write_text('{"status": "fin')
    (lost[0] / "config.json").write_text('{"con')
    (folder / "summary.json").write_text('{"tasks": [')
    text = text_of(page_of(folder))
    assert "2 files of metrics have a half-written line, which is left out: runs/digits/acmo/" in text
    assert "1 of 14 runs is not finished." in text
    assert re.search(
        r"What cannot be read is left out: summary.json, runs/digits/acmo/\S+config.json, runs/\S+result.json", text
    )
    alone = tmp_path / "alone"
    (alone / "runs" / "digits" / "acmo" / "1").mkdir(parents=True)
    (alone / "runs" / "digits" / "acmo" / "1" / "metrics.jsonl").write_text("{")
    assert "There is no run in this folder yet." in text_of(page_of(alone))


def test_runs_without_a_comparison_are_shown_without_statistics(tmp_path):
    folder = write_comparison(tmp_path)
    (folder / "comparison.json").unlink()
    text = text_of(page_of(folder))
    assert "15 runs: 14 finished and 1 diverged" in text
    assert "Learning curves" in text


def test_neither_passwords_nor_home_folders_are_in_the_page(tmp_path):
    command = [
        "/home/ann/.venv/bin/acmo",
        "compare",
        "--storage",
        "postgresql://ann:hunter2@db/x",
        "--data",
        "/Users/bob/data",
    ]
    mine = {"label": "mine", "optimizer": "/home/carla/own.py:Mine", "grid": {"lr": [0.01]}}
    folder = write_comparison(tmp_path, command=command, contenders=[mine], data="/root/data")
    page = page_of(folder)
    for secret in ("hunter2", "/home/", "/Users/", "/root", "ann/", "bob", "carla"):
        assert secret not in page.replace(get_plotly(), ""), secret
    assert "acmo compare --storage postgresql://ann:***@db/x --data ~/data" in text_of(page)
    assert redact("x=/home/ann") == "x=~"
    assert redact("/rooted/home") == "/rooted/home"


def get_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def test_the_command_writes_page_and_figures(tmp_path, monkeypatch, capsys):
    folder = write_comparison(tmp_path / "runs")
    monkeypatch.setattr(sys, "argv", ["acmo", "report", str(folder), "--figures", str(tmp_path / "figures")])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr().out
    assert not end.value.code
    assert (folder / "report.html").stat().st_size > 1e6
    assert str(tmp_path / "figures" / "curves-digits-default-wd.pdf") in out.replace("\n", "")


def test_power_beyond_the_whole_range_is_called_too_few_seeds():
    task = {"metric": "accuracy", "seeds": [1, 2], "detectable": 2.8556}
    assert sentences.power(task) == "2 seeds are too few to show any difference."
    assert "a true difference of 1.00 points" in sentences.power({**task, "detectable": 0.01})
