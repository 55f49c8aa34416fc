"""README and docs: their code runs, their commands parse, their plans are plans, their links lead somewhere."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import acmo
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
