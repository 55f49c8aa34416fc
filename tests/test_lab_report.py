"""The report: what its sentences, plots and figures say, and in a real browser, that it works."""

import base64
import doctest
import html
import json
import re
import sys

import pytest

pytest.importorskip("optuna")
pytest.importorskip("typer")
pytest.importorskip("jinja2")
pytest.importorskip("plotly")
pytest.importorskip("matplotlib")

from browser import CHROMIUM, ENABLE, Browser
from lab_folders import PAPER, write_comparison

from acmo.lab.cli import main
from acmo.lab.errors import LabError
from acmo.lab.report import figures, paper, sentences, speed, tuning, words, write
from acmo.lab.report.curves import band
from acmo.lab.report.evidence import gather
from acmo.lab.report.paper import original

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=ENABLE)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("small"), seeds=5)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def text_of(page: str) -> str:
    """What a reader sees, roughly: no scripts, no styles, no tags."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def page_of(folder) -> str:
    return write(folder).read_text(encoding="utf-8")


# What is computed


def test_a_band_is_the_mean_and_the_range_of_the_runs_at_each_step():
    def run(*losses):
        return [{"step": 10 * i, "epoch": i, "seconds": i / 2, "loss": v} for i, v in enumerate(losses, start=1)]

    assert band([run(1.0, 3.0), run(2.0, 5.0, 7.0)], "loss", 10) == {
        "step": [10, 20, 30], "epoch": [1, 2, 3], "seconds": [0.5, 1, 1.5],
        "mean": [15, 40, 70], "low": [10, 30, 70], "high": [20, 50, 70], "n": 2,
    }  # fmt: skip
    assert band([run(1.0, None, float("inf"))], "loss")["step"] == [10]
    assert band([run(None)], "loss") is None
    assert band([run(1.0, 2.0, 3.0, 5.0)], "loss", points=2)["mean"] == [1.5, 4]


def test_a_learning_rate_where_all_diverged_has_no_score_and_does_not_count_as_near_the_best(small):
    task = gather(small).tasks[0]
    by = {s["label"]: s for s in tuning.sensitivity(task["contestants"], "accuracy", "max")}
    assert by["adam"]["lr"] == [0.001, 0.01, 0.1]
    assert by["adam"]["score"][2] is None
    assert by["acmo"]["score"][1] == max(by["acmo"]["score"])
    near = {"label": "x", "lr": [1, 2, 3, 4], "score": [98.0, 97.0, 96.9, None]}
    assert tuning.near_best(near, "accuracy", "max") == 2
    assert "1 of 9 tuning runs diverged" in sentences.tuned(task, [], [])


def test_the_performance_profile_counts_the_tasks_solved_within_a_factor_of_the_fastest():
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


def test_no_difference_is_claimed_where_the_interval_covers_zero(small):
    task = gather(small).tasks[0]
    for row in task["rows"]:
        for difference in row["differences"].values():
            difference["verdict"] = "no difference shown"
    text = sentences.verdict(task)
    assert "Against Adam, no difference is shown for any of the 2 others." in text
    assert "better" not in text


def test_the_paper_s_values_stand_beside_its_own_experiments_alone():
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


def test_every_section_has_a_sentence_and_every_link_leads_somewhere(small):
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
    assert "ACMo acmo 10" in text
    assert "Sentences" not in text_of(page_of(write_comparison(tmp_path / "images")))


def test_a_folder_with_nothing_in_it_gives_a_page_that_says_so(tmp_path):
    assert "There is no run in this folder yet." in text_of(page_of(tmp_path))


def test_a_comparison_with_no_finished_run_gives_a_page_that_says_so(tmp_path):
    folder = write_comparison(tmp_path)
    for path in folder.rglob("result.json"):
        path.unlink()
    text = text_of(page_of(folder))
    assert "No run is finished yet: 15 runs under way or stopped." in text
    assert "No test score yet on digits" in text


def test_half_written_files_are_left_out_and_said(tmp_path):
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
    assert words.without_secrets("x=/home/ann") == "x=~"
    assert words.without_secrets("/rooted/home") == "/rooted/home"


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


# In a browser

SERIES = "[...document.querySelectorAll('.plot')].map(div => div.data.map(t => [t.meta, t.visible]))"
ROWS = "[...document.querySelectorAll('#verdict tbody tr')].map(row => row.dataset.label)"


def open_page(browser, folder, width=1280, **kwargs):
    page = folder / "report.html"
    browser.open(page if page.exists() else write(folder), width, **kwargs)


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_loads_without_an_error_asks_nobody_for_anything_and_fits(browser, small, width):
    open_page(browser, small, width)
    assert browser.errors == []
    assert browser.requests == [(small / "report.html").resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.scatterlayer .trace'))")
    outside = "[...document.querySelectorAll('.plot')].filter(p => p.getBoundingClientRect().right > innerWidth).length"
    assert browser.run(outside) == 0
    assert browser.run("fetch('https://example.org/').then(() => 'fetched', () => 'refused')") == "refused"


@in_a_browser
def test_a_click_on_a_legend_entry_hides_it_in_every_plot(browser, small):
    open_page(browser, small)
    lines = "document.querySelectorAll('.scatterlayer .trace').length"
    before = browser.run(lines)
    browser.click('#legend [data-label="adam"]')
    after = browser.run(SERIES)
    assert sum(len(plot) for plot in after) > 20
    for plot in after:
        assert all(visible == (label != "adam") for label, visible in plot)
    assert browser.run(lines) < before
    assert browser.run("document.querySelector('#legend [data-label=adam]').getAttribute('aria-pressed')") == "false"
    browser.click("#all")
    assert all(visible for plot in browser.run(SERIES) for _, visible in plot)
    assert browser.run(lines) == before
    browser.run("document.querySelector('#legend [data-label=acmo]').dispatchEvent(new MouseEvent('dblclick'))")
    assert {label for plot in browser.run(SERIES) for label, visible in plot if visible} == {"acmo"}
    assert browser.errors == []


@in_a_browser
def test_the_switches_change_the_plots(browser, small):
    open_page(browser, small)
    first = "document.querySelector('#curves .plot')"
    x = f"{first}.data.filter(t => t.mode == 'lines')[0].x"
    assert browser.run(x)[:2] == [1, 2]
    browser.click('input[name="x"][value="step"]')
    assert browser.run(x)[:2] == [20, 40]
    assert browser.run("document.querySelector('#angles .plot').layout.xaxis.title.text") == "step"
    browser.click('input[name="x"][value="seconds"]')
    assert browser.run(x)[:2] == [0.25, 0.5]
    assert browser.run(f"{first}.layout.yaxis.type") == "log"
    browser.click("#log")
    assert browser.run(f"{first}.layout.yaxis.type") == "linear"
    traces = browser.run(f"{first}.data.length")
    browser.click("#bands")
    assert browser.run(f"{first}.data.length") == traces / 2
    median = "document.querySelector('#speed .plot').data.filter(t => t.meta == 'acmo')[1].x[0]"
    steps = browser.run(median)
    browser.click('input[name="cost"][value="seconds"]')
    assert browser.run(median) == pytest.approx(steps / 20 * 0.25)
    assert browser.errors == []


@in_a_browser
def test_a_table_sorts_both_ways_and_finds_runs(browser, small):
    open_page(browser, small)
    browser.run(
        "document.querySelectorAll('#verdict thead th').forEach(th => th.id = th.textContent.trim().replace(/ /g, '-'))"
    )
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#ms-a-step button")
    assert browser.run(ROWS) == ["adam", "sgd-momentum", "acmo"]
    browser.click("#ms-a-step button")
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#against-Adam button")
    assert browser.run(ROWS)[-1] == "adam"  # it has no difference to itself
    browser.click("#against-Adam button")
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#find")
    browser.call("Input.insertText", text="ADAM diverged")
    assert browser.run("[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length") == 1


@in_a_browser
def test_names_that_look_like_code_show_as_text(browser, tmp_path, monkeypatch):
    name = "<script>window.hit=1</script><img src=x onerror=window.hit=1> $x_1$ {{7*7}} &amp;"
    evil = {"label": name, "optimizer": "torch.optim:SGD", "grid": {"lr": [0.01]}}
    folder = write_comparison(tmp_path, contenders=[evil], title="</title><script>window.hit=1</script>")
    open_page(browser, folder)
    assert browser.errors == []
    assert browser.run("window.hit") is None
    assert browser.run("document.scripts.length") == 3
    assert browser.run("[...document.querySelectorAll('#legend .chip')].pop().textContent") == name
    ticks = browser.run("[...document.querySelectorAll('#speed .ytick text')].map(t => t.textContent)")
    assert any(name in tick for tick in ticks), ticks
    assert browser.run("document.querySelector('h1').textContent") == "</title><script>window.hit=1</script>"
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    assert figures.draw([gather(folder)], tmp_path / "figures")  # a dollar sign is no formula


@in_a_browser
def test_it_is_light_or_dark_as_the_reader_wishes_and_light_on_paper(browser, small):
    ground = "getComputedStyle(document.body).backgroundColor"
    open_page(browser, small, dark=True)
    dark = browser.run(ground)
    line = "document.querySelector('.plot').data.find(t => t.mode == 'lines').line.color"
    in_the_dark = browser.run(line)
    browser.run("addEventListener('beforeprint', () => { window.printed = [document.documentElement.dataset.theme,"
                " ...[...document.querySelectorAll('.plot')].map(p => p.layout.width)]; })")  # fmt: skip
    pdf = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert set(browser.run("window.printed")) == {"light", 660}
    assert browser.run(ground) == dark
    browser.click("#theme")
    assert browser.run(ground) != dark
    assert browser.run(line) != in_the_dark
    assert browser.errors == []


@in_a_browser
@pytest.mark.parametrize("state", ["empty", "unfinished", "damaged"])
def test_a_page_about_little_is_a_page(browser, tmp_path, state):
    if state != "empty":
        write_comparison(tmp_path)
    for path in tmp_path.rglob("result.json"):
        path.unlink()
    if state == "damaged":
        for path in tmp_path.rglob("metrics.jsonl"):
            path.write_text('{"kind": "tr')
    open_page(browser, tmp_path)
    assert browser.errors == []
    assert browser.run("document.querySelector('.note').innerText.length") > 20


@in_a_browser
def test_a_large_comparison_is_under_12_MB_and_interactive_within_2_seconds(browser, tmp_path):
    rates = [0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005]
    write_comparison(tmp_path, PAPER, rates, seeds=4, epochs=200, every_seed=True)
    assert len(list(tmp_path.glob("runs/*/*/*"))) == 7 * 10 * 5
    page = write(tmp_path)
    assert page.stat().st_size < 12e6
    browser.call("Performance.enable", timeDomain="threadTicks")
    seconds, spent = [], []
    for _ in range(5):  # the best of five: what others do on this machine is not the page's fault
        browser.open(page)
        seconds.append(browser.run("performance.getEntriesByName('ready')[0].startTime") / 1000)
        metrics = browser.call("Performance.getMetrics")["metrics"]
        spent.append(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))
        if seconds[-1] < 2 and spent[-1] < 2:
            break
    assert min(seconds) < 2, seconds  # until every control answers
    assert min(spent) < 2, spent  # processor time until every plot is drawn
    assert browser.errors == []
    assert json.loads(browser.run("document.getElementById('data').textContent"))["plots"][0]["series"][0]["n"] == 4
