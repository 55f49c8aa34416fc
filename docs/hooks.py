"""Extend Markdown for the site: formulas become MathML, and files that a page links to become pages."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from mkdocs.structure.files import File, Files

LINK = re.compile(r"(?<=\]\()(?!\w+:|[#/])([^)#\s]+)")
LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".h": "c"}
FENCE = "~~~~~~"
BLOCK = re.compile(r"(^```.*?^```$|^~~~~~~.*?^~~~~~~$)", re.MULTILINE | re.DOTALL)
EMPTY_HEADER = re.compile(r"<th( [^>]*)?></th>")
NORM_BAR = re.compile(r"<mo>(&#x02016;|&#x0007C;)</mo>")
NO_LINK = re.compile(r"\]\((?=[^)\"]*\s[^)\"]*\))")
CODE_OR_MATH = re.compile(r"(`+)(?:.(?!\1))*.\1|\$(?![\s$])((?:[^$\n`\\]|\\.)+)(?<!\s)\$(?!\d)")


class Formulas(Extension):
    """Let β̂_t m_{t−1} be a formula: only asterisks emphasise. (Python-Markdown takes the hat for the end of a word.)

    And let a formula in MathML begin a paragraph, where Python-Markdown would make it one of its own.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.block_level_elements.remove("math")
        if hasattr(md, "delimiters"):
            md.delimiters.remove("_")
        else:  # before Python-Markdown 3.11
            md.inlinePatterns.deregister("em_strong2")


def on_config(config: Any) -> Any:
    """Read the pages as CommonMark does."""
    config.markdown_extensions.append(Formulas())
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for every file outside of the docs that a page leads to."""
    todo = [file for file in files if file.src_uri.endswith(".md")]
    while todo:
        page = todo.pop()
        for link in LINK.findall(BLOCK.sub("", page.content_string)):
            target = origin(page.src_uri, config).parent / link
            uri = address(target.resolve(), config)
            if uri is not None and files.get_file_from_path(uri) is None:
                file = File.generated(config, uri, content=shown(target.resolve(), config))
                files.append(file)
                todo.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let links lead to those pages."""
    here = page.file.src_uri

    def there(link: re.Match[str]) -> str:
        target = (origin(here, config).parent / link[0]).resolve()
        uri = address(target, config)
        if uri is None and target.is_relative_to(config.docs_dir) and (here.startswith("source/") or target.is_dir()):
            inside = target / "README.md" if target.is_dir() else target
            uri = inside.relative_to(config.docs_dir).as_posix()
        return link[0] if uri is None else posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return "".join(_rewrite(part, there) for part in BLOCK.split(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Correct the page's HTML in two places.

    An empty header of a table becomes a plain cell: a screen reader would announce a header without a name.
    Bars of a norm keep their height and distance, also where a superscript is attached to one of them alone.
    """
    html = NORM_BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', html)
    return EMPTY_HEADER.sub(r"<td\1></td>", html)


def _rewrite(part: str, there: Callable[[re.Match[str]], str]) -> str:
    """Return a block, or the text between two blocks, with its formulas and links as the site needs them."""
    if part.startswith("```math\n"):
        formula = part.removeprefix("```math\n").removesuffix("```")
        return f'<div class="formula">{convert(" ".join(formula.split()), display="block")}</div>\n'
    if part.startswith(("```", FENCE)):
        return part
    part = CODE_OR_MATH.sub(lambda found: found[0] if found[1] else convert(found[2]), part)
    # E[x](a + b) is no link: CommonMark knows by the blank, Python-Markdown does not.
    return NO_LINK.sub(r"]\\(", LINK.sub(there, part))


def root(config: Any) -> Path:
    return Path(config.config_file_path).resolve().parent


def origin(uri: str, config: Any) -> Path:
    """The file that a page was made of."""
    if not uri.startswith("source/"):
        return Path(config.docs_dir) / uri
    path = root(config) / uri.removeprefix("source/")
    return path if path.exists() else path.with_suffix("")


def address(target: Path, config: Any) -> str | None:
    """The page of a file; None for what is no file of the repository, or is in the docs already."""
    if target.is_dir():
        target = target / "README.md"
    if not target.is_file() or not target.is_relative_to(root(config)) or target.is_relative_to(config.docs_dir):
        return None
    path = PurePosixPath("source", target.relative_to(root(config)).as_posix())
    return str(path if path.suffix == ".md" else path.with_name(path.name + ".md"))


def shown(target: Path, config: Any) -> str:
    """The page's text."""
    target = target / "README.md" if target.is_dir() else target
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    title = target.relative_to(root(config)).as_posix()
    return f"# {title}\n\n{FENCE}{LANGUAGES.get(target.suffix, 'text')}\n{text}\n{FENCE}\n"
