"""Docstrings in optax's form, as the site needs them: formulas in MathML, which browsers draw by themselves."""

import re
from textwrap import dedent
from typing import Any

import griffe
from latex2mathml.converter import convert

BLOCK = re.compile(r"^( *)\.\. math::\n((?:\1 +\S.*\n|\s*\n)+)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
LINK = re.compile(r"`([^`<]+?)\s+<(https?://[^>]+)>`_")
ROLE = re.compile(r":(?:class|func|meth|mod):`~?([^`]+)`")


def markdown(text: str) -> str:
    """What is reStructuredText in a docstring, as Markdown."""

    def block(found: re.Match[str]) -> str:
        formulas = [" ".join(part.split()) for part in re.split(r"\n\s*\n", dedent(found[2]).strip())]
        drawn = "".join(convert(formula, display="block") for formula in formulas)
        return f'\n{found[1]}<div class="formula">{drawn}</div>\n\n'

    text = BLOCK.sub(block, text + "\n")
    text = INLINE.sub(lambda found: convert(found[1]), text)
    text = LINK.sub(lambda found: f"[{' '.join(found[1].split())}]({found[2]})", text)
    text = ROLE.sub(r"`\1`", text)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE).rstrip()


class Docstrings(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
