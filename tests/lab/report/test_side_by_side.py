"""``acmo report A B``: two comparisons on one page."""

import html
import json
import re

import pytest

from acmo.lab.errors import LabError
from acmo.lab.report.side_by_side import write_side_by_side
from tests.support.browser import CHROMIUM, ENABLE, Browser
from tests.support.lab_command import run_command
from tests.support.lab_folders import write_comparison

acmo = run_command  # a fixture


@pytest.fixture
def folders(tmp_path):
    first = write_comparison(tmp_path / "short", seeds=5, epochs=5)
    second = write_comparison(tmp_path / "long", optimizers=["sgd-momentum", "adam", "adamw"], seeds=5)
    return first, second


def text_of(page: str) -> str:
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def table_of(page: str) -> dict[str, list[str]]:
    body = re.search(r'<table class="verdict">.*?<tbody>(.*?)</tbody>', page, re.S)[1]
    rows = re.findall(r'<tr data-label="(.*?)">(.*?)</tr>', body, re.S)
    return {label: [text_of(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.S)] for label, row in rows}


def test_scores_of_both_are_in_one_table_with_paired_differences(folders):
    page = write_side_by_side(folders).read_text(encoding="utf-8")
    rows = table_of(page)
    assert list(rows) == ["acmo", "sgd-momentum", "adam", "adamw"]
    assert rows["acmo"][1:3] == ["–", "–"]
    assert rows["adamw"][0] == "–"
    # SGD-momentum is the second of the first folder and the best of the other: its scores differ by 2 points.
    assert rows["sgd-momentum"][2] == "+1.98 [+1.98, +1.98] better"
    assert "Differences are paired by seed" in text_of(page)


def test_options_that_differ_are_listed_and_only_those(folders):
    page = write_side_by_side(folders).read_text(encoding="utf-8")
    body = re.search(r'id="differences">(.*?)</section>', page, re.S)[1]
    assert re.findall(r'<th scope="row">(.*?)</th>', body) == ["optimizers"]
    assert "1 option differs." in text_of(body)


def test_plots_come_in_pairs_with_one_range(folders):
    page = write_side_by_side(folders).read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    by_side = {side: [p for p in data["plots"] if p["id"].startswith(side)] for side in "ab"}
    losses = [next(p for p in by_side[side] if p.get("kind") == "train") for side in "ab"]
    assert losses[0]["extent"] == losses[1]["extent"] == [0.23, 2.3]
    shown = re.findall(r'class="plot" id="([ab])t0-(\w+)-', page)
    assert shown[:4] == [("a", "curve"), ("b", "curve")] * 2


def test_unused_option_of_a_later_version_is_no_difference(folders):
    for folder, options in zip(folders, [{"prune": False, "steps": None}, {"steps": 400}], strict=True):
        stored = json.loads((folder / "comparison.json").read_text())
        plan = {key: value for key, value in stored["config"].items() if key not in ("prune", "steps")}
        (folder / "comparison.json").write_text(json.dumps({**stored, "config": {**plan, **options}}))
    page = write_side_by_side(folders).read_text(encoding="utf-8")
    body = re.search(r'id="differences">(.*?)</section>', page, re.S)[1]
    assert "prune" not in body
    assert re.search(r"steps</th>\s*<td><code>default</code></td>\s*<td><code>400", body)


def test_other_data_gives_no_difference(folders):
    head = json.loads((folders[1] / "comparison.json").read_text())
    (folders[1] / "comparison.json").write_text(json.dumps({**head, "data": {"digits": {"fingerprint": "other"}}}))
    page = write_side_by_side(folders).read_text(encoding="utf-8")
    assert {cells[2] for cells in table_of(page).values()} == {"–"}
    assert "No difference is computed" in text_of(page)


def test_command_writes_the_page_beside_the_first_folder(acmo, tmp_path, folders):
    code, out, err = acmo("report", "short", "long")
    assert code == 0, err
    assert "Side by side: short-long.html" in out
    page = (tmp_path / "short-long.html").read_text(encoding="utf-8")
    links = re.findall(r'<li><a href="(.*?)">', page)
    assert links == ["short/report.html", "long/report.html"]
    assert all((tmp_path / link).is_file() for link in links)


def test_one_folder_twice_is_refused(folders):
    with pytest.raises(LabError, match="is given twice"):
        write_side_by_side([folders[0], folders[0]])


@pytest.mark.skipif(CHROMIUM is None, reason=ENABLE)
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_every_plot_and_fits(tmp_path, folders, width):
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(write_side_by_side(folders), width)
        assert browser.errors == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        drawn = "[...document.querySelectorAll('.plot')].every(p => p.querySelector('.scatterlayer .trace'))"
        assert browser.run(drawn)
        ranges = browser.run("[...document.querySelectorAll('.plot')].slice(0, 2).map(p => p.layout.yaxis.range)")
        assert ranges[0] == ranges[1]
    finally:
        browser.close()
