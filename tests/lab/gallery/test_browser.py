"""The gallery's page in a browser: it loads, plays, and can be used with the keys."""

import time

import pytest

from tests.support.browser import CHROMIUM, ENABLE, Browser
from tests.support.gallery import data_of
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=ENABLE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


STEP = "Number(document.getElementById('step').value)"


AT = "document.querySelector('#map [data-optimizer=acmo] .path:not(.whole)').getAttribute('points').split(' ').length"


@in_a_browser
@pytest.mark.parametrize(("width", "dark"), [(1000, False), (390, True)])
def test_the_page_loads_without_an_error_and_fits(browser, width, dark):
    browser.open(DOCS / "gallery.html", width, dark=dark)
    assert browser.errors == []
    assert browser.requests == [(DOCS / "gallery.html").resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.querySelectorAll('#map .level').length") == 10
    assert browser.run("document.querySelectorAll('#value .path').length") == 6
    assert browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(19, 20, 23)" if dark else "rgb(252, 252, 251)"
    )


@in_a_browser
def test_play_goes_from_the_start_to_the_end_and_pause_stops(browser):
    browser.open(DOCS / "gallery.html")
    assert browser.run(STEP) == 200
    browser.run("document.getElementById('speed').value = 60")
    browser.click("#play")
    time.sleep(0.6)
    browser.click("#play")
    paused = browser.run(STEP)
    assert 0 < paused < 200
    assert browser.run(AT) == paused + 1
    time.sleep(0.2)
    assert browser.run(STEP) == paused
    browser.click("#play")
    end = time.monotonic() + 30
    while browser.run(STEP) < 200:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "Play" in browser.run("document.getElementById('play').textContent")
    assert browser.errors == []


@in_a_browser
def test_keys_move_the_slider_and_choose_the_surface(browser):
    browser.open(DOCS / "gallery.html")

    def press(key: str) -> None:
        code = {"ArrowLeft": 37, "ArrowRight": 39}[key]
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    browser.run("document.getElementById('step').focus()")
    press("ArrowLeft")
    assert browser.run(STEP) == 199
    assert browser.run(AT) == 200
    browser.run("document.querySelector('#surface input').focus()")
    press("ArrowRight")
    assert browser.run("document.querySelector('#surface input:checked').value") == "1"
    f = float(browser.run("document.querySelector('tbody tr').cells[2].textContent").replace("−", "-"))
    assert f == pytest.approx(data_of(DOCS / "gallery.html")["scenes"][1]["paths"][0]["f"][199], rel=0.05)
    assert browser.errors == []


@in_a_browser
def test_a_name_hides_its_paths_and_shows_them_again(browser):
    browser.open(DOCS / "gallery.html")
    shown = "[...document.querySelectorAll('g[data-optimizer=adam]')].map(g => getComputedStyle(g).display)"
    browser.click("tr[data-optimizer=adam] button")
    assert browser.run(shown) == ["none"] * 3
    browser.click("tr[data-optimizer=adam] button")
    assert browser.run(shown) == ["inline"] * 3
