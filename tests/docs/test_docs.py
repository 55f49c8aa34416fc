"""README and docs: their code runs, their commands parse, their plans are plans, their links lead somewhere."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import acmo
from tests.support.browser import CHROMIUM, ENABLE, Browser
from tests.support.pages import BLOCK, Block, blocks, expanded
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TEXTS = [*PAGES, *sorted(ROOT.glob("[!.]*/README.md")), *sorted(ROOT.glob("examples/*/README.md")), *ROOT.glob("C*.md")]

# Pages whose blocks another test runs, because they need more than this one has.
ELSEWHERE = {DOCS / "scale.md": ("core/test_scale", "test_blocks_of_scale_md_run_and_print_the_errors_shown")}

COMMAND = re.compile(r"(?:torchrun \S+ \S+ -m acmo|python -m acmo[\w.]*|python [\w/]+\.py|acmo|make) .*")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", [p for p in with_blocks("python") if p not in ELSEWHERE], ids=name)
def test_python_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if page.name == "lab.md":  # it reads what a comparison left
        from acmo.lab.cli.report_command import sum_up
        from tests.support.lab_folders import write_comparison

        sum_up(write_comparison(tmp_path / "runs" / "digits"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    all_blocks = [*blocks(page), Block("", "", "")]
    for block, after in itertools.pairwise(all_blocks):
        if block.language == "python" and not block.not_run:
            capsys.readouterr()
            exec(compile(block.text, name(page), "exec"), names)
            if after.language == "text":  # what the block before it prints
                assert capsys.readouterr().out == after.text


def test_pages_that_are_run_elsewhere_are():
    for page, (module, test) in ELSEWHERE.items():
        assert blocks(page, "python")
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8"), re.MULTILINE)


def test_few_blocks_are_not_run_and_each_says_why():
    reasons = [block.not_run for page in PAGES for block in blocks(page) if block.not_run]
    assert len(reasons) <= 2
    assert all(len(reason.split()) > 3 for reason in reasons)
    marks = sum(len(re.findall("not run: ", page.read_text(encoding="utf-8"))) for page in PAGES)
    assert marks == len(reasons)  # none stands where it has no effect


def test_the_readme_prints_an_angle(capsys: pytest.CaptureFixture[str]):
    exec(blocks(ROOT / "README.md", "python")[0].text, {})
    assert -1 <= float(capsys.readouterr().out) <= 1


@pytest.mark.parametrize("page", with_blocks("toml"), ids=name)
def test_every_toml_block_is_a_plan(page: Path, tmp_path: Path):
    from acmo.lab.config.grids import run_counts
    from acmo.lab.config.plan import make_plan
    from acmo.lab.config.preset_files import read_toml

    for block in blocks(page, "toml"):
        (tmp_path / "plan.toml").write_text(block.text, encoding="utf-8")
        plan = make_plan(read_toml(tmp_path / "plan.toml"), tmp_path / "plan.toml")
        assert run_counts(plan).keys() == {c.label for c in plan.contenders()}


def commands() -> Iterator[tuple[str, str]]:
    """Every command that a page shows, in a block or in the text, with the page's name."""
    for page in TEXTS:
        text = expanded(page.read_text(encoding="utf-8"))
        lines = [
            line for _, _, language, block in BLOCK.findall(text) if language != "python" for line in block.splitlines()
        ]
        spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        for line in (*lines, *spans):
            if COMMAND.fullmatch(line.strip()) and " | " not in line:
                yield name(page), re.sub(r"\s+#.*", "", line.strip())


def test_there_are_commands_of_every_kind():
    shown = [command for _, command in commands()]
    for start in ("acmo compare", "acmo train", "acmo report", "acmo gallery", "torchrun", "python -m", "make docs"):
        assert any(command.startswith(start) for command in shown), start


ACMO = sorted({re.sub(r"^(torchrun \S+ \S+|python) -m ", "", command) for _, command in commands()})


@pytest.mark.parametrize("command", [c for c in ACMO if c.startswith("acmo ")])
def test_every_acmo_command_line_parses_and_names_real_things(command: str, monkeypatch: pytest.MonkeyPatch):
    import typer

    from acmo.lab.cli.app import app
    from acmo.lab.config.optimizers import find_factory
    from acmo.lab.config.plan import ALIASES, make_plan, parse_values
    from acmo.lab.config.preset_files import find_preset, read_toml
    from acmo.lab.tasks import find_task

    monkeypatch.chdir(ROOT)
    top = typer.main.get_command(app)
    first, *rest = shlex.split(command)[1:]
    if first.startswith("-"):
        assert first in {option for parameter in top.params for option in parameter.opts}
        return
    sub = top.commands[first]  # type: ignore[attr-defined]
    given = sub.make_context(first, rest).params  # an unknown option, or a value of the wrong type, is an error
    for task in [*(given.get("tasks") or ()), *([given["task"]] if given.get("task") else ())]:
        find_task(task)
    if given.get("preset") and not given["preset"].startswith(("FILE", "comparison")):
        make_plan(read_toml(find_preset(given["preset"])))
    for optimizer in [*(given.get("optimizers") or "").split(","), given.get("optimizer") or ""]:
        if optimizer and not optimizer.startswith(("my_module:", "sign_sgd:")):  # found from another folder
            find_factory(ALIASES.get(optimizer, optimizer))
    for values in given.get("try_") or ():
        parse_values(values if first == "compare" else f"x.{values}")


@pytest.mark.parametrize("module", sorted({m for _, c in commands() for m in re.findall(r"^python -m (acmo\.\w+)", c)}))
def test_every_module_that_is_to_be_run_knows_its_options(module: str, capsys: pytest.CaptureFixture[str]):
    lines = [c.split() for _, c in commands()]
    shown = {w for words in lines if words[:3] == ["python", "-m", module] for w in words if w.startswith("--")}
    spec = importlib.util.find_spec(module)
    assert spec is not None
    if shown:
        with pytest.raises(SystemExit):
            importlib.import_module(f"{module}.__main__" if spec.submodule_search_locations else module).main(
                ["--help"]
            )
        assert shown <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


def test_every_script_and_target_that_is_to_be_run_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, command in commands():
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), (page, command)
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file() or (ROOT / page).parent.joinpath(words[1]).is_file(), (page, command)


def anchors(page: Path) -> set[str]:
    """What a link to the page may have behind #: its headings, and the names whose docstrings it shows."""
    from markdown.extensions.toc import slugify

    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", h), "-") for h in headings} | set(re.findall(r"^::: (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_to_files_and_anchors_that_exist(page: Path):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = (page.parent / link) if link else page
        assert target.exists(), f"{name(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}#{anchor}"


def test_the_table_of_options_is_the_signature():
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \|", text, re.MULTILINE)
    documented = {option: default.strip("`") for options, default in rows for option in re.findall(r"`(\w+)`", options)}
    signature = inspect.signature(acmo.ACMo).parameters
    assert list(documented) == list(signature)[1:]
    for option, default in documented.items():
        assert signature[option].default == ast.literal_eval(default), option


def test_the_signature_is_the_one_that_is_shown():
    shown = ast.parse("def " + blocks(DOCS / "options.md")[0].text.strip() + ": ...").body[0]
    assert isinstance(shown, ast.FunctionDef)
    namespace: dict[str, object] = {}
    exec(ast.unparse(shown), namespace)
    plain = [
        (p.name, p.default, p.kind)
        for f in (namespace["ACMo"], acmo.ACMo)
        for p in inspect.signature(f).parameters.values()  # type: ignore[arg-type]
    ]
    assert plain[: len(plain) // 2] == plain[len(plain) // 2 :]


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
