"""The table of training losses in the report: there if runs recorded them, and test curves marked as what they are."""

import json
import re
from pathlib import Path

from acmo.lab.report import write
from tests.support.lab_folders import write_comparison


def add_to_runs(folder: Path) -> None:
    """Give every run a training curve, and every final run a curve of test scores."""
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        curve = [[step, step / 10, 2 - step / result["steps"]] for step in range(20, result["steps"] + 1, 20)]
        path.write_text(json.dumps({**result, "curve": [], "train_curve": curve}))
        if result["phase"] == "final":
            line = {"kind": "test_curve", "step": 20, "epoch": 1, "seconds": 1.0, "accuracy": 0.5, "loss": 1.0}
            with (path.parent / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def test_the_page_has_losses_on_the_way_and_marked_test_curves(tmp_path):
    folder = write_comparison(tmp_path, seeds=5)
    assert '<table class="losses">' not in write(folder).read_text(encoding="utf-8")
    add_to_runs(folder)
    page = write(folder).read_text(encoding="utf-8")
    table = re.search(r'<table class="losses">.*?</table>', page, re.S)
    assert table is not None
    assert "training loss after 25 %" in table[0]
    assert "at the end, against SGD-momentum" in table[0]
    assert re.search(r'<th scope="row">ACMo</th><td class="number">1\.8 ', table[0])
    assert "Test accuracy in % (nothing is selected by it)" in page
