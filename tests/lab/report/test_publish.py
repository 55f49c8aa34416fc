"""A comparison as a folder to publish: to be checked from what is in it; what is not finished is not published."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from acmo.lab.cli import main
from acmo.lab.cli.report_command import sum_up
from acmo.lab.errors import LabError
from acmo.lab.report import paper_figures as figures
from acmo.lab.report.evidence import gather
from acmo.lab.report.publish import difference, overview, page, publish, recomputed, verdict
from acmo.lab.results.comparison_folder import load, read_lines
from tests.support.lab_folders import write_comparison, write_run

FILES = {"comparison.json", "trials.jsonl", "summary.json", "summary.csv", "README.md"}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A comparison on two tasks, and what was published of it."""
    folder = write_comparison(
        tmp_path_factory.mktemp("c"), tasks=("digits", "cifar10:tiny"), seeds=5, title="Two tasks"
    )
    sum_up(folder)
    target = tmp_path_factory.mktemp("p") / "two"
    return folder, target, publish(folder, target)


def test_all_that_is_named_is_written_and_nothing_else(published):
    _, target, written = published
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in written)
    stems = ("curves-digits-default-wd", "curves-cifar10-default-wd", "rates-digits", "rates-cifar10-tiny")
    drawn = {f"{stem}.{form}" for stem in stems for form in ("svg", "png")}
    assert {path.name for path in written} == FILES | drawn


def test_summary_follows_from_the_published_runs_alone(published):
    folder, target, _ = published
    summary = json.loads((target / "summary.json").read_text())
    assert summary == json.loads((folder / "summary.json").read_text())
    assert json.loads(json.dumps(recomputed(target))) == summary
    assert summary["tasks"][0]["rows"][0]["to_target"]["steps"] is not None  # the curves have come along
    assert not any("folder" in row for row in read_lines(target / "trials.jsonl"))


def test_the_page_is_the_same_whoever_lists_the_figures(published):
    _, target, written = published
    text = (target / "README.md").read_text()
    assert page(target, sorted(target.glob("*.svg"))) == text
    assert page(target, list(reversed(written))) == text
    assert re.findall(r"!\[.*?\]\((.*?)\)", text) == sorted(path.name for path in target.glob("*.svg"))
    assert text.startswith("# Two tasks\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## digits", "## cifar10:tiny"]


def test_the_table_says_what_the_summary_says(published):
    _, target, _ = published
    task = json.loads((target / "summary.json").read_text())["tasks"][0]
    lines = verdict(task)
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[:5]] == [8] * 5
    first = lines[2].split(" | ")
    best = task["rows"][0]
    assert first[0] == "| ACMo"
    assert first[1].startswith(f"{100 * best['test']['mean']:.2f} % [{100 * best['test']['low']:.2f}, ")
    assert first[2].startswith("**+")
    assert "Mean and 95 % interval over 5 seeds, differences paired by seed." in lines[-3]
    assert lines[-1].startswith("With 5 seeds, a true difference of ")


@pytest.mark.slow
def test_published_folder_can_be_reported_and_published_again(published, tmp_path):
    _, target, _ = published
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("comparison.json", "trials.jsonl"):
        (copy / name).write_bytes((target / name).read_bytes())
    sum_up(copy)
    assert (copy / "report.html").exists()
    publish(copy, tmp_path / "again")
    assert (tmp_path / "again" / "summary.json").read_bytes() == (target / "summary.json").read_bytes()


@pytest.mark.parametrize("lack", ["a result", "a tuning run", "a seed", "all seeds", "a comparison"])
def test_what_is_not_finished_is_not_published(tmp_path, lack):
    folder = write_comparison(tmp_path / "c", seeds=5)
    seeds = {run.seed: folder / run.folder for run in load(folder).runs if run.label == "acmo"}
    if lack == "a result":
        (seeds[3] / "result.json").unlink()
    elif lack == "a comparison":
        (folder / "comparison.json").unlink()
    else:
        gone = {"a tuning run": ["tune"], "a seed": [5], "all seeds": [1, 2, 3, 4, 5]}[lack]
        runs = [r for r in load(folder).runs if r.label == "acmo"]
        for run in runs:
            if run.seed in gone or (gone == ["tune"] and run.role == "tune" and run.settings["lr"] == 0.1):
                for path in (folder / run.folder).iterdir():
                    path.unlink()
    sum_up(folder)
    with pytest.raises(
        LabError, match="holds no comparison" if lack == "a comparison" else r"not finished \(\d runs? m"
    ):
        publish(folder, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_diverged_seed_is_a_finished_one(tmp_path):
    folder = write_comparison(tmp_path / "c", seeds=5)
    run = next(r for r in load(folder).runs if r.label == "acmo" and r.seed == 2)
    result = json.loads((folder / run.folder / "result.json").read_text())
    result |= {"status": "diverged", "test": None, "reason": "nan"}
    (folder / run.folder / "result.json").write_text(json.dumps(result))
    sum_up(folder)
    publish(folder, tmp_path / "p")
    rows = {r["label"]: r for r in json.loads((tmp_path / "p" / "summary.json").read_text())["tasks"][0]["rows"]}
    assert rows["acmo"]["diverged"]["final"] == 1
    assert rows["acmo"]["rank"] == 3


def test_names_are_text_and_secrets_are_none(tmp_path):
    name = "<script>alert(1)</script> | **x**\n# y"
    evil = {"label": name, "optimizer": "/home/carla/own.py:Mine", "grid": {"lr": [0.1, 0.01, 0.001]}}
    command = ["/opt/ann/bin/acmo", "compare", "--storage", "postgresql://ann:hunter2@db/x", "--data", "/Users/bob/d"]
    folder = write_comparison(tmp_path / "c", contenders=[evil], command=command, title="<b>t</b>", data="/root/data")
    sum_up(folder)
    publish(folder, tmp_path / "p")
    text = (tmp_path / "p" / "README.md").read_text()
    assert "<script>" not in text
    assert "# &lt;b&gt;t&lt;/b&gt;" in text
    assert "\n# y" not in text
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in text.splitlines() if line.startswith("| "))
    for path in (tmp_path / "p").iterdir():
        content = path.read_bytes()
        for secret in (b"hunter2", b"/opt/ann", b"/home/", b"/Users/", b"/root", b"carla"):
            assert secret not in content, (path.name, secret)


@pytest.mark.parametrize("given", [["--data", "../my/data"], ["--data=../my/data"]])
def test_the_folder_of_the_data_is_not_published(tmp_path, given):
    command = ["acmo", "compare", "digits", *given]
    folder = write_comparison(tmp_path / "c", command=command, data="../my/data")
    sum_up(folder)
    publish(folder, tmp_path / "p")
    text = (tmp_path / "p" / "README.md").read_text()
    assert " ".join(["acmo compare digits", *given]).replace("../my/data", "DIR") in text
    assert "`DIR` is a folder with the official files" in text
    assert not [path for path in (tmp_path / "p").iterdir() if b"my/data" in path.read_bytes()]


def test_page_names_the_data_of_every_task(tmp_path):
    folder = write_comparison(
        tmp_path / "c", tasks=("digits", "cifar10:tiny"), command=["acmo", "compare", "--data", "x"], data="x"
    )
    head = json.loads((folder / "comparison.json").read_text())
    files = [{"name": "a.bin", "bytes": 3, "sha256": "00"}]
    head["data"] = {
        "digits": {"fingerprint": "36c296271d365402", "files": files},
        "cifar10:tiny": {"fingerprint": "db3b516614329ca7", "files": files, "subset": "10,000 of 50,000 train images"},
    }
    (folder / "comparison.json").write_text(json.dumps(head))
    sum_up(folder)
    publish(folder, tmp_path / "p")
    assert json.loads((tmp_path / "p" / "comparison.json").read_text())["data"] == head["data"]
    first, second = (tmp_path / "p" / "README.md").read_text().split("## ")[1:]
    assert "Data: the official data; fingerprint `36c296271d365402`" in first
    assert "Data: 10,000 of 50,000 train images; fingerprint `db3b516614329ca7`" in second
    assert "`DIR` is a folder with the data, a part of the official one" in (tmp_path / "p" / "README.md").read_text()


def told(published: Path, tmp_path: Path, **provenance: Any) -> str:
    """The page of what was published, had its provenance been another."""
    copy = shutil.copytree(published, tmp_path / "copy", dirs_exist_ok=True)
    stored = json.loads((copy / "comparison.json").read_text())
    stored["provenance"] |= provenance
    (copy / "comparison.json").write_text(json.dumps(stored))
    return page(copy, [])


def test_head_of_a_shipped_preset_is_printed(published, tmp_path):
    for given in (["--preset", "evidence/digits"], ["--preset=evidence/digits.toml"]):
        text = told(published[1], tmp_path, command=["acmo", "compare", *given])
        assert "the six, the rest of the paper" in text
    assert "the six, the rest of the paper" not in told(published[1], tmp_path, command=["acmo", "compare", "digits"])


def test_a_core_is_claimed_only_where_there_was_no_gpu(published, tmp_path):
    assert "in all, pauses included, each on one core." in (published[1] / "README.md").read_text()
    assert "each on one core" not in told(published[1], tmp_path, machine={"gpus": ["H100"]})


@pytest.mark.slow
def test_overall_table_has_one_row_per_complete_optimizer(published, tmp_path):
    _, target, _ = published
    for name, optimizers, baselines in (
        ("a", ["acmo", "sgd-momentum", "adam"], ["adam"]),
        ("b", ["acmo", "adam"], ["adam"]),
    ):
        folder = write_comparison(tmp_path / "c" / name, optimizers=optimizers, baselines=baselines)
        sum_up(folder)
        publish(folder, tmp_path / "all" / name)
    lines = overview(tmp_path / "all")
    assert len(lines) == 3
    assert lines[2].startswith("| [a](a/README.md) | accuracy, % | ")
    assert " | – | " in lines[2]  # no difference to SGD-momentum was asked for
    assert len(overview(target.parent)) == 4


def test_a_difference_is_bold_where_it_is_one():
    shown = {"mean": 0.01, "low": 0.005, "high": 0.02, "n": 5, "verdict": "better"}
    assert difference(shown, "accuracy") == "**+1.00 [+0.50, +2.00]**"
    assert difference({**shown, "low": -0.005, "verdict": "no difference shown"}, "accuracy") == "+1.00 [−0.50, +2.00]"
    assert difference({**shown, "low": None, "high": None, "verdict": "no difference shown"}, "accuracy") == "+1.00"
    assert difference(None, "accuracy") == "–"


def test_the_command_publishes_one_comparison_at_a_time(tmp_path, monkeypatch, capsys):
    folder = write_comparison(tmp_path / "c")
    monkeypatch.setattr(sys, "argv", ["acmo", "report", str(folder), "--publish", str(tmp_path / "p")])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert str(tmp_path / "p" / "README.md") in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["acmo", "report", str(folder), str(folder), "--publish", str(tmp_path / "q")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "acmo: --publish takes one comparison at a time\n"


def test_rates_are_drawn_with_a_cross_where_all_diverged(tmp_path):
    evidence = gather(write_comparison(tmp_path, seeds=1))
    axes = figures._rates(evidence.tasks[0]).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert set(lines) == {"ACMo", "SGD-momentum", "Adam"}
    assert list(lines["Adam"].get_xdata()) == [0.001, 0.01]
    crosses = [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "x"]
    assert crosses == [[], [], [0.1]]
    one = gather(write_comparison(tmp_path / "one", rates=(0.01,)))
    assert figures.draw_rates([one], tmp_path / "f") == []


def test_more_than_ten_optimizers_have_lines_of_their_own():
    styles = [figures._style(i) for i in range(20)]
    assert len({(s["color"], s["linestyle"]) for s in styles}) == 20


def test_a_run_beside_the_comparison_is_not_published(tmp_path):
    folder = write_comparison(tmp_path / "c")
    stray = write_run(folder, "digits", "acmo", "acmo", 0.5, 0, 10, "accuracy", -5)
    sum_up(folder)
    publish(folder, tmp_path / "p")
    assert stray.name not in (tmp_path / "p" / "trials.jsonl").read_text()
