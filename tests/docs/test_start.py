"""The first page that a new user follows prints what it shows."""

import re
from pathlib import Path

import pytest

from tests.support.pages import blocks
from tests.support.paths import ROOT

START = ROOT / "docs" / "start.md"
NUMBER = re.compile(r"-?\d+\.?\d*")


@pytest.mark.slow
def test_the_start_page_prints_about_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(START, "python"):
        exec(compile(block.text, str(START), "exec"), names)
    printed = capsys.readouterr().out
    shown = "".join(block.text for block in blocks(START, "")[1:])  # the first one installs
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for actual, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        # Processors round differently: losses and cosines move in their second digit, accuracies by an image or two.
        assert float(actual) == pytest.approx(float(expected), rel=0.02 if float(expected) > 90 else 0.3, abs=0.15)
    assert (tmp_path / "start.svg").stat().st_size > 5_000
