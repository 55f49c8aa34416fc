"""The report in a real browser: it loads, asks nobody for anything, and every control works."""

import base64
import json

import pytest

from acmo.lab.report import paper_figures as figures
from acmo.lab.report import write
from acmo.lab.report.evidence import gather
from tests.support.browser import CHROMIUM, ENABLE, Browser
from tests.support.lab_folders import PAPER, write_comparison

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=ENABLE)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("small"), seeds=5)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


SERIES = "[...document.querySelectorAll('.plot')].map(div => div.data.map(t => [t.meta, t.visible]))"
ROWS = "[...document.querySelectorAll('#verdict table.verdict tbody tr')].map(row => row.dataset.label)"


def open_page(browser, folder, width=1280, **kwargs):
    page = folder / "report.html"
    browser.open(page if page.exists() else write(folder), width, **kwargs)


@pytest.mark.parametrize("width", [1280, 390])
def test_page_loads_without_errors_or_requests_and_fits(browser, small, width):
    open_page(browser, small, width)
    assert browser.errors == []
    assert browser.requests == [(small / "report.html").resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.scatterlayer .trace'))")
    outside = "[...document.querySelectorAll('.plot')].filter(p => p.getBoundingClientRect().right > innerWidth).length"
    assert browser.run(outside) == 0
    assert browser.run("fetch('https://example.org/').then(() => 'fetched', () => 'refused')") == "refused"


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


def test_a_button_saves_the_curves_of_a_plot_as_csv(browser, small):
    open_page(browser, small)
    plots = browser.run("document.querySelectorAll('.plot').length")
    assert browser.run("document.querySelectorAll('[data-save]').length") == 3 * plots
    catch = "URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }; "
    browser.run(catch + "document.querySelector('#curves [data-save=csv]').click()")
    lines = browser.run("window.saved.text()").splitlines()
    assert lines[0] == "optimizer,x,y"
    assert lines[1].startswith("ACMo,1,2.3")
    assert len(lines) == 1 + 3 * 10
    assert browser.errors == []


def test_the_index_leads_to_every_section(browser, small):
    open_page(browser, small)
    targets = browser.run("[...document.querySelectorAll('#index a')].map(a => a.getAttribute('href').slice(1))")
    assert targets == browser.run("[...document.querySelectorAll('main section')].map(s => s.id)")


def test_a_table_sorts_both_ways_and_finds_runs(browser, small):
    open_page(browser, small)
    browser.run(
        "document.querySelectorAll('#verdict thead th').forEach(th => th.id = th.textContent.trim().replace(/ /g, '-'))"
    )
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#ms-per-step button")
    assert browser.run(ROWS) == ["adam", "sgd-momentum", "acmo"]
    browser.click("#ms-per-step button")
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#against-Adam button")
    assert browser.run(ROWS)[-1] == "adam"  # it has no difference to itself
    browser.click("#against-Adam button")
    assert browser.run(ROWS) == ["acmo", "sgd-momentum", "adam"]
    browser.click("#find")
    browser.call("Input.insertText", text="ADAM diverged")
    assert browser.run("[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length") == 1


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


def test_page_follows_the_colour_scheme_and_prints_light(browser, small):
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


@pytest.mark.slow
def test_large_comparison_is_under_12_mb_and_ready_in_2_seconds(browser, tmp_path):
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


@pytest.mark.slow
def test_more_than_ten_optimizers_have_distinct_lines(browser, tmp_path):
    names = [f"o{i}" for i in range(14)]
    contenders = [{"label": name, "optimizer": "acmo", "grid": {"lr": [0.1, 0.01, 0.001]}} for name in names]
    open_page(browser, write_comparison(tmp_path, optimizers=[], contenders=contenders, baselines=[]))
    lines = "document.querySelector('#curves .plot').data.filter(t => t.mode == 'lines')"
    styles = browser.run(f"{lines}.map(t => t.line.color + ' ' + t.line.dash)")
    assert len(set(styles)) == len(styles) == 14
    for name in names:
        browser.run(f"document.querySelector('#legend [data-label={name}]').click()")
    assert not any(visible for plot in browser.run(SERIES) for _, visible in plot)
    assert browser.errors == []
