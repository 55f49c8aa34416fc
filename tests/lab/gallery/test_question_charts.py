"""The figures of the questions show the numbers of their answers, and each has its place on the results page."""

from xml.sax.saxutils import escape

import pytest

from tests.support.paths import ROOT

pytest.importorskip("matplotlib", reason='needs the lab: pip install "acmo[lab]"')

from acmo.lab.gallery.canvas import figure
from acmo.lab.gallery.question_charts import draw, draw_bars, draw_intervals
from acmo.lab.published import read_published
from acmo.lab.questions import Answer, Difference, Quantity, answer_questions

RESULTS = ROOT / "docs" / "results"
INTERVALS = [
    Difference("text: loss", "a − b", 0.5, 0.4, 0.7, 0.02),
    Difference("text: loss", "c − d", float("nan"), float("-inf"), float("inf"), 0.02),
]


def test_an_interval_is_drawn_from_end_to_end_beside_its_limit():
    with figure(4, 2) as drawn:
        axes = drawn.subplots()
        draw_intervals(axes, INTERVALS)
    zero, limit, *own = [list(line.get_xdata()) for line in axes.lines]
    assert (zero, limit) == ([0, 0], [0.02, 0.02])
    assert own == [[0.4, 0.7], [0.5]]
    assert [text.get_text() for text in axes.texts] == [" too few seeds"]


def test_a_bar_is_as_long_as_its_quantity():
    with figure(4, 2) as drawn:
        axes = drawn.subplots()
        draw_bars(axes, [Quantity("", "RowACMo", 0.2, "1 of 5", 1.0), Quantity("", "AdamW", 0.5, "2 of 4", 1.0)])
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.5]
    assert axes.get_xlim() == (0, 1)


def test_every_scale_has_a_panel_and_the_bytes_do_not_change():
    answer = Answer("Is it?", "holds", "", [*INTERVALS, Difference("images: points", "e − f", 1.0, 0.0, 2.0, -0.5)])
    svg = draw(answer)
    assert svg.count(b'id="axes_') == 2
    assert svg == draw(answer)


def test_the_figures_of_the_results_page_are_those_of_its_answers():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    answers = [answer for answer in answer_questions(read_published(RESULTS)) if answer.evidence]
    assert {path.stem for path in (RESULTS / "questions").iterdir()} == {answer.slug for answer in answers}
    for answer in answers:
        figure = (RESULTS / "questions" / f"{answer.slug}.svg").read_text(encoding="utf-8")
        assert escape(str(answer)) in figure, "run: python -m acmo.lab.gallery.charts"
        assert f"(questions/{answer.slug}.svg)" in page
