"""The fenced blocks of a Markdown page."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

BLOCK = re.compile(r"(?:<!-- not run: ([^\n]*?) -->\n)?^(```+)(\w*)\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r'^--8<-- "([^":]+)(?::([\w-]+))?"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    not_run: str  # why; "" if it is


def expanded(text: str) -> str:
    """Return the text with the snippets of other files in it, as the site has them."""

    def insert(found: re.Match[str]) -> str:
        inserted = (ROOT / found[1]).read_text(encoding="utf-8").rstrip("\n")
        if found[2] is None:
            return inserted
        marks = [f"<!-- --8<-- [{end}:{found[2]}] -->\n" for end in ("start", "end")]
        assert [inserted.count(mark) for mark in marks] == [1, 1], found[0]
        return inserted.partition(marks[0])[2].partition(marks[1])[0].rstrip("\n")

    return SNIPPET.sub(insert, text)


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the page's blocks, of one language or of all."""
    found = BLOCK.findall(expanded(page.read_text(encoding="utf-8")))
    return [Block(b[2], b[3], b[0]) for b in found if language in (None, b[2])]
