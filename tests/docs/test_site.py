"""The built site: its pages, names and formulas, and how a browser shows it on a desk and on a phone."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import acmo
from tests.support.browser import CHROMIUM, ENABLE, Browser
from tests.support.pages import BLOCK, blocks
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors: pages that lack, links and anchors that lead nowhere, bad docstrings."""
    pytest.importorskip("mkdocstrings", reason="not installed: mkdocs; it comes with acmo[docs]")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_every_public_name(site: Path):
    for page in DOCS.rglob("*.md"):
        built = page.relative_to(DOCS).with_suffix(".html").as_posix().replace("README.html", "index.html")
        assert (site / built).is_file(), built
    from acmo import jax, rivals, theory

    assert set(rivals.__all__) <= ids(site / "api/rivals.html", "acmo.rivals.")
    assert set(theory.__all__) <= ids(site / "api/theory.html", "acmo.theory.")
    assert set(jax.__all__) <= ids(site / "api/jax.html", "acmo.jax.")
    assert set(acmo.__all__) - {"__version__", "projections"} <= ids(site / "api/optimizer.html", "acmo.")
    assert {"Box", "NonNegative", "L2Ball", "Simplex"} <= ids(site / "api/optimizer.html", "acmo.projections.")


def ids(page: Path, prefix: str) -> set[str]:
    return {i.removeprefix(prefix) for i in re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8"))}


@pytest.mark.slow
def test_docstrings_on_the_site_use_known_markup_only(site: Path):
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"\.\. math::|:math:|:class:|:func:|&gt;`_", text), page.name


MATH = re.compile(r"<math .*?</math>", re.DOTALL)
INLINE = re.compile(r"\$(?![\s$])(?:[^$\n`\\]|\\.)+(?<!\s)\$(?!\d)")


@pytest.mark.slow
def test_formulas_reach_the_site_as_mathml(site: Path):
    for page in DOCS.glob("*.md"):
        written = page.read_text(encoding="utf-8")
        outside = re.sub(r"`[^`\n]+`", "", BLOCK.sub("", written))
        formulas = len(INLINE.findall(outside)) + len(blocks(page, "math"))
        drawn = MATH.findall((site / page.with_suffix(".html").name).read_text(encoding="utf-8"))
        assert len(drawn) == formulas, page.name
        unknown = [name for formula in drawn for name in re.findall(r"\\\w+", formula)]
        assert not unknown, (page.name, unknown)  # what the converter does not know stays as it was


@pytest.mark.slow
def test_plain_formulas_reach_the_site_as_they_are(site: Path):
    """Underscores and braces, which Markdown may take for markup."""
    for page in DOCS.glob("*.md"):
        html = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        shown = re.sub(r"<[^>]+>", "", MATH.sub("", html))
        written = INLINE.sub("", re.sub(r"^```math\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S))
        for sign in ("_{", "β̂_", "|λ"):
            wanted = written.replace("\\|", "|").count(sign)
            assert shown.count(sign) >= wanted, (page.name, sign)


LOADED = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        if not (DOCS / page.relative_to(site)).exists():  # those that are HTML already have tests of their own
            assert LOADED.findall(page.read_text(encoding="utf-8")) == [], page


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(ENABLE)
    browser = Browser(tmp_path)
    yield browser
    browser.close()


def visit(browser: Browser, page: Path) -> None:
    browser.requests, browser.errors = [], []
    browser.call("Page.navigate", url=page.as_uri())
    browser.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
    wait(browser, "document.querySelector('h1') !== null")


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 20
    while not browser.run(condition):
        assert time.monotonic() < end, f"{condition} did not come true: {browser.errors}"
        time.sleep(0.05)


@pytest.mark.slow
def test_site_on_disk_needs_no_network_and_its_search_works(site: Path, browser: Browser):
    for page in ("how.html", "gallery.html", "api/rivals.html", "results/index.html", "index.html"):
        visit(browser, site / page)
        assert (site / page).as_uri() in browser.requests
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
        assert browser.errors == []
    box = "document.querySelector('[data-md-component=search-query]')"
    browser.run(f"{box}.focus()")
    browser.run(f"{box}.value = 'simplex'; {box}.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))")
    found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    wait(browser, f"{found}.length > 0")
    assert any(link.endswith("api/optimizer.html#acmo.projections.Simplex") for link in browser.run(found))
    assert browser.errors == []


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.mark.slow
def test_wide_tables_on_a_phone_scroll_with_a_cue_and_by_keys(site: Path, browser: Browser):
    browser.call("Emulation.setDeviceMetricsOverride", **PHONE)
    visit(browser, site / "options.html")
    wide = "[...document.querySelectorAll('.md-typeset__scrollwrap')].filter(t => t.scrollWidth > t.clientWidth + 1)"
    wait(browser, f"{wide}.length > 1 && {wide}.every(t => t.tabIndex === 0)")
    assert browser.run(f"{wide}.every(t => getComputedStyle(t, '::before').content.includes('scroll'))")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # the page itself does not


@pytest.mark.slow
def test_copy_buttons_cover_no_code(site: Path, browser: Browser):
    for width in (390, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", **{**PHONE, "width": width, "mobile": width < 600})
        visit(browser, site / "start.html")
        button = "document.querySelector('pre .md-code__button, pre .md-clipboard')"
        wait(browser, f"{button} !== null")
        code = f"{button}.closest('pre').querySelector('code')"
        assert browser.run(f"{button}.getBoundingClientRect().left >= {code}.getBoundingClientRect().right"), width


@pytest.mark.slow
def test_subscripts_are_lowered_without_a_math_font(site: Path, browser: Browser):
    visit(browser, site / "index.html")
    wait(browser, "document.querySelector('.formula msub') !== null")
    bottoms = "s => [...s.children].map(part => part.getBoundingClientRect().bottom)"
    lower = f"[...document.querySelectorAll('.formula msub')].map({bottoms})"
    assert all(sub > base for base, sub in browser.run(lower))
