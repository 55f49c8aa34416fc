"""The README's snippets run, in order, as one program; what it says of options and files is so."""

import ast
import inspect
import re
from pathlib import Path

import acmo

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_snippets_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert -1 <= float(capsys.readouterr().out) <= 1


def test_the_table_of_options_is_the_signature():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \|", README, re.MULTILINE)
    documented = {name: default.strip("`") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    signature = inspect.signature(acmo.ACMo).parameters
    assert set(documented) == set(signature) - {"params"}
    for name, default in documented.items():
        assert signature[name].default == ast.literal_eval(default), name


def test_files_that_it_links_to_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
