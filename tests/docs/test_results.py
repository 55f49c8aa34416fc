"""What is published under docs/results is what its per-run files give, and what a preset reproduces."""

import json
import re

import pytest

from tests.support.paths import ROOT

pytest.importorskip("optuna", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab import results
from acmo.lab.config.plan import make_plan
from acmo.lab.config.preset_files import presets, read_toml
from acmo.lab.published import read_published
from acmo.lab.report import words
from acmo.lab.report.publish import overview, page, recomputed
from acmo.lab.results.run_files import read_json
from acmo.lab.results.stats import paired_difference
from acmo.lab.results.summary import flat_rows
from acmo.lab.results.tables import write_csv

RESULTS = ROOT / "docs" / "results"
ARCHIVE = RESULTS / "archive"
PUBLISHED = sorted(path.parent for path in RESULTS.rglob("comparison.json"))
NUMBER = re.compile(r"[+−]?\d+\.\d+")


def without_pins(preset, published):
    """Return a preset without the decay of 0 that was the default of spectral steps when a comparison was run."""
    if "weight_decay" not in (published.get("grids") or {}).get("spectral-acmo", {}):
        grid = preset.get("grids", {}).get("spectral-acmo", {})
        assert grid.pop("weight_decay", [0.0]) == [0.0]
    for ours, theirs in zip(preset.get("contender", []), published.get("contender", []), strict=True):
        if ours["optimizer"] in ("spectral-acmo", "spectral-momentum") and "weight_decay" not in theirs["settings"]:
            assert ours["settings"].pop("weight_decay") == 0.0
    return preset


def test_results_are_published():
    assert PUBLISHED


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
class TestPublished:
    def test_the_summary_is_what_the_runs_give(self, folder):
        assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(recomputed(folder)))

    def test_the_csv_is_what_the_runs_give(self, folder, tmp_path):
        write_csv(tmp_path / "summary.csv", flat_rows(recomputed(folder)))
        assert (folder / "summary.csv").read_text() == (tmp_path / "summary.csv").read_text()

    def test_the_page_is_what_the_summary_gives(self, folder):
        assert page(folder, sorted(folder.glob("*.svg"))) == (folder / "README.md").read_text(encoding="utf-8")

    def test_every_run_is_finished_and_every_setting_is_there(self, folder):
        found = results.load(folder)
        assert {run.status for run in found.runs} <= {"finished", "diverged"}
        for task in read_json(folder / "summary.json")["tasks"]:
            for row in task["rows"]:
                assert row["tried"] > 0 or row["settings"] is not None  # an only setting is not tuned
                assert row["settings"] is None or len(row["test_by_seed"]) + row["diverged"]["final"] == len(
                    task["seeds"]
                )

    def test_the_preset_that_ships_reproduces_it(self, folder):
        name = f"{'archive' if folder.parent == ARCHIVE else 'evidence'}/{folder.name}"
        assert f"--preset {name}" in (folder / "README.md").read_text(encoding="utf-8")
        published = results.load(folder).plan
        shipped = make_plan(without_pins(read_toml(presets()[name]), published))
        assert shipped.differs_from(published) == []

    def test_figures_are_there(self, folder):
        names = {path.suffix for path in folder.glob("curves-*")}
        assert {".svg", ".png"} <= names

    def test_nothing_about_the_machine_is_published(self, folder):
        for path in folder.glob("*.json*"):
            assert not re.search(r"/(work|home|root|tmp)/", path.read_text(encoding="utf-8")), path


def test_the_table_over_all_is_what_the_summaries_give():
    text = (ARCHIVE / "README.md").read_text(encoding="utf-8")
    assert "\n".join(overview(ARCHIVE)) in text


INTERVAL = re.compile(r"\[([+−]?\d+\.\d+), ([+−]?\d+\.\d+)\]")


def read_intervals(text):
    """Return the intervals of a text, and those of the differences seen from the other side."""
    ends = [tuple(float(end.replace("−", "-")) for end in found) for found in INTERVAL.findall(text)]
    return {*ends, *((-high, -low) for low, high in ends)}


@pytest.fixture(scope="module")
def intervals():
    """Return all intervals in the pages of comparisons, archive included, and of all pairs of optimizers."""
    found = set()
    for path in RESULTS.rglob("*/README.md"):
        found |= read_intervals(path.read_text(encoding="utf-8"))
    for path in RESULTS.glob("*/summary.json"):
        for task in json.loads(path.read_text(encoding="utf-8"))["tasks"]:
            found |= read_intervals("\n".join(words.interval(pair, task["metric"]) for pair in task["pairs"]))
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md", "docs/moving.md", "docs/rows.md"])
def test_every_interval_on_a_page_is_in_a_published_table(page, intervals):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"<!-- tables: begin -->.*?<!-- tables: end -->", "", text, flags=re.DOTALL)  # tested themselves
    quoted = {tuple(float(end.replace("−", "-")) for end in found) for found in INTERVAL.findall(text)}
    assert quoted
    assert not quoted - intervals, f"{page} quotes intervals that no published table has"


def test_the_table_of_rows_is_what_the_runs_give():
    lines = (ROOT / "docs" / "rows.md").read_text(encoding="utf-8").split("SpectralACMo, Muon |\n")[1].splitlines()[1:]
    published, checked = read_published(RESULTS), 0
    for line in lines[: lines.index("")]:
        name = re.search(r"\(results/([^/]+)/README.md\)", line)[1]
        found, cells = published[name], [cell.strip() for cell in line.strip("|").split("|")[1:]]
        pairs = [(ours, theirs) for ours in ("row-acmo", "spectral-acmo") for theirs in ("adamw", "muon")]
        for cell, (ours, theirs) in zip(cells, pairs, strict=True):
            if theirs not in found.rows:
                assert cell == words.NONE
                continue
            apart = paired_difference(found.tests(ours), found.tests(theirs), found.task["best"])
            ahead = apart.mean if found.task["best"] == "max" else -apart.mean
            shown = format(ahead, "+.3f" if found.task["metric"] == "bits_per_byte" else "+.2f").replace("-", "−")
            assert cell == (f"**{shown}**" if (apart.low > 0) == (apart.high > 0) else shown), (name, ours, theirs)
            checked += 1
    assert checked >= 38
